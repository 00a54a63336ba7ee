"""How often heads are found, by many draws from what every head was seen to do: no model runs.

    python bench/draws.py                   draw, write docs/bench/search.json and its pages
    python bench/draws.py --draws 200
    python bench/draws.py --page            the pages again, README's table too

The truth is every head alone (bench/census.py). A draw numbers 600 examples, each of which is one
of those stored, so that what is stored is all there is and its mean is the truth. Every method is
the program's own, answered from what is stored; what gradients say is stored too
(bench/attributions.py). Masks of several heads are not among it: css, csb, greedy and sets are
run on the models by bench/joint.py, and stand on the same page.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from caploc import designs
from caploc.options import Settings
from caploc.recovery import Estimate, Measurements
from caploc.recovery.estimate import right_of
from caploc.search import METHODS, Found, Plan, Problem, Search
from caploc.search.plan import ScanRecord, intact_plan
from caploc.search.scan import Scan, Sizes, named, split, try_heads
from driving import drive

FILES = Path(__file__).parent / "census"
OUT = Path(__file__).parents[1] / "docs" / "bench" / "search.json"
JOINT = OUT.with_name("joint.json")  # of bench/joint.py
README = Path(__file__).parents[1] / "README.md"
DEVELOPMENT = ("smollm2-past", "smollm2-upper", "smollm2-digits")  # constants were chosen on these
TEST = (
    "smollm2-plural",
    "smollm2-third_person",
    "smollm2-sentiment",
    "smollm2-antonym",
    "smollm2-capital",
    "small-addition",
    "small-choice",
    "small-copying",
)
TOP, NUMBERED = 5, 600
SURE = 2.0  # standard errors within which two heads count as equals
STRONG, SOME = -0.3, -0.05  # effects of heads that must be tried, and of a stratum
PROBE, SIGNAL = "task", "task.likelihood"
MARKS = "<!--bench/draws.py-->", "<!--end-->"  # of README's part
ASKED = 64  # examples whose gradients a method reads
PASSES = {"gradient": 3, "path": 15, "drop": 61}  # forward, for an example: `drop` of 30 layers
Figures = dict[str, Any]
BRIEFLY = (  # methods that README names
    "caploc",
    "caploc, fewer rows",
    "one-shot by log-odds",
    "one-shot, right or wrong",
    "attribution patching, then trial",
)
STRATA = ("named", "five points", "all")


@dataclass(frozen=True)
class Stored:
    """What every head alone does to outcomes, and to right answers' signals.

    `intact` are outcomes, `change` what a head changes of them (heads x examples), NaN where only
    its signals were read. `before` and `after` are signals, `kept` whether answers stay.
    `attributed` holds what gradients say of the log-odds (heads x examples), by way.
    """

    intact: np.ndarray
    change: np.ndarray
    before: np.ndarray
    after: np.ndarray
    kept: np.ndarray
    attributed: dict[str, np.ndarray]

    @classmethod
    def read(cls, name: str) -> "Stored":
        """From the census."""
        table = parquet.read_table(FILES / f"{name}.parquet").to_pandas()
        table["head"] = [columns[0] if len(columns) else -1 for columns in table["knocked_out"]]
        part = {each: rows for each, rows in table.groupby("part")}
        signal = part["signal"].pivot(index="head", columns="example", values="outcome")
        kept = part["signal"].pivot(index="head", columns="example", values="kept").loc[0:]
        alone = part["alone"].pivot(index="head", columns="example", values="outcome")
        intact = part["intact"].set_index("example")["outcome"][alone.columns].to_numpy()
        change = np.full((len(kept), len(intact)), np.nan)
        change[alone.index] = alone.to_numpy() - intact
        attributed = {
            way: part[way].pivot(index="head", columns="example", values="outcome").to_numpy()
            for way in PASSES
            if way in part
        }
        before, after = signal.loc[-1].to_numpy(), signal.loc[0:].to_numpy()
        return cls(intact, change, before, after, kept.to_numpy(), attributed)

    @property
    def truth(self) -> np.ndarray:
        """Each head's effect alone."""
        shallow = self.intact.mean() * (self.kept.mean(axis=1) - 1)
        deep = np.isfinite(self.change).all(axis=1)
        return np.where(deep, np.where(deep[:, None], self.change, 0).mean(axis=1), shallow)

    def recall(self, first: Sequence[int]) -> float:
        """Share of the first `TOP` that were found; equals of the last may stand for each other."""
        surely, either = self.top()
        found = set(first[:TOP])
        return (len(found & surely) + min(TOP - len(surely), len(found & either))) / TOP

    def top(self) -> tuple[set[int], set[int]]:
        """The heads that are surely among the first `TOP`, and those that may count as either."""
        effect, change = self.truth, np.nan_to_num(self.change)
        order = np.argsort(effect, kind="stable")
        last = order[TOP - 1]
        apart = change - change[last]
        error = apart.std(axis=1, ddof=1) / np.sqrt(apart.shape[1])
        equal = np.abs(effect - effect[last]) <= SURE * error
        return set(order[:TOP][~equal[order[:TOP]]].tolist()), set(np.flatnonzero(equal).tolist())


