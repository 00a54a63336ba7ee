"""How well heads are found on pretrained models, against what every head does alone.

    python bench/real.py --models smollm2 --tasks past,upper --methods scan --seeds 3
    python bench/real.py --again --methods scan             what was run before, anew
    python bench/real.py --page                             the page again, from the JSON

The truth is that of bench/census.py. Of its examples half are for the search and half for the
judgement, another half for every seed; the task's other examples are for checks, and to judge sets.
Rows are kept in build/census and asked once.
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
from caploc.components import ALONE
from caploc.declaration import ModelOptions
from caploc.measurement import Meter, Meters
from caploc.options import Settings, TaskOptions
from caploc.progress import Silent
from caploc.result import Effect, Member
from caploc.search import METHODS, Found, Problem, column_mask
from caploc.session import add_signal
from caploc.store import Store
from caploc.validation import Check
from caploc.validation.members import confirm_members, judge, measure_members
from census import CASES, FILES, ROWS, Case, wanted
from measuring import say
from metering import metered

TOP = 5
RATES = (0.01, 0.02, 0.05, 0.1)  # of css; the best of them is told
CROSSED = 50  # examples of the methods that ask every mask on all of them
ROWS_OF = {"smollm2": 2500, "gemma3-270m": 1200, "qwen2.5-coder-1.5b": 3000}  # a search may spend
ROWS_OF_SET = {"smollm2": 3500, "gemma3-270m": 1200, "qwen2.5-coder-1.5b": 3000}
GREEDY = 40  # examples of each of its rounds
CHECKED = 75  # fresh examples on which a set is held against its parts, and its members judged
REPEATED = 200  # fresh examples on which each named head is knocked out again
DAMAGED = 0.5  # an effect alone beyond this breaks the task
SURE = 2.0  # standard errors within which two heads count as equals
METHODS_RUN = ("scan", "set", "one-shot", "css", "csb", "greedy")
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
        """Each head's effect on some examples, and its standard error.

        A head that changed no answer may change the next one: each head counts as having been
        asked one example more, on which it did what heads do on average.
        """
        part = self.change[:, np.isin(self.examples, examples)]
        count, mean = part.shape[1], part.mean(axis=1)
        variance = ((part**2).sum(axis=1) + (part**2).mean()) / (count + 1) - mean**2
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


@dataclass(frozen=True)
class Trial:
    """A search to run: with which settings, and on how many examples at most."""

    method: str
    name: str
    settings: Settings
    examples: int = 10**6


@dataclass(frozen=True)
class Split:
    """Examples to search on, to check sets on, and to judge by."""

    searching: list[int]
    checking: list[int]
    judging: list[int]  # single heads, of which the census has the truth
    beyond: list[int]  # sets

    @classmethod
    def drawn(cls, truth: Alone, size: int, seed: int) -> "Split":
        """Another one for every seed."""
        order = designs.generator(seed).permutation(truth.examples).tolist()
        half = len(order) // 2
        others = sorted(set(range(size)) - set(order))
        others = designs.generator(seed).permutation(others).tolist()
        beyond = [*others[CHECKED:], *order[half:]]
        return cls(order[:half], others[:CHECKED], order[half:], beyond)


@dataclass
class Proving:
    """A model and a task on which searches are tried."""

    case: Case
    truth: Alone
    engine: Any
    probes: dict[str, Meter]
    probe: str  # of the task
    signal: str

    @property
    def heads(self) -> int:
        """Of the model."""
        return int(self.engine.grid.size)

    def run(self, trial: Trial, split: Split) -> Figures:
        """Search, and judge what was found."""
        scans = METHODS[trial.method].has_goals
        problem = Problem(
            self.heads,
            split.searching[: trial.examples],
            trial.settings,
            fresh=() if scans and trial.settings.goal == "heads" else split.checking,
            chance=self.probes[self.probe].task.chance,
            probe=self.probe,
            signal=self.signal if scans else self.probe,
        )
        done = metered(METHODS[trial.method].search(problem), self.probes)
        chosen, check = done.found.chosen, self.check(split.checking)
        if trial.settings.goal == "set":
            judged = judge(check, chosen)
            if judged and judged.examples:  # as a study does: those that had no part in picking
                check = self.check(judged.examples)
            chosen = confirm_members(check, judged.named if judged else chosen)
        figures = {"rows": float(done.rows), "seconds": done.measuring}
        figures |= judge_heads(done.found, self.truth, split.judging)
        if scans and trial.settings.goal == "heads":
            others = [*split.beyond, *split.checking]
            figures |= self.repeat(done.found, others[:REPEATED])
        return figures | self.judge_set(chosen, check, split.beyond)

    def check(self, examples: Sequence[int]) -> Check:
        """What sets are held against their parts on."""
        return Check(
            self.probes[self.probe], self.engine.loaded.grid, examples, True, 0, 0, Silent()
        )

    def repeat(self, found: Found, examples: Sequence[int]) -> Figures:
        """Of the named heads, the share whose drop on these examples lies in its interval."""
        singles = designs.singles(self.heads)[found.chosen]
        masks = np.concatenate([column_mask(self.heads, [])[None], singles])
        intact, *without = self.check(examples).outcomes(masks, "repetition")
        drops = np.array([np.mean(each) - np.mean(intact) for each in without])
        low, high = (end[found.chosen] for end in (found.estimate.low, found.estimate.high))
        return {f"of the named, on {REPEATED} others": share((low <= drops) & (drops <= high))}

    def damage(self, columns: Sequence[int], examples: Sequence[int]) -> float:
        """Of the intact score, the share that is lost without these heads."""
        masks = np.stack([column_mask(self.heads, each) for each in ((), columns)])
        intact, left = self.check(examples).outcomes(masks, "damage")
        return float(1 - left.mean() / intact.mean())

    def judge_set(self, chosen: Sequence[int], check: Check, beyond: Sequence[int]) -> Figures:
        """What the named heads do together, and whether the intervals of their shares hold."""
        if not chosen:
            return {"damage": 0.0}
        told = measure_members(check, chosen)
        true = measure_members(self.check(beyond), chosen)
        both = list(zip(told, true, strict=True))
        held = [holds(one.within, other.within) for one, other in both if bounded(one, other)]
        alone = [holds(one.alone, other.alone) for one, other in both if bounded(one, other)]
        return {
            "damage": self.damage(chosen, beyond),
            "shares that hold": share(held),
            "checked alone that hold": share(alone),
        }


def bounded(*members: Member) -> bool:
    """Whether there were examples enough for intervals."""
    effects = [effect for one in members for effect in (one.within, one.alone)]
    return all(effect.low is not None and effect.high is not None for effect in effects)


def holds(told: Effect, true: Effect) -> bool:
    """Whether an effect that is known up to its own interval lies in the interval told."""
    middle, half = (told.low + told.high) / 2, (told.high - told.low) / 2
    return bool(abs(true.effect - middle) <= np.hypot(half, (true.high - true.low) / 2))


def share(part: Any) -> float:
    """The mean of what is true or false; NaN of nothing."""
    return float(np.mean(part)) if len(part) else float("nan")


def judge_heads(found: Found, truth: Alone, judging: Sequence[int]) -> Figures:
    """How good the ranking, the names and the intervals are."""
    effect, error = truth.effects(judging)
    whole = truth.change.mean(axis=1)
    first = [column for column in found.ranking if column not in found.universal][:TOP]
    estimate = found.estimate
    breaking = np.flatnonzero(whole < -DAMAGED)
    figures = {
        "recall": truth.recall(first),
        "rank correlation": float(np.corrcoef(whole, np.nan_to_num(estimate.effect))[0, 1]),
        "named": len(found.chosen),
        "breaking heads named": share(np.isin(breaking, found.chosen)),
        "idle heads named": float(np.sum(whole[found.chosen] > -0.01)),
        "unmeasured": float((~np.isfinite(estimate.effect)).sum()),
    }
    if estimate.estimand != ALONE:
        return figures
    middle, half = (estimate.low + estimate.high) / 2, (estimate.high - estimate.low) / 2
    held = np.abs(effect - middle) <= np.hypot(half, 1.96 * error)
    within = (effect >= estimate.low) & (effect <= estimate.high)
    known = np.isfinite(half)
    return figures | {
        "intervals that hold": share(held[known]),
        "of the first five": share(held[[c for c in first if known[c]]]),
        "of the named": share(held[[c for c in found.chosen if known[c]]]),
        "of the named, as measured": share(within[[c for c in found.chosen if known[c]]]),
    }


def trials(case: Case, methods: Sequence[str], heads: int, seed: int) -> list[Trial]:
    """All that is run with a seed."""
    rows, set_rows = ROWS_OF[case.model], ROWS_OF_SET[case.model]
    masks = rows // CROSSED
    found = {
        "scan": [
            Trial("scan", "scan", Settings(seed=seed)),
            Trial("scan", f"scan, {rows:,} rows", Settings(seed=seed, budget=rows)),
        ],
        "set": [Trial("scan", "scan, set", Settings(seed=seed, budget=set_rows, goal="set"))],
        "one-shot": [Trial("one-shot", "one-shot", Settings(seed=seed), rows // heads)],
        "css": [
            Trial("css", f"css, {rate:.0%}", Settings(seed=seed, masks=masks, rate=rate), CROSSED)
            for rate in RATES
        ],
        "csb": [Trial("csb", "csb, 5%", Settings(seed=seed, masks=masks, rate=0.05), CROSSED)],
        # Its choices hardly differ between seeds, and each costs as much as all else together.
        "greedy": [Trial("greedy", "greedy", Settings(seed=seed), GREEDY)] if seed == 0 else [],
    }
    return [trial for method in methods for trial in found[method]]


def run_case(case: Case, arguments: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Every trial on a model and a task that was not run before; figures by method and seed."""
    model = ModelOptions(case.model, device="cpu", dtype=case.dtype)
    truth = Alone.read(case)
    with Store(ROWS / case.name / "rows.sqlite") as store:
        engine = model.engine()
        bench = Meters(engine, store)
        (task,) = model.tasks([case.task], TaskOptions())
        probes = {task.name: bench.meter(task)}
        every = [*range(task.size)]
        nothing = column_mask(engine.grid.size, [])
        intact = probes[task.name].under(nothing, every, Silent(), "intact")
        signal = add_signal(bench, probes, task.name, intact)
        proving = Proving(case, truth, engine, probes, task.name, signal)
        for seed in range(arguments.seeds):
            split = Split.drawn(truth, task.size, seed)
            for trial in trials(case, arguments.methods, proving.heads, seed):
                runs = kept.setdefault(case.name, {}).setdefault(trial.name, {})
                if str(seed) in runs and not arguments.again:
                    continue
                figures = runs[str(seed)] = proving.run(trial, split)
                say(
                    f"{case.name}, seed {seed}: {trial.name}: recall {figures['recall']:.2f}, "
                    f"damage {figures['damage']:.2f}, {figures['seconds']:.0f} s"
                )
                arguments.file.write_text(json.dumps(kept, indent=1) + "\n")


