"""The page over several runs: a row for each, and their heads side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path
from typing import Any
from urllib.parse import quote

from caploc.heads import Head
from caploc.report import colours
from caploc.report.headmap import HeadMap, by_head, head_map
from caploc.report.method import format_duration
from caploc.report.pictures import FIGURES, write_matrices
from caploc.report.reading import called, finite_numbers, inline, name_list, visible
from caploc.report.sentence import HeadlineVerdict, check_of
from caploc.report.sidebyside import comparison_headline, comparison_parts
from caploc.report.templates import COMPARE, write_page
from caploc.report.units import SPACE, Unit, outcome_unit, unit_of_other
from caploc.result import HeadEffect, Result

VERDICTS = {
    HeadlineVerdict.NO_HEADS: "no head found",
    HeadlineVerdict.NOT_CHECKED: "not checked",
    HeadlineVerdict.UNHURT: "not hurt",
    HeadlineVerdict.NOISE: "within the sampling error",
    HeadlineVerdict.SLIGHT: "hardly touched",
    HeadlineVerdict.LIKE_RANDOM: "no more than random heads",
    HeadlineVerdict.CARRIED: "carried by these heads",
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """One row of the table of runs."""

    link: str
    task: str
    model: str
    method: str
    intact: str
    knocked_out: str
    verdict: str
    general: list[str]  # each other task, before and after
    top: str
    rows: str
    time: str
    map: HeadMap


@dataclass(frozen=True, slots=True)
class Shaded:
    """One cell of the matrix: the effect of a head on a task."""

    shade: str
    text: str
    note: str
    top: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """Runs of one model against all heads that are among the top of any of them."""

    model: str
    heads: list[Head]
    rows: list[tuple[str, list[Shaded]]]


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run to be held against others: a name of its own, its folder and its result."""

    name: str
    folder: Path
    result: Result

    @property
    def weights(self) -> tuple[str, str | None]:
        """What two runs of one model have in common: heads of others are not the same heads."""
        return self.result.model.name, self.result.model.fingerprint

    @property
    def top_heads(self) -> list[Head]:
        """The heads that the run names, where it has an effect of them."""
        return [entry.place for entry in self.result.heads if entry.head in self.result.top]


def write_comparison(
    folder: Path, compared: Sequence[ComparedRun], told: Mapping[str, Any]
) -> Path:
    """Write `folder/compare.html`, and the matrix of tasks and heads as figures.

    `told` is the content of compare.json; its runs are those of `compared`, in their order.

    Returns:
        The path of the page.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    runs = [_run(folder, one) for one in compared]
    results = [one.result for one in compared]
    models = list(dict.fromkeys(one.weights for one in compared))
    chosen = [[one.result for one in compared if one.weights == key] for key in models]
    figures = write_matrices(folder / FIGURES, told)
    return write_page(
        folder,
        "overview.html.j2",
        name=COMPARE,
        headline=comparison_headline(told),
        runs=runs,
        matrices=[_matrix(members) for members in chosen],
        several_models=len(models) > 1,
        held_out=any(check_of(result).held_out for result in results),
        parts=comparison_parts(told, {one.name: one.result for one in compared}),
        figures=figures,
        command=visible(told["command"]),
    )


def _run(folder: Path, one: ComparedRun) -> RunRow:
    result = one.result
    check = check_of(result)
    way = relpath(one.folder, folder).replace("\\", "/")
    rows = result.cost.rows
    return RunRow(
        # The leading dot keeps a folder named like `javascript:` from being taken for a scheme.
        link=f"./{quote(way, errors='replace')}/report.html",
        task=check.task,
        model=called(result.model.name),
        method=inline(result.method.name),
        intact=check.unit.score(check.intact),
        knocked_out=check.unit.score(check.knocked_out),
        verdict=VERDICTS[check.verdict],
        general=_general(result, check.unit),
        top=name_list(check.top) or "none",
        rows="not recorded" if rows is None else f"{rows:,.0f}",
        time=format_duration(result.cost.seconds) or "not recorded",
        map=head_map(result),
    )


def _general(result: Result, main: Unit) -> list[str]:
    texts = []
    for entry in result.validation.other_tasks:
        scores = map(unit_of_other(entry, main).score, entry.scores)
        texts.append(f"{called(entry.name)}: {f'{SPACE}→{SPACE}'.join(scores)}")
    return texts


def _matrix(results: Sequence[Result]) -> Matrix:
    names = {name for result in results for name in result.top}
    heads = sorted(
        head for result in results for head, entry in by_head(result).items() if entry.head in names
    )
    columns = list(dict.fromkeys(heads))
    several = len({result.method.name for result in results}) > 1
    return Matrix(
        model=called(results[0].model.name),
        heads=columns,
        rows=[(_label(result, several), _shades(result, columns)) for result in results],
    )


def _label(result: Result, several_methods: bool) -> str:
    task = called(result.task.name)
    return f"{task} · {inline(result.method.name)}" if several_methods else task


def _shades(result: Result, heads: Sequence[Head]) -> list[Shaded]:
    """Shade the heads by their effect, relative to the largest of the whole run."""
    unit, entries = outcome_unit(result), by_head(result)
    values = finite_numbers(entry.effect for entry in entries.values())
    limit = max(map(abs, values), default=0.0)
    top = set(result.top)
    return [_shaded(head, entries.get(head), unit, limit, str(head) in top) for head in heads]


def _shaded(head: Head, entry: HeadEffect | None, unit: Unit, limit: float, top: bool) -> Shaded:
    effect = entry.effect if entry else None
    if effect is None:
        return Shaded("u", "–", f"{head}: not measured", top)
    shade = colours.name(colours.step(unit.harm(effect), limit))
    return Shaded(shade, unit.short_effect(effect, limit), f"{head}: {unit.effect(effect)}", top)