class Answers:
    """Answers plans from what is stored, by another numbering of examples for every draw."""

    def __init__(self, stored: Stored, seed: int) -> None:
        """Number the examples."""
        random = designs.generator(seed + 1000)
        self.stored = stored
        self.example = random.integers(len(stored.intact), size=NUMBERED)
        self.signal = random.integers(len(stored.before), size=NUMBERED)

    def __call__(self, plan: Plan) -> Measurements:
        """The rows of a plan whose masks knock out one head or none."""
        head = np.where(plan.masks.any(axis=1), plan.masks.argmax(axis=1), -1)[plan.mask]
        assert plan.masks.sum(axis=1).max() <= 1, "only single heads are stored"
        stored, place = self.stored, self.signal[plan.example]
        kept = np.where(head < 0, 1.0, stored.kept[head, place])
        if plan.probe == SIGNAL:
            outcome = np.where(head < 0, stored.before[place], stored.after[head, place])
            return Measurements(plan.masks, plan.mask, plan.example, outcome, kept)
        example = self.example[plan.example]
        before, change = stored.intact[example], stored.change[head, example]
        change = np.where(np.isfinite(change), change, before * (kept - 1))
        outcome = before + np.where(head < 0, 0.0, change)
        return Measurements(plan.masks, plan.mask, plan.example, outcome)


@dataclass(frozen=True)
class Run:
    """One draw: recall, rows; of the default search also which intervals hold, by stratum.

    `strong` counts the heads of 30 points and more that were tried, and all there are.
    """

    recall: float
    rows: int
    first: list[int]
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    strong: tuple[int, int] = (0, 0)
    named: int = 0
    jaccard: float = float("nan")


@dataclass(frozen=True)
class Method:
    """A search, how it is set, and on how many examples."""

    search: Callable[[Problem], Search]
    budget: int | None = None
    examples: int = NUMBERED

    def run(self, stored: Stored, seed: int) -> Run:
        """One draw."""
        settings = Settings(seed=seed, budget=self.budget)
        problem = Problem(len(stored.kept), range(self.examples), settings, signal=SIGNAL)
        done = drive(self.search(problem), Answers(stored, seed))
        return judge(done.found, done.rows, stored)


@dataclass(frozen=True)
class Attribution:
    """Heads in the order that gradients give; then, if `tried`, the first of them in a trial."""

    way: str
    examples: int
    tried: bool

    def run(self, stored: Stored, seed: int) -> Run:
        """One draw; passes count as rows."""
        values = stored.attributed[self.way]
        drawn = designs.generator(seed + 1000).integers(values.shape[1], size=self.examples)
        order = np.argsort(values[:, drawn].mean(axis=1), kind="stable").tolist()
        passes = PASSES[self.way] * self.examples
        if not self.tried:
            return Run(stored.recall(order), passes, order[:TOP])
        problem = Problem(len(values), range(NUMBERED), Settings(seed=seed), signal=SIGNAL)
        done = drive(try_first(problem, order), Answers(stored, seed))
        return judge(done.found, passes + done.rows, stored)


