"""How well heads are found on pretrained models, against what every head does alone.

    python bench/real.py --models smollm2 --tasks past,upper --methods adaptive --seeds 3
    python bench/real.py --page                             the page again, from the JSON

The truth is that of bench/census.py. Of its examples half are for the search and half for the
judgement, another half for every seed; rows are kept in build/census and asked once.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from caploc import designs
from caploc.measurement import Meter
from caploc.search import METHODS, Found, Problem, Settings
from caploc.store import Store
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions, Workbench
from census import CASES, FILES, ROWS, Case, wanted
from measuring import say
from metering import metered

TOP = 5
RATES = (0.01, 0.02, 0.05, 0.1)  # of css; the best of them is told
CROSSED = 50  # examples of the methods that ask every mask on all of them
BUDGETS = (1000, 2500)
DAMAGED = 0.5  # an effect alone beyond this breaks the task
SURE = 2.0  # standard errors within which two heads count as equals
Figures = dict[str, float]


@dataclass(frozen=True)
class Alone:
    """What every head does alone: outcomes less the intact ones, heads x examples."""

    examples: list[int]
    change: np.ndarray

    @classmethod
    def read(cls, case: Case) -> "Alone":
        """From the census."""
        table = parquet.read_table(FILES / f"{case.name}.parquet").to_pandas()
        intact = table[table["part"] == "intact"].set_index("example")["outcome"]
        alone = table[table["part"] == "alone"]
        head = alone["knocked_out"].map(lambda columns: columns[0])
        outcome = alone.assign(head=head).pivot(index="head", columns="example", values="outcome")
        return cls(
            outcome.columns.tolist(), outcome.to_numpy() - intact[outcome.columns].to_numpy()
        )

    def effects(self, examples: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Each head's effect on some examples, and its standard error (half an example more)."""
        part = self.change[:, np.isin(self.examples, examples)]
        count, mean = part.shape[1], part.mean(axis=1)
        variance = ((part**2).sum(axis=1) + 0.5) / (count + 1) - mean**2
        return mean, np.sqrt(variance / count)

    def top(self) -> tuple[set[int], set[int]]:
        """The heads that are surely among the first `TOP`, and those that may count as either."""
        effect = self.change.mean(axis=1)
        order = np.argsort(effect, kind="stable")
        last = order[TOP - 1]
        apart = self.change - self.change[last]
        error = apart.std(axis=1, ddof=1) / np.sqrt(apart.shape[1])
        equal = np.abs(effect - effect[last]) <= SURE * error
        return set(order[:TOP][~equal[order[:TOP]]].tolist()), set(np.flatnonzero(equal).tolist())

    def recall(self, first: Sequence[int]) -> float:
        """Share of the first `TOP` that were found; equals of the last may stand for each other."""
        surely, either = self.top()
        found = set(first[:TOP])
        return (len(found & surely) + min(TOP - len(surely), len(found & either))) / TOP


def share(part: Any) -> float:
    """The mean of what is true or false; NaN of nothing."""
    return float(np.mean(part)) if len(part) else float("nan")


def judged(found: Found, truth: Alone, judging: Sequence[int], rows: int) -> Figures:
    """How good the ranking, the names and the intervals are."""
    effect, error = truth.effects(judging)
    whole = truth.change.mean(axis=1)
    first = [column for column in found.ranking if column not in found.universal][:TOP]
    estimate = found.estimate
    middle, half = (estimate.low + estimate.high) / 2, (estimate.high - estimate.low) / 2
    held = np.abs(effect - middle) <= np.hypot(half, 1.96 * error)
    known = np.isfinite(half)
    breaking = np.flatnonzero(whole < -DAMAGED)
    return {
        "rows": rows,
        "recall": truth.recall(first),
        "rank correlation": float(np.corrcoef(whole, np.nan_to_num(estimate.effect))[0, 1]),
        "named": len(found.chosen),
        "breaking heads named": share(np.isin(breaking, found.chosen)),
        "intervals that hold": share(held[known]),
        "of the first five": share(held[[c for c in first if known[c]]]),
        "idle heads named": float(np.sum(whole[found.chosen] > -0.01)),
        "unmeasured": float((~np.isfinite(estimate.effect)).sum()),
    }


