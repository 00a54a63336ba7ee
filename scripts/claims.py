"""Hold what the heads paper claims against the stored results of pretrained models.

    python scripts/claims.py

Writes the tables of docs/results/claims.md from docs/results/raw and bench/census. The words around
them are written by hand; run it after `scripts/results.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from pyarrow import parquet

import results as pages
from caploc.heads import HeadGrid
from caploc.report.sentence import HeadlineVerdict, check_of, other_scores
from caploc.report.wording import percent
from caploc.result import AnswerPair, Result, TaskComparison

PAGE = pages.PAGE.with_name("claims.md")
CENSUS = pages.ROOT / "bench" / "census"
DRAWS = 20_000  # sets of random heads: a p of .05 is right to .0015
STRONGEST = 10  # heads of a census that are asked for a common group
SHOWN = 60  # characters of a text
MILLIONS = {"smollm2": 135, "gemma3-270m": 268, "qwen2.5-coder-1.5b": 1_544}  # of parameters
SHARED_BY = 3  # tasks that must name a head before it is listed as one of several tasks'
CLEAN = {HeadlineVerdict.SPECIFIC, HeadlineVerdict.UNSURE}
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Loss:
    """The share of its intact score that a task loses, 1 being all of it, and whether for sure."""

    share: float
    least: float  # the lower end of its 95 % interval
    sure: bool

    @classmethod
    def of(cls, scores: TaskComparison) -> "Loss | None":
        """Read it from a task's scores, or return None where they are not known."""
        change, intact = scores.change, scores.intact
        if change is None or change.outcome is None or intact is None or not intact.score:
            return None
        return cls.scaled(change.outcome, change.high, change.verdict, intact.score)

    @classmethod
    def scaled(cls, outcome: float, high: float | None, verdict: str | None, by: float) -> "Loss":
        """Divide a change of the score by the intact score."""
        end = outcome if high is None else high
        return cls(-outcome / by, max(-end / by, 0.0), verdict == "changed" and outcome < 0)


def own_loss(result: Result) -> Loss | None:
    """What the named heads take from the study's own task, on held-out examples."""
    held_out = result.validation.held_out
    if held_out is None or held_out.change is None or not held_out.intact:
        return None
    change = held_out.change
    if change.outcome is None:
        return None
    return Loss.scaled(change.outcome, change.high, change.verdict, held_out.intact)


def random_loss(result: Result) -> float | None:
    """The share that as many random heads of the same layers take, a mean over draws."""
    held_out, controls = result.validation.held_out, result.validation.controls
    if held_out is None or controls is None or controls.mean is None or not held_out.intact:
        return None
    return 1 - controls.mean / held_out.intact


def losses(result: Result, *, twins: bool) -> list[Loss]:
    """What the twins, or all other tasks, lose."""
    found = (Loss.of(each) for each in other_scores(result, twins=twins))
    return [each for each in found if each is not None]


def middle(shares: Sequence[float]) -> str:
    """Write the median of shares and the range they have."""
    if not shares:
        return "–"
    median = percent(float(np.median(shares)))
    return f"{median} ({percent(min(shares))} to {percent(max(shares))})"


def groups(results: Sequence[Result]) -> Iterator[tuple[str, str, list[Result]]]:
    """Sort results by model and by what was looked for."""
    for model in dict.fromkeys(result.model.name for result in results):
        for goal in ("heads", "set", "specific"):
            some = [
                result
                for result in results
                if (result.model.name, pages.goal_of(result)) == (model, goal)
            ]
            if some:
                yield str(model), goal, some


def by_group(
    results: Sequence[Result], headings: Sequence[str], cells: Callable[[list[Result]], list[str]]
) -> Iterator[str]:
    """Write a line for every model and goal, of the studies that named heads."""
    rows = []
    for model, goal, asked in groups(results):
        named = [result for result in asked if result.top]
        rows.append([model, goal, f"{len(named)} of {len(asked)}", *cells(named)])
    return pages.table(["model", "looked for", "tasks with heads named", *headings], rows)


def few_heads(some: list[Result]) -> list[str]:
    """Tell how much of a task a handful of heads takes."""
    own = [loss for result in some if (loss := own_loss(result))]
    random = [share for result in some if (share := random_loss(result)) is not None]
    sizes = [len(result.top) for result in some]
    half = sum(loss.least >= 0.5 for loss in own)
    lost = middle([loss.share for loss in own])
    return [
        f"{np.median(sizes):.0f}" if sizes else "–",
        lost,
        f"{half} of {len(own)}",
        middle(random),
    ]


def specificity(some: list[Result]) -> list[str]:
    """Tell what other tasks lose by the same heads."""
    others = [found for result in some if (found := losses(result, twins=False))]
    sure = [sum(loss.sure for loss in each) / len(each) for each in others]
    most = [max(loss.share for loss in each) for each in others]
    verdicts = Counter(pages.WORDS[check_of(result).verdict] for result in some)
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    return [middle(sure), middle(most), told or "–"]