def judge(found: Found, rows: int, stored: Stored) -> Run:
    """What a search found, held against the truth."""
    recall = stored.recall(found.ranking)
    if found.stages is None:
        return Run(recall, rows, found.ranking[:TOP])
    strong = np.flatnonzero(stored.truth <= STRONG)
    tried = int(np.isin(strong, found.stages.tried).sum())
    stability = found.stages.stability
    return Run(
        recall,
        rows,
        found.ranking[:TOP],
        held(found, stored.truth),
        (tried, len(strong)),
        len(found.chosen),
        float("nan") if stability is None else stability,
    )


def held(found: Found, truth: np.ndarray) -> dict[str, tuple[int, int]]:
    """Of intervals in each stratum: how many hold, and how many there are."""
    estimate = found.estimate
    inside = (estimate.low <= truth) & (truth <= estimate.high)
    known = np.isfinite(estimate.low)
    named = np.isin(np.arange(len(truth)), found.chosen)
    strata = (known & named, known & (truth <= SOME), known)
    return {
        name: (int(inside[each].sum()), int(each.sum()))
        for name, each in zip(STRATA, strata, strict=True)
    }


def one_shot_by_odds(problem: Problem, *, count: int) -> Search:
    """Every head alone on the same right answers, ranked by log-odds."""
    intact = (yield intact_plan(problem, PROBE, problem.examples)).by_example()
    scan = Scan(problem, SIGNAL, right_of(intact)[:count])
    yield from scan.open()
    yield from scan.ask(problem.eligible, count)
    unknown = np.full(problem.heads, np.nan)
    estimate = Estimate("order", -scan.mean_fall, unknown, unknown, unknown)
    order = scan.order()
    return Found(order[:TOP], order, estimate, Measurements.none(problem.heads))


def try_first(problem: Problem, order: Sequence[int]) -> Search:
    """The default search's trial, of the heads that another order puts first."""
    sizes = Sizes.of(problem)
    _, fresh = split(problem, sizes.trial)
    trial = yield from try_heads(problem, order[: sizes.heads], fresh[: sizes.trial])
    estimate = trial.estimate()
    tried = sorted(trial.heads, key=lambda column: estimate.effect[column])
    ranking = [*tried, *(column for column in order if column not in trial.heads)]
    zeros = np.zeros(problem.heads, dtype=int)
    record = ScanRecord(None, 0, zeros, zeros, zeros.astype(float), trial.heads, sizes.trial)
    chosen = named(estimate, TOP)
    return Found(chosen, ranking, estimate, trial.seen, stages=record)