def trials(methods: Sequence[str], heads: int, seed: int) -> list[tuple[str, str, Settings, int]]:
    """Method, setting, settings and examples of all that is run with a seed."""
    found = []
    for rows in BUDGETS:
        told = f"{rows:,} rows"
        adaptive = Settings(seed=seed, budget=rows, recall=1.0)
        found.append(("adaptive", told, adaptive, 10**6))
        found.append(("one-shot", told, Settings(seed=seed), rows // heads))
        for rate in RATES:
            masks = Settings(seed=seed, masks=rows // CROSSED, rate=rate)
            found.append(("css", f"{told}, {rate:.0%}", masks, CROSSED))
        masks = Settings(seed=seed, masks=rows // CROSSED, rate=0.05)
        found.append(("csb", f"{told}, 5%", masks, CROSSED))
    return [trial for trial in found if trial[0] in methods]


def run_case(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every trial on a model and a task: figures of each seed, by method and setting."""
    model = ModelOptions(case.model, device="cpu", dtype=case.dtype)
    engine, truth = model.engine(), Alone.read(case)
    meters: list[Meter] = []
    runs: dict[str, list[Figures]] = {}
    with Store(ROWS / f"{case.name}.sqlite") as store:
        bench = Workbench(engine, store)
        for outcome in ("metric", "logprob"):
            (task,) = model.tasks([case.task], TaskOptions(outcome=outcome))
            meters.append(bench.meter(task))
        for seed in range(arguments.seeds):
            order = designs.generator(seed).permutation(truth.examples).tolist()
            searching, judging = order[: len(order) // 2], order[len(order) // 2 :]
            for method, told, settings, examples in trials(
                arguments.methods, engine.grid.size, seed
            ):
                problem = Problem(
                    engine.grid.size,
                    searching[:examples],
                    settings,
                    chance=meters[0].task.chance,
                    likelihood=1 if method == "adaptive" else None,
                )
                done = metered(METHODS[method].search(problem), meters)
                figures = judged(done.found, truth, judging, done.rows)
                runs.setdefault(f"{method}, {told}", []).append(figures)
                say(f"{case.name}, seed {seed}: {method}, {told}: recall {figures['recall']:.2f}")
    return runs


def page(kept: dict[str, Any]) -> str:
    """The figures of every case as tables: means over seeds."""
    lines = [
        "# Heads of pretrained models, found and missed",
        "",
        "Written by `bench/real.py`. The truth is every head alone (`bench/census.py`), on",
        "examples of which a search sees one half; intervals are judged on the other, whose own",
        "error is accounted for. Heads within two standard errors of the fifth count as either in",
        "the recall of the five that matter most alone. Likelihoods of right answers count as",
        "rows, intact answers do not. Means over seeds.",
    ]
    for name, runs in kept.items():
        titles = list(next(iter(runs.values()))[0])
        lines += ["", f"## {name}", "", f"| method | seeds | {' | '.join(titles)} |"]
        lines.append("|---" + "|--:" * (len(titles) + 1) + "|")
        for method, figures in runs.items():
            means = [
                [each[title] for each in figures if np.isfinite(each[title])] for title in titles
            ]
            cells = [f"{np.mean(mean):,.2f}".removesuffix(".00") if mean else "" for mean in means]
            lines.append(f"| {method} | {len(figures)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what was asked for and write the page from all that is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), help="such as smollm2")
    add("--tasks", type=lambda text: text.split(","), help="such as past,upper")
    add(
        "--methods",
        type=lambda text: text.split(","),
        default=["adaptive", "one-shot", "css", "csb"],
    )
    add("--seeds", type=int, default=5)
    add("--page", action="store_true", help="run nothing")
    add("--out", type=Path, default=Path("docs/bench"))
    arguments = parser.parse_args()
    file = arguments.out / "real.json"
    kept = json.loads(file.read_text()) if file.is_file() else {}
    for case in [] if arguments.page else CASES:
        if wanted(case, arguments) and (FILES / f"{case.name}.parquet").is_file():
            kept[case.name] = kept.get(case.name, {}) | run_case(case, arguments)
            file.write_text(json.dumps(kept, indent=1) + "\n")
    file.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()