def twins(some: list[Result]) -> list[str]:
    """Tell what the same task in other words loses by the same heads."""
    pairs = [
        (own, twin[0])
        for result in some
        if (own := own_loss(result)) and (twin := losses(result, twins=True))
    ]
    sure = sum(twin.sure for _, twin in pairs)
    less = sum(twin.share < own.share / 2 for own, twin in pairs)
    return [f"{len(pairs)}", f"{sure}", middle([twin.share for _, twin in pairs]), f"{less}"]


def larger_models(results: Sequence[Result]) -> Iterator[str]:
    """Write what sets take from the tasks that every model was searched on, smallest model first.

    Where no set was named, nothing is lost.
    """
    headings = ["model", "parameters", "heads", "tasks of all", "with a set named",
                "the task loses, 0 where none is", "at least half of it, for sure"]  # fmt: skip
    sets = {
        model: {pages.called(result.task.name): result for result in asked}
        for model, goal, asked in groups(results)
        if goal == "set"
    }
    common = set.intersection(*(set(tasks) for tasks in sets.values()))
    rows = []
    for model in sorted(sets, key=lambda model: MILLIONS[model]):
        mine = [result for task, result in sets[model].items() if task in common]
        lost = [own_loss(result) if result.top else None for result in mine]
        half = sum(loss is not None and loss.least >= 0.5 for loss in lost)
        shares = [0.0 if loss is None else loss.share for loss in lost]
        size, named = sum(mine[0].grid.heads or ()), sum(bool(each.top) for each in mine)
        told = [f"{MILLIONS[model]:,} M", f"{size}", f"{len(mine)}", f"{named}"]
        rows.append([model, *told, middle(shares), f"{half}"])
    return pages.table(headings, rows)


def clean_cuts(results: Sequence[Result]) -> Iterator[str]:
    """Write for how many tasks a search that spares others names a set, and what it takes."""
    headings = ["model", "tasks searched", "no set keeps the price",
                "specific, or may be", "of these, the task loses"]  # fmt: skip
    rows = []
    for model in dict.fromkeys(str(result.model.name) for result in results):
        asked = [r for r in results if r.model.name == model and pages.goal_of(r) == "specific"]
        clean = [result for result in asked if check_of(result).verdict in CLEAN]
        lost = ", ".join(
            f"{pages.called(result.task.name)} {percent(loss.share)}"
            for result in clean
            if (loss := own_loss(result))
        )
        if asked:
            none = sum(not result.top for result in asked)
            rows.append([model, f"{len(asked)}", f"{none}", f"{len(clean)}", lost or "–"])
    return pages.table(headings, rows)


def common_heads(results: Sequence[Result]) -> Iterator[str]:
    """Write the heads that several tasks name or break by, most tasks first."""
    headings = ["model", "head", "named for", "breaks alone", "of tasks"]
    rows = []
    for model in dict.fromkeys(str(result.model.name) for result in results):
        named, breaking = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        mine = [r for r in results if r.model.name == model and pages.goal_of(r) != "specific"]
        for result in mine:
            for head in result.top:
                named[head].add(pages.called(result.task.name))
            for each in result.heads:
                if each.critical and each.head:
                    breaking[each.head].add(pages.called(result.task.name))
        tasks = {pages.called(result.task.name) for result in mine}
        every = {head: named[head] | breaking[head] for head in {*named, *breaking}}
        for head in sorted(every, key=lambda head: (-len(every[head]), head)):
            if len(every[head]) >= SHARED_BY:
                told = (", ".join(sorted(each[head])) or "–" for each in (named, breaking))
                rows.append([model, head, *told, f"{len(tasks)}"])
    return pages.table(headings, rows)


def group_of_columns(grid: HeadGrid) -> np.ndarray:
    """Number the key-value group of every column."""
    number = {column: group for group, columns in enumerate(grid.groups) for column in columns}
    return np.array([number[column] for column in range(grid.size)])


def pairs_by_chance(
    grid: HeadGrid, sets: Sequence[Sequence[int]], *, by_layer: bool
) -> tuple[float, float]:
    """Deal heads their places anew and return the mean number of pairs in a group, and a p.

    Every deal is one for all sets, so that heads which several sets have in common stay in common;
    with `by_layer` heads stay in their layers. The p is one-sided, for as many pairs as there are
    or more, with the true places counted among the DRAWS deals.
    """
    group, order = group_of_columns(grid), np.random.default_rng(0).random((DRAWS, grid.size))
    if by_layer:
        order = order + np.repeat(np.arange(grid.layers), grid.per_layer)
    dealt = group[order.argsort(axis=1)]
    pairs = [pair for each in sets for pair in combinations(each, 2)]
    seen = sum(int(group[a] == group[b]) for a, b in pairs)
    counts = sum((dealt[:, a] == dealt[:, b] for a, b in pairs), np.zeros(DRAWS))
    return float(counts.mean()), float((1 + (counts >= seen).sum()) / (1 + DRAWS))


