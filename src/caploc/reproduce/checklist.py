"""Every experiment of CNL in a row: what it is, its command, what came out, what is published.

`checklist.yaml` holds the rows. Of the paper's figures only those that stand there are known to us;
the rest is marked as not known, and nothing here is called reproduced against them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, StrictUndefined, UndefinedError

from caploc.neurons.fact_study import margin_of
from caploc.report.exhibits import NOTHING, Exhibit
from caploc.report.tabulation import as_text, ranged

NOT_KNOWN = "not published to our knowledge"
ARMS = ("located", "complement", "same relation", "random")
ROWS: list[list[Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


def checklist(results: Mapping[str, Any]) -> Exhibit:
    """Fill all rows from what was measured; what was not is a dash."""
    rows: list[tuple[str, ...]] = []
    for number, experiment, command, here, *published in ROWS:
        try:
            outcome = TEMPLATES.from_string(here).render(results)
        except UndefinedError:
            outcome = NOTHING
        rows.append((str(number), experiment, command, outcome, *(published or [NOT_KNOWN])))
    return Exhibit(
        "checklist",
        "Every experiment of CNL",
        ("row", "experiment", "command", "here", "published"),
        list(rows),
        ["Recipes that are not published follow our defaults, named in docs/cnl.md."],
    )


def ends(values: Iterable[float | None], digits: int = 2) -> str:
    """Write the lowest and the highest."""
    known = [value for value in values if value is not None and np.isfinite(value)]
    return f"{min(known):z.{digits}f} to {max(known):z.{digits}f}" if known else NOTHING


def circuit_arms(circuit: Mapping[str, Any]) -> dict[str, str]:
    """Write the faithfulness of each kind of circuit."""
    found = {arm["name"]: ranged(arm["faithfulness"]) for arm in circuit["arms"]}
    return {name: found[name] for name in ARMS if name in found}


TEMPLATES = Environment(undefined=StrictUndefined)  # noqa: S701  (pages escape what they show)
TEMPLATES.filters |= {
    "added": lambda rows: np.array(list(rows)).sum(axis=0).tolist(),
    "arms": circuit_arms,
    "ends": ends,
    "figure": as_text,
    "gain": lambda value: NOTHING if value is None else f"{value:,.1f}",
    "layers": lambda counts: ", ".join(f"L{layer} {count}" for layer, count in enumerate(counts)),
    "margin": margin_of,
    "mean": lambda values: sum(values) / len(values),
    "percents": lambda shares: [100 * share for share in shares],
    "ranged": ranged,
}