def methods(stored: Stored) -> dict[str, Method | Attribution]:
    """What is compared, at like rows where not said otherwise."""
    heads = len(stored.kept)
    rows = 4 * heads + 3 * TOP * 100
    each = max(rows // heads, 1)
    return {
        "caploc": Method(METHODS["scan"].search),
        "caploc, fewer rows": Method(METHODS["scan"].search, 2 * heads + 3 * TOP * 60),
        "one-shot by log-odds": Method(partial(one_shot_by_odds, count=each)),
        "one-shot, right or wrong": Method(METHODS["one-shot"].search, examples=each),
    } | {
        name: each
        for name, each in {
            "attribution patching": Attribution("gradient", ASKED, tried=False),
            "attribution patching, then trial": Attribution("gradient", ASKED, tried=True),
            "integrated gradients": Attribution("path", ASKED, tried=False),
            "integrated gradients, then trial": Attribution("path", ASKED, tried=True),
            "attribution, gradients dropped": Attribution("drop", ASKED // 2, tried=False),
        }.items()
        if each.way in stored.attributed
    }


def summary(runs: Sequence[Run]) -> Figures:
    """What is kept of a method's draws on a task."""
    recalls = [run.recall for run in runs]
    figures: Figures = {
        "recall": round(float(np.mean(recalls)), 4),
        "error": round(float(np.std(recalls, ddof=1)) / len(runs) ** 0.5, 4),
        "rows": round(float(np.mean([run.rows for run in runs]))),
    }
    if not runs[0].held:
        return figures
    strata = {s: np.sum([run.held[s] for run in runs], axis=0).tolist() for s in STRATA}
    figures |= strata | {
        "tried": np.sum([run.strong for run in runs], axis=0).tolist(),
        "heads named": round(float(np.mean([run.named for run in runs])), 2),
    }
    jaccard = float(np.mean([run.jaccard for run in runs]))
    return figures | ({} if np.isnan(jaccard) else {"jaccard": round(jaccard, 3)})


def draw(draws: int) -> dict[str, dict[str, Figures]]:
    """What each method finds on each task that is stored."""
    found: dict[str, dict[str, Figures]] = {}
    for name in (*DEVELOPMENT, *TEST):
        stored = Stored.read(name)
        surely, either = stored.top()
        needed = int((stored.truth <= SOME).sum())
        found[name] = {"truth": {"surely": len(surely), "tied": len(either), "needed": needed}} | {
            method: summary([each.run(stored, seed) for seed in range(draws)])
            for method, each in methods(stored).items()
        }
        print(f"{name}: {found[name]['caploc']}", flush=True)
    return found


ABOUT = """\
# How often heads are found

Written by `bench/draws.py` from what every head was seen to do alone (`bench/census.py`); {draws}
draws a cell, no model runs. *Development* are the tasks that constants were chosen on; *test*
tasks are other word tasks of SmolLM2 and three small models that are always right
(`bench/small.py`). The search was not changed after they were opened; they were drawn from three
times, and the copying model was trained anew in between, as no head of it was needed. A draw's
examples are the stored ones, numbered anew with replacement.

*Recall* is of the five heads most needed alone; those within two standard errors of the fifth may
stand for each other. Where no head costs five points ({idle}) nothing was
named in any draw, and *together* leaves the task out. Intervals are 95 %; strong heads cost 30
points or more.
*Jaccard* is the overlap of the heads named on resampled examples, as a run tells it. On sentiment,
choices between two words, the mean fall of log-odds misses heads that tilt the model to one word:
what they take from one half of the examples they give to the other.

Gradients ({asked} examples of those whose signals are stored) rank heads by what they say of the
log-odds: *attribution patching* by the derivative by each head's gate, *gradients dropped* by its
mean size with one layer's gradients dropped at a time (half the examples, and on development tasks
alone, as it takes 61 passes an example), *integrated gradients* by the mean derivative on the way
from closed gates to open ones. *Then trial*: their first fifteen heads go through the default
search's trial. A pass forward counts as a row, one backward as two (`bench/attributions.py`).
"""


TOGETHER = """\
## Five heads together

Run on the models by `bench/joint.py`. Figures are the share of the intact score that a method's
first five heads take together, on examples that it did not see: what sets, css, csb and greedy look
for. Of the methods above those of the first five draws are judged, on one set of examples. css and
csb ask 100 masks of 5 % of the heads on 25 examples, greedy 12 right answers in every round (40 of
small models). Five runs a cell of small models, one of SmolLM2.

A set takes .95 or more of what greedy's and one-shot's heads take, on all test tasks but sentiment:
there one-shot by right or wrong, which does not scan by log-odds, is ahead (greedy was not run).
"""
RUN = {"set": "caploc, `--goal set`", "css": "css", "csb": "csb", "greedy": "greedy"}


def page(kept: dict[str, Any]) -> str:
    """All figures, task by task and together."""
    tasks = kept["tasks"]
    idle = ", ".join(name for name in tasks if not tasks[name]["truth"]["needed"])
    lines = [ABOUT.format(draws=kept["draws"], idle=idle, asked=ASKED)]
    for title, names in (("Development", DEVELOPMENT), ("Test", TEST)):
        lines += [
            f"## {title}\n",
            "| task | method | rows | recall | heads named | "
            + " | ".join(f"intervals that hold: {each}" for each in STRATA)
            + " | strong heads tried | Jaccard |",
            "|---|---" + "|--:" * 8 + "|",
        ]
        for method in list(tasks[names[0]])[1:]:
            lines += [row(name, method, tasks[name][method]) for name in names]
            lines.append(row("**together**", method, pooled(tasks, names, method)))
        surely = "; ".join(f"{name} {tasks[name]['truth']['surely']}" for name in names)
        lines.append(f"\nHeads that are surely among the first five, ties apart: {surely}.\n")
    return "\n".join([*lines, TOGETHER, *together(json.loads(JOINT.read_text()))]) + "\n"


def together(joint: dict[str, Any]) -> list[str]:
    """What the five heads of every method take together: a line a method, a column a task."""
    tasks = [task for task in (*TEST, *DEVELOPMENT) if joint.get(task)]
    lines = [f"| method | rows | {' | '.join(tasks)} |", "|---" + "|--:" * (len(tasks) + 1) + "|"]
    for method in (*RUN, *joint[tasks[0]]["drawn"]):
        runs = {task: joint_runs(joint[task], method) for task in tasks}
        rows = [
            sum(run["rows"].values()) for each in runs.values() for run in each if "rows" in run
        ]
        cells = [
            f"{np.mean([run['damage'] for run in each]):.2f}" if each else ""
            for each in runs.values()
        ]
        asked = f"{np.mean(rows):,.0f}" if rows else ""
        lines.append(f"| {RUN.get(method, method)} | {asked} | {' | '.join(cells)} |")
    return lines


def joint_runs(task: dict[str, Any], method: str) -> list[Figures]:
    """A method's runs on a task, or the draws that were judged."""
    return list((task.get(method) or task.get("drawn", {}).get(method, {})).values())


def pooled(tasks: dict[str, Any], names: Sequence[str], method: str) -> Figures:
    """Tasks that need heads together: a mean; of intervals and heads, their sum."""
    needing = [tasks[name][method] for name in names if tasks[name]["truth"]["needed"]]
    found: Figures = {
        name: float(np.mean([figures[name] for figures in needing]))
        for name in ("recall", "rows", "heads named", "jaccard")
        if name in needing[0]
    }
    errors = [figures["error"] for figures in needing]
    found["error"] = float(np.linalg.norm(errors)) / len(errors)
    for name in (*STRATA, "tried"):
        if name in needing[0]:
            found[name] = np.sum([figures[name] for figures in needing], axis=0).tolist()
    return found


def row(task: str, method: str, figures: Figures) -> str:
    """A line of the page."""
    cells = [f"{figures['rows']:,.0f}", f"{figures['recall']:.2f} ± {figures['error']:.2f}"]
    if "named" in figures:
        cells.append(f"{figures['heads named']:.1f}")
        cells += [percentage(figures[stratum]) for stratum in STRATA]
        cells.append("{:,} of {:,}".format(*figures["tried"]))
        cells.append(f"{figures['jaccard']:.2f}" if "jaccard" in figures else "")
    else:
        cells += [""] * 6
    return f"| {task} | {method} | {' | '.join(cells)} |"


def percentage(pair: Sequence[int]) -> str:
    """How many of how many, and the share."""
    return f"{pair[0] / pair[1]:.1%} of {pair[1]:,}" if pair[1] else ""


def readme(kept: dict[str, Any]) -> str:
    """README's table, and what there is to say of it."""
    tasks, sides = kept["tasks"], (DEVELOPMENT, TEST)
    lines = ["| method | rows | development | test |", "|---|--:|--:|--:|"]
    for method in BRIEFLY:
        parts = [pooled(tasks, names, method) for names in sides]
        shares = [f"{part['recall']:.2f}" for part in parts]
        lines.append(f"| {method} | {parts[0]['rows']:,.0f} | {' | '.join(shares)} |")
    test = pooled(tasks, TEST, "caploc")
    shares = [f"{100 * test[stratum][0] / test[stratum][1]:.0f}" for stratum in STRATA]
    told = (
        f"On test tasks 95 % intervals of named heads hold {shares[0]} %, of five points and more",
        f"{shares[1]} %.",
    )
    return "\n".join([*lines, "", *told])


def write(kept: dict[str, Any]) -> None:
    """The page, and README's part between its two marks."""
    OUT.write_text(json.dumps(kept, indent=1) + "\n")
    OUT.with_suffix(".md").write_text(page(kept))
    text = README.read_text()
    begin, end = (text.index(mark) for mark in MARKS)
    README.write_text(f"{text[:begin]}{MARKS[0]}\n{readme(kept)}\n{text[end:]}")


def main() -> None:
    """Draw, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--page", action="store_true", help="draw nothing")
    arguments = parser.parse_args()
    if not arguments.page:
        OUT.write_text(json.dumps({"draws": arguments.draws, "tasks": draw(arguments.draws)}))
    write(json.loads(OUT.read_text()))


if __name__ == "__main__":
    main()