def key_value_groups(results: Sequence[Result]) -> Iterator[str]:
    """Write whether heads that matter read the same keys and values more often than random ones."""
    headings = ["model", "heads", "sets", "pairs in a group", "expected",
                "p", "expected, same layers", "p"]  # fmt: skip
    rows = []
    for model, grid in grids(results).items():
        if len(grid.groups) == grid.layers:
            note = ["one group a layer", *[""] * (len(headings) - 2)]
            rows.append([model, *note])
            continue
        named = {
            tuple(np.flatnonzero(grid.mask(result.top)).tolist())
            for result in results
            if result.model.name == model and len(result.top) > 1
        }
        strongest = [census_strongest(path) for path in sorted(CENSUS.glob(f"{model}-*.parquet"))]
        for told, sets in (("named", sorted(named)), (f"strongest {STRONGEST} alone", strongest)):
            if not sets:
                continue
            group = group_of_columns(grid)
            seen = sum(group[a] == group[b] for each in sets for a, b in combinations(each, 2))
            chance = [pairs_by_chance(grid, sets, by_layer=by) for by in (False, True)]
            cells = [cell for mean, p in chance for cell in (f"{mean:.1f}", _p(p))]
            rows.append([model, told, f"{len(sets)}", f"{seen}", *cells])
    return pages.table(headings, rows)


def _p(p: float) -> str:
    """Write a p, or that it is below what draws can tell."""
    return "< .001" if p < 0.001 else f"{p:.3f}"


def grids(results: Sequence[Result]) -> dict[str, HeadGrid]:
    """Read each model's grid, with the query heads that share keys and values."""
    return {
        str(result.model.name): HeadGrid(tuple(result.grid.heads), tuple(result.grid.group_sizes))
        for result in results
        if result.grid.heads and result.grid.group_sizes
    }


def census_strongest(path: Path) -> tuple[int, ...]:
    """Read the columns of the heads that cost most alone, of a model and task asked in full."""
    rows = parquet.read_table(path).to_pandas()
    alone = rows[rows["part"] == "alone"]
    column = alone["knocked_out"].map(lambda columns: columns[0])
    score = alone.groupby(column)["outcome"].mean()
    return tuple(sorted(score.nsmallest(STRONGEST).index.tolist()))


def failures(results: Sequence[Result]) -> Iterator[str]:
    """Write what answers become without the set of each task, with one of them as it stands."""
    headings = ["model", "task", "most answers become", "asked last", "right",
                "with all heads", "without the set"]  # fmt: skip
    rows = []
    for result in results:
        told = result.validation.task and result.validation.task.failures
        if pages.goal_of(result) != "set" or not told or not result.top:
            continue
        wrong = {
            name: share
            for name, share in told.categories.items()
            if name not in ("right", "unchanged")
        }
        if not wrong:
            continue
        kind = max(wrong, key=lambda name: wrong[name].share or 0.0)
        sample = next(
            (each for each in told.samples.get(kind, []) if each.intact != each.knocked_out), None
        )
        if sample:
            share = percent(wrong[kind].share or 0.0)
            rows.append(
                [
                    str(result.model.name),
                    pages.called(result.task.name),
                    f"{kind}, {share}",
                    *quote(sample),
                ]
            )
    return pages.table(headings, rows)


def quote(sample: AnswerPair) -> list[str]:
    """Write an example as cells: the end of its prompt, the right answer, and both answers."""
    block = (sample.prompt or "").rstrip().rsplit("\n\n", 1)[-1]
    last = block if len(block) <= SHOWN else block.splitlines()[-1]
    return [_cell(text) for text in (last, sample.gold, sample.intact, sample.knocked_out)]


def _cell(text: str | None) -> str:
    """Show a text of a model in a table of Markdown, as code, on one line."""
    shown = " / ".join((text or "").strip().splitlines()).replace("|", "¦").replace("`", "'")
    return f"`{shown[:SHOWN]}`" if shown else "(nothing)"


TABLES: Mapping[str, Callable[[Sequence[Result]], Iterator[str]]] = {
    "few heads": partial(
        by_group,
        cells=few_heads,
        headings=["heads, median", "the task loses", "at least half of it, for sure",
                  "random heads take"],
    ),
    "larger models": larger_models,
    "specificity": partial(
        by_group,
        cells=specificity,
        headings=["other tasks that lose for sure", "most hurt of them loses", "verdicts"],
    ),
    "clean cuts": clean_cuts,
    "common heads": common_heads,
    "twins": partial(
        by_group,
        cells=twins,
        headings=["twins", "lose for sure", "the twin loses",
                  "twins that lose less than half as large a share"],
    ),
    "key-value groups": key_value_groups,
    "failures": failures,
}  # fmt: skip


def fill(page: str, results: Sequence[Result]) -> str:
    """Write every table between the marks that carry its name, and leave the words as they are."""
    for name, write in TABLES.items():
        begin, end = f"<!-- {name}: made by scripts/claims.py -->", f"<!-- end of {name} -->"
        before, rest = page.split(begin)
        table = "\n".join(write(results))
        page = f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end, 1)[1]}"
    return page


def main() -> None:
    """Write the page's tables."""
    stored = list(pages.finished(Path("nowhere")).values())
    PAGE.write_text(fill(PAGE.read_text(), stored))


if __name__ == "__main__":
    main()
