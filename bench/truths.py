"""What a search should have found, and how well it did: one number for each question."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caploc.search import Found
from driving import Done

Scores = dict[str, float]  # NaN where a method says nothing
Summary = dict[str, dict[str, float]]
SIGNIFICANT = 0.05  # the q below which a head counts as named by it


@dataclass(frozen=True)
class Truth:
    """What is true of a model and a task.

    `effects` has every head's effect alone; `wanted` are the heads to find; `damage` takes columns
    and gives their joint drop as a share of the best set's. `struck` heads break every task and are
    left out of every ranking and count; `idle` marks heads that do nothing alone, where that is
    known, and `entangled` those that do something together with another one.
    """

    effects: np.ndarray
    wanted: frozenset[int]
    damage: Callable[[Sequence[int]], float]
    struck: frozenset[int] = frozenset()
    idle: np.ndarray | None = None
    entangled: frozenset[int] = frozenset()


def scores(done: Done, truth: Truth, top: int) -> Scores:
    """How good the `top` first heads of the ranking, the intervals and the heads named are."""
    found = done.found
    first = [column for column in found.ranking if column not in truth.struck][:top]
    chosen = [column for column in found.chosen if column not in truth.struck]
    result = {
        "rows": float(done.rows),
        "thinking": done.thinking,
        "measuring": done.measuring,
        "named": float(len(chosen)),
        "names any": float(bool(chosen)),
        "stability": np.nan if found.stages is None else found.stages.stability or np.nan,
    }
    if truth.wanted:
        result["recall"] = share(truth.wanted, first)
        result["recall named"] = share(truth.wanted, chosen)
        result["damage"] = truth.damage(first)
    return result | coverage(found, truth, first) | false_names(found, truth)


def share(wanted: Iterable[int], found: Iterable[int]) -> float:
    """Share of the wanted that were found."""
    wanted = set(wanted)
    return len(wanted & set(found)) / len(wanted)


def coverage(found: Found, truth: Truth, first: Sequence[int]) -> Scores:
    """Share of intervals that hold the true effect: of all heads that have one, of the first."""
    estimate = found.estimate
    present = np.isfinite(estimate.low) & np.isfinite(estimate.high)
    present[list(truth.struck)] = False
    holds = (estimate.low <= truth.effects) & (truth.effects <= estimate.high)
    top = [column for column in first if present[column]]
    return {
        "coverage": float(holds[present].mean()) if present.any() else np.nan,
        "coverage top": float(holds[top].mean()) if top else np.nan,
    }


def false_names(found: Found, truth: Truth) -> Scores:
    """Heads with a small q: how many, and which share of them is idle (0 if there are none)."""
    q = found.estimate.q
    if truth.idle is None or not np.isfinite(q).any():
        return {}
    discovered = [
        int(column) for column in np.flatnonzero(q < SIGNIFICANT) if column not in truth.struck
    ]
    false = [column for column in discovered if truth.idle[column]]
    alone = [column for column in false if column not in truth.entangled]
    count = max(len(discovered), 1)
    return {
        "discovered": float(len(discovered)),
        "false": len(false) / count,
        "false alone": len(alone) / count,
    }


def summary(runs: Sequence[Scores]) -> Summary:
    """Mean, standard error and number of the runs that have a number, for each question."""
    names = dict.fromkeys(name for run in runs for name in run)
    found: Summary = {}
    for name in names:
        values = np.array([run[name] for run in runs if np.isfinite(run.get(name, np.nan))])
        if not values.size:
            continue
        found[name] = {"mean": round(float(values.mean()), 4), "runs": int(values.size)}
        if values.size > 1:
            error = values.std(ddof=1) / np.sqrt(values.size)
            found[name]["error"] = round(float(error), 4)
    return found


def cells(runs: Mapping[tuple[str, str], Sequence[Scores]]) -> dict[str, Any]:
    """The runs of each method and setting as the results keep them."""
    return {
        f"{method}, {setting}": {"method": method, "setting": setting, "scores": summary(each)}
        for (method, setting), each in runs.items()
    }
