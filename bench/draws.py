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
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

import figures
from caploc import designs
from caploc.options import Settings
from caploc.recovery import Estimate, Measurements
from caploc.recovery.estimate import right_of
from caploc.search import METHODS, Found, Plan, Problem, Search
from caploc.search.plan import ScanRecord, intact_plan
from caploc.search.scan import Scan, Sizes, named, split, try_heads
from caploc.search.settings import KNOBS
from driving import drive

SCAN = import_module("caploc.search.scan")  # the package has a function of that name
FILES = Path(__file__).parent / "census"
OUT = Path(__file__).parents[1] / "docs" / "bench" / "search.json"
JOINT = OUT.with_name("joint.json")  # of bench/joint.py
README = Path(__file__).parents[1] / "README.md"
DEVELOPMENT = (  # what the search was built on
    "smollm2-past",
    "smollm2-upper",
    "smollm2-digits",
    "smollm2-sentiment",
)
TEST = (
    "smollm2-plural",
    "smollm2-third_person",
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
PRICED = "smollm2-"  # tasks whose rows have a price: those of small models cost next to nothing
MARKS = "<!--bench/draws.py-->", "<!--end-->"  # of README's part
ASKED = 64  # examples whose gradients a method reads
PASSES = {"gradient": 3, "path": 15, "drop": 61}  # forward, for an example: `drop` of 30 layers
Figures = dict[str, Any]
Counts = dict[str, int]
STRATA = ("named", "five points", "all")
TRIALS, SEARCHES = (60, 100, 200, 400), 30  # examples of the trial; searches of each
RESAMPLES = 20  # of each search, in place of 100: over many searches the mean overlap is the same


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
    """One draw: recall; of the default search also which intervals hold, by stratum.

    `asked` counts rows by kind; of gradients, examples by way. `strong` counts the heads of 30
    points and more that were tried, and all there are; `told` is the Jaccard index that it tells of
    its named heads.
    """

    recall: float
    asked: Counts
    first: list[int]
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    strong: tuple[int, int] = (0, 0)
    chosen: list[int] = field(default_factory=list)
    told: float = float("nan")

    @property
    def rows(self) -> int:
        """Passes forward, a backward as two; a row of a search is one."""
        return sum(count * PASSES.get(kind, 1) for kind, count in self.asked.items())


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
        return judge(done.found, done.asked, stored)


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
        asked = {self.way: self.examples}
        if not self.tried:
            return Run(stored.recall(order), asked, order[:TOP])
        problem = Problem(len(values), range(NUMBERED), Settings(seed=seed), signal=SIGNAL)
        done = drive(try_first(problem, order), Answers(stored, seed))
        return judge(done.found, asked | done.asked, stored)


def judge(found: Found, asked: Counts, stored: Stored) -> Run:
    """What a search found, held against the truth."""
    recall = stored.recall(found.ranking)
    if found.stages is None:
        return Run(recall, asked, found.ranking[:TOP])
    strong = np.flatnonzero(stored.truth <= STRONG)
    tried = int(np.isin(strong, found.stages.tried).sum())
    stability = found.stages.stability
    return Run(
        recall,
        asked,
        found.ranking[:TOP],
        held(found, stored.truth),
        (tried, len(strong)),
        found.chosen,
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
    estimate = Estimate("order", -scan.mean_change, unknown, unknown, unknown)
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
    found: Figures = {
        "recall": round(float(np.mean(recalls)), 4),
        "error": round(float(np.std(recalls, ddof=1)) / len(runs) ** 0.5, 4),
        "rows": round(float(np.mean([run.rows for run in runs]))),
        "asked": {
            kind: round(float(np.mean([run.asked.get(kind, 0) for run in runs])), 1)
            for kind in sorted({kind for run in runs for kind in run.asked})
        },
    }
    if not runs[0].held:
        return found
    strata = {s: np.sum([run.held[s] for run in runs], axis=0).tolist() for s in STRATA}
    found |= strata | {
        "tried": np.sum([run.strong for run in runs], axis=0).tolist(),
        "heads named": round(float(np.mean([len(run.chosen) for run in runs])), 2),
    }
    told = [run.told for run in runs if not np.isnan(run.told)]  # not where nothing is named
    if told:
        pairs = combinations([{*run.chosen} for run in runs], 2)
        found["told"] = round(float(np.mean(told)), 3)
        found["true"] = round(float(np.mean([jaccard(*pair) for pair in pairs])), 3)
    return found


def jaccard(one: set[int], other: set[int]) -> float:
    """The share that two sets have in common; two empty ones are alike."""
    return len(one & other) / len(one | other) if one | other else 1.0


def settle(name: str) -> dict[str, Figures]:
    """What the default search finds on a task with trials of several sizes."""
    stored, found = Stored.read(name), {}
    for trial in TRIALS:
        resize(trial)
        runs = [Method(METHODS["scan"].search).run(stored, seed) for seed in range(SEARCHES)]
        found[str(trial)] = summary(runs)
    return found


def resize(trial: int = KNOBS.trial) -> None:
    """Let searches have trials of so many examples."""
    vars(SCAN)["KNOBS"] = replace(KNOBS, trial=trial, resamples=RESAMPLES)


def draw(draws: int) -> dict[str, dict[str, Figures]]:
    """What each method finds on each task that is stored."""
    found: dict[str, dict[str, Figures]] = {}
    resize()
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
draws a cell, no model runs. *Development* are the tasks that the search was built on; *test* tasks
are other word tasks of SmolLM2 and three small models that are always right (`bench/small.py`).
**Sentiment was a test task** until the search was changed for it. It has choices between two words:
there some heads tilt the model to one word, and take from one half of the examples what they give
to the other. Ranked by the mean fall of log-odds, recall on it was .80; if gains count as nothing,
.89; as they count now, like falls, {sentiment:.2f}. No other task changed by more than .01. Before
that test tasks were drawn from three times, and the copying model was trained anew in between, as
no head of it was needed. A draw's examples are the stored ones, numbered anew with replacement.

*Recall* is of the five heads most needed alone; those within two standard errors of the fifth may
stand for each other. Where no head costs five points ({idle}) nothing was
named in any draw, and *together* leaves the task out. Intervals are 95 %; strong heads cost 30
points or more.
*Jaccard* is the overlap of named heads: as a run tells it, of those named on its resampled
examples, and of those that two draws truly name.

Gradients ({asked} examples of those whose signals are stored) rank heads by what they say of the
log-odds: *attribution patching* by the derivative by each head's gate, *gradients dropped* by its
mean size with one layer's gradients dropped at a time (half the examples, and on development tasks
alone, as it takes 61 passes an example), *integrated gradients* by the mean derivative on the way
from closed gates to open ones. *Then trial*: their first fifteen heads go through the default
search's trial. A pass forward counts as a row, one backward as two (`bench/attributions.py`).

*CPU s*: the mean over SmolLM2's tasks, by what a row of each kind took on one core (`bench/joint.py
--methods rates`; of gradients, an example), in bfloat16 on antonym and capital;
timed once, on a busy machine.
"""


TOGETHER = """\
## Five heads together

Run on the models by `bench/joint.py`. Figures are the share of the intact score that a method's
first five heads take together, on examples that it did not see: what sets, css, csb and greedy look
for. Of the methods above those of the first five draws are judged, on one set of examples. css and
csb ask 100 masks of 5 % of the heads on 25 examples, greedy 12 right answers in every round (40 of
small models). Five runs a cell of small models, {seeds} of SmolLM2.

A set takes .95 or more of what greedy's and one-shot's heads take, on all tasks but sentiment.
There heads tilt the model to either word: of the five that cost most alone some undo what others
do. The first set of each task was grown while the scan counted falls alone; small-choice's draws
are from then too.
"""
STABILITY = """
## Would other examples name the same heads?

Jaccard index of the heads that the default search names, with trials of several sizes: as a run
tells it / of two searches on examples drawn independently; rows. {searches} searches a cell. How a
run tells it was chosen on these tasks, test tasks among them ([three ways](../experiments.md)).

- At the default size it tells what is so within .09, and *unstable*, below .8, is set on average in
  the six of nine tasks where it is due and in no other. With longer trials it is rather too low.
- Rows settle names slowly where many heads do about as much: sentiment stays below .6.

"""
SURE_OF = """\
- **Recall** of the five heads most needed alone: {caploc, development} on tasks it was built on,
  {caploc, test} on others, with {rows} rows; without a trial
  {one-shot by log-odds, development}, {one-shot by log-odds, test}
  ([all figures; how often intervals hold](docs/bench/search.md)).
- **Together** these five take {caploc, together} of the score on {ran} unseen tasks, `--goal set`
  {set, together}, greedy {greedy, together}, css {css, together}.
- **Ties**: {fewest} to {most} of a task's five are surely first.
- **Other examples name other heads**: two runs share {least} to 1.00 (mean {mean});
  *unstable* means below .8.
- **Models**: SmolLM2 and three small ones. The knockout is proved on each model's weights. Read
  what it [cannot see](docs/how_it_works.md#what-it-cannot-see)."""
RUN = {"set": "caploc, `--goal set`", "css": "css", "csb": "csb", "greedy": "greedy"}


def page(kept: dict[str, Any]) -> str:
    """All figures, task by task and together."""
    tasks = kept["tasks"]
    idle = ", ".join(name for name in tasks if not tasks[name]["truth"]["needed"])
    sentiment = tasks["smollm2-sentiment"]["caploc"]["recall"]
    about = ABOUT.format(draws=kept["draws"], idle=idle, asked=ASKED, sentiment=sentiment)
    lines, joint = [about], figures.read(JOINT)
    for title, names in (("Development", DEVELOPMENT), ("Test", TEST)):
        methods = list(tasks[names[0]])[1:]
        lines += [f"## {title}\n", *recalls(tasks, names, methods, joint), ""]
        cells = []
        for method in methods:
            if "named" not in tasks[names[0]][method]:
                continue
            if method.startswith("caploc"):  # of the others the JSON file has the tasks
                cells += [row(name, method, tasks[name][method]) for name in names]
            cells.append(row("**together**", method, pooled(tasks, names, method)))
        held = [f"intervals that hold: {each}" for each in STRATA]
        headings = ["task", "method", "heads named", *held, "strong heads tried"]
        lines += figures.table([*headings, "Jaccard: told, true"], cells, texts=2)
        surely = "; ".join(f"{name} {tasks[name]['truth']['surely']}" for name in names)
        lines.append(f"\nHeads that are surely among the first five, ties apart: {surely}.\n")
    lines += [STABILITY.format(searches=SEARCHES), *stability(kept["sizes"])]
    smollm2 = [runs for task, runs in joint.items() if task.startswith("smollm2")]
    counts = [len(runs[method]) for runs in smollm2 for method in RUN if method in runs]
    seeds = " to ".join(dict.fromkeys([str(min(counts)), str(max(counts))]))
    about = TOGETHER.format(seeds=seeds)
    return "\n".join([*lines, about, *together(joint)]) + "\n"


def stability(sizes: dict[str, dict[str, Figures]]) -> list[str]:
    """What runs tell of the overlap of named heads, and what it is: a line a task."""
    rows = [
        [task, *(f"{c['told']:.2f} / {c['true']:.2f} ({c['rows']:,})" for c in each.values())]
        for task, each in sizes.items()
    ]
    return [*figures.table(["task", *(f"trial of {trial}" for trial in TRIALS)], rows), ""]


def together(joint: dict[str, Any]) -> list[str]:
    """What the five heads of every method take together: a line a method, a column a task."""
    tasks = [task for task in (*TEST, *DEVELOPMENT) if "drawn" in joint.get(task, {})]
    lines = []
    for method in (*RUN, *joint[tasks[0]]["drawn"]):
        runs = {task: joint_runs(joint[task], method) for task in tasks}
        ran = [(task, run["rows"]) for task, each in runs.items() for run in each if "rows" in run]
        rows = [sum(asked.values()) for _, asked in ran]
        cells = [
            f"{np.mean([run['damage'] for run in each]):.2f}" if each else ""
            for each in runs.values()
        ]
        asked = f"{np.mean(rows):,.0f}" if rows else ""
        lines.append([RUN.get(method, method), asked, seconds(ran, joint), *cells])
    return figures.table(["method", "rows", "CPU s", *tasks], lines)


def joint_runs(task: dict[str, Any], method: str) -> list[Figures]:
    """A method's runs on a task, or the draws that were judged."""
    return list((task.get(method) or task.get("drawn", {}).get(method, {})).values())


def pooled(tasks: dict[str, Any], names: Sequence[str], method: str) -> Figures:
    """Tasks that need heads together: a mean; of intervals and heads, their sum."""
    needing = [
        tasks[name][method]
        for name in names
        if tasks[name]["truth"]["needed"] and method in tasks[name]
    ]
    found: Figures = {
        name: float(np.mean([each[name] for each in needing]))
        for name in ("recall", "rows", "heads named", "told", "true")
        if name in needing[0]
    }
    errors = [each["error"] for each in needing]
    found["error"] = float(np.linalg.norm(errors)) / len(errors)
    for name in (*STRATA, "tried"):
        if name in needing[0]:
            found[name] = np.sum([each[name] for each in needing], axis=0).tolist()
    return found


def recalls(
    tasks: dict[str, Any], names: Sequence[str], methods: Sequence[str], joint: dict[str, Any]
) -> list[str]:
    """The share of the five most needed heads that is found: a line a method, a column a task."""
    lines = []
    for method in methods:
        whole = pooled(tasks, names, method)
        cells = [
            f"{tasks[name][method]['recall']:.2f}" if method in tasks[name] else ""
            for name in names
        ]
        told = f"{whole['recall']:.2f} ± {whole['error']:.2f}"
        ran = [(name, tasks[name][method]["asked"]) for name in names if method in tasks[name]]
        lines.append([method, f"{whole['rows']:,.0f}", seconds(ran, joint), *cells, told])
    return figures.table(["recall", "rows", "CPU s", *names, "together"], lines)


def seconds(runs: Sequence[tuple[str, dict[str, float]]], joint: dict[str, Any]) -> str:
    """CPU seconds of runs on tasks whose kinds of rows all have a price: their mean."""
    prices = {task: run.get("rates", {}) | run.get("passes", {}) for task, run in joint.items()}
    taken = [
        sum(count * prices[task][kind] for kind, count in asked.items())
        for task, asked in runs
        if task.startswith(PRICED) and prices[task].keys() >= asked.keys()
    ]
    return f"{np.mean(taken):,.0f}" if taken else ""


def row(task: str, method: str, found: Figures) -> list[str]:
    """The cells of a line of the page."""
    return [
        task,
        method,
        f"{found['heads named']:.1f}",
        *(percentage(found[stratum]) for stratum in STRATA),
        "{:,} of {:,}".format(*found["tried"]),
        "{told:.2f}, {true:.2f}".format_map(found) if "told" in found else "",
    ]


def percentage(pair: Sequence[int]) -> str:
    """How many of how many, and the share."""
    return f"{pair[0] / pair[1]:.1%} of {pair[1]:,}" if pair[1] else ""


def readme(kept: dict[str, Any]) -> str:
    """What README says of how sure findings are."""
    tasks, joint = kept["tasks"], figures.read(JOINT)
    needing = [task for task in TEST if tasks[task]["truth"]["needed"]]
    surely = [tasks[task]["truth"]["surely"] for task in needing]
    found = {
        f"{method}, {side}": f"{pooled(tasks, names, method)['recall']:.2f}"
        for method in ("caploc", "one-shot by log-odds")
        for side, names in (("development", DEVELOPMENT), ("test", TEST))
    }
    ran = [task for task in needing if joint[task].get("greedy")]
    together = {
        method: np.mean([np.mean([r["damage"] for r in joint_runs(joint[t], method)]) for t in ran])
        for method in (*RUN, "caploc", "one-shot by log-odds")
    }
    overlap = [tasks[task]["caploc"]["true"] for task in (*DEVELOPMENT, *needing)]
    return SURE_OF.format_map(
        found
        | {f"{method}, together": f"{share:.2f}" for method, share in together.items()}
        | {
            "rows": f"{pooled(tasks, DEVELOPMENT, 'caploc')['rows']:,.0f}",
            "ran": len(ran),
            "fewest": min(surely),
            "most": max(surely),
            "least": f"{min(overlap):.2f}",
            "mean": f"{np.mean(overlap):.2f}",
        }
    )


def write(kept: dict[str, Any]) -> None:
    """The page, and README's part between its two marks."""
    figures.write(OUT, kept)
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
        tasks = draw(arguments.draws)
        sizes = {name: settle(name) for name in tasks if tasks[name]["truth"]["needed"]}
        OUT.write_text(json.dumps({"draws": arguments.draws, "tasks": tasks, "sizes": sizes}))
    write(figures.read(OUT))


if __name__ == "__main__":
    main()