ABOUT = """\
# Heads of pretrained models, found and missed

Written by `bench/real.py`; the JSON file beside it has every task. `adaptive` is the search before
scan, then trial (November 2026); `scan, set` is today's goal `set`, one seed so far.

The truth is every head alone (`bench/census.py`), on examples of which a search sees one half.
*Recall* is the share of the five heads that matter most alone; heads within two standard errors
of the fifth count as either. *Intervals that hold* are judged on the other half, whose own error
is accounted for, for all heads and for the first five. *Damage* is the share of the intact score
that the named heads' joint loss takes on further examples, which css, csb, greedy and sets look
for. *Idle* heads change nothing alone. Likelihoods of right answers count as rows; intact answers
and checks do not. Seconds are those of one core of a busy machine. Figures are means over tasks
and seeds; greedy has one seed.
"""
SHOWN = (
    "rows",
    "seconds",
    "recall",
    "named",
    "idle heads named",
    "intervals that hold",
    "of the first five",
    "damage",
)  # of all figures, those on the page


def page(kept: dict[str, Any]) -> str:
    """The figures of each model's tasks together."""
    lines = [ABOUT]
    for model in ROWS_OF:
        cases = [case.name for case in CASES if case.model == model and case.name in kept]
        pooled: dict[str, list[Figures]] = {}
        for name in cases:
            for method, runs in kept[name].items():
                pooled.setdefault(method, []).extend(runs.values())
        tasks = ", ".join(name.removeprefix(f"{model}-") for name in cases)
        lines += [f"## {model}: {tasks}\n", *table(pooled), ""] if cases else []
    return "\n".join(lines)


