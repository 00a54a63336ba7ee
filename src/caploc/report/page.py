"""The page of one run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caploc.contents import read_contents
from caploc.folder import ANSWERS, CURVE, INTERACTIONS, RESULT, refuse_links
from caploc.report import colours
from caploc.report.advice import next_steps
from caploc.report.answers import Status, answer_rows
from caploc.report.contrasts import contrasts_of
from caploc.report.curvetable import curve_table
from caploc.report.headmap import head_map
from caploc.report.headtable import head_table
from caploc.report.members import describe_estimand, estimand_of, member_rows
from caploc.report.method import facts, method_paragraphs, versions
from caploc.report.pictures import FIGURES, drawn_figures, write_figures
from caploc.report.plots import draw_curve, draw_effects, draw_scores, units_by_task
from caploc.report.reading import Result, at, called, counted, inline, number_at, visible
from caploc.report.scores import comparisons
from caploc.report.sentence import headline, second_sentence
from caploc.report.sureness import questions
from caploc.report.templates import write_page
from caploc.report.units import outcome_unit

Answers = Sequence[Mapping[str, Any]]


def write_report(folder: Path, result: Result, answers: Answers) -> Path:
    """Write the page of a run, `report.html`; it shows what else lies in the folder.

    That is the curve of `caploc curve`, the contrasts of `caploc interactions`, and links to
    figures.

    `result` is the content of result.json; `answers` holds what the model said to each example
    before and after.

    Returns:
        The path of the page.

    Raises:
        OSError: if the folder or a file in it cannot be written.
        UserError: if curve.json or interactions.json cannot be read.
    """
    curve, told = curve_of(folder), contents_of(folder, INTERACTIONS)
    unit = outcome_unit(result)
    rows = answer_rows(answers, unit)
    counts = {status.value: sum(row.status is status for row in rows) for status in Status}
    compared, table = comparisons(result), head_table(result)
    units = units_by_task(result)
    return write_page(
        folder,
        "report.html.j2",
        task=called(at(result, "task", "name") or "a task"),
        model=called(at(result, "model", "name") or "a model"),
        headline=headline(result),
        second_sentence=second_sentence(result),
        notes=[inline(note) for note in at(result, "search", "notes") or ()],
        steps_next=next_steps(result, curve),
        questions=questions(result),
        comparisons=compared,
        score_charts=draw_scores(compared),
        curve_charts=draw_curve(curve or {}, units),
        curve=curve_table(curve, units) if curve else None,
        contrasts=contrasts_of(told, result) if told else None,
        map=head_map(result),
        table=table,
        effects_chart=draw_effects(table.rows, unit, estimand_of(result)),
        estimand=describe_estimand(result),
        estimand_name=estimand_of(result),
        members=member_rows(result),
        members_on=counted(number_at(result, "validation", "members", "examples") or 0, "example"),
        unit=unit,
        steps=colours.STEPS,
        answers=rows,
        every_answer=[row.as_list() for row in rows],
        counts=counts,
        method=method_paragraphs(result),
        command=visible(at(result, "command") or "not recorded"),
        facts=facts(result),
        versions=versions(result),
        figures=drawn_figures(folder),
    )


def rewrite_page(folder: Path) -> Path:
    """Write the figures and the page of a finished run from its files.

    Raises:
        UserError: if the folder holds no finished run.
        OSError: if a file cannot be written.
    """
    refuse_links(folder)
    result, answers = read_contents(folder / RESULT), read_contents(folder / ANSWERS)
    write_figures(folder / FIGURES, result, curve_of(folder))
    return write_report(folder, result, answers)


def curve_of(folder: Path) -> Mapping[str, Any] | None:
    """The content of curve.json, where there is one.

    Raises:
        UserError: if it cannot be read.
    """
    return contents_of(folder, CURVE)


def contents_of(folder: Path, name: str) -> Mapping[str, Any] | None:
    """The content of a file of the folder, where there is one.

    Raises:
        UserError: if it cannot be read.
    """
    content: Mapping[str, Any] | None = None
    if (folder / name).exists():
        content = read_contents(folder / name)
    return content