def table(runs: dict[str, list[Figures]]) -> list[str]:
    """A line a method, a column a figure; empty where there is none."""
    titles = SHOWN
    lines = [f"| method | runs | {' | '.join(titles)} |", "|---" + "|--:" * (len(titles) + 1) + "|"]
    for method, figures in runs.items():
        cells = []
        for title in titles:
            values = [each[title] for each in figures if np.isfinite(each.get(title, np.nan))]
            mean = float(np.mean(values)) if values else None
            cells.append("" if mean is None else f"{mean:,.0f}" if mean > 20 else f"{mean:.2f}")
        lines.append(f"| {method} | {len(figures)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run what was asked for and write the page from all that is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), help="such as smollm2")
    add("--tasks", type=lambda text: text.split(","), help="such as past,upper")
    add("--methods", type=lambda text: text.split(","), default=METHODS_RUN)
    add("--seeds", type=int, default=5)
    add("--again", action="store_true", help="also what was run before")
    add("--page", action="store_true", help="run nothing")
    add("--out", type=Path, default=Path("docs/bench"))
    arguments = parser.parse_args()
    arguments.file = arguments.out / "real.json"
    kept = json.loads(arguments.file.read_text()) if arguments.file.is_file() else {}
    for case in [] if arguments.page else CASES:
        if wanted(case, arguments) and (FILES / f"{case.name}.parquet").is_file():
            run_case(case, arguments, kept)
    arguments.file.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()
