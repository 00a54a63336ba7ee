"""The page of one run."""

from collections.abc import Sequence
from pathlib import Path

from caploc.contents import Answers, Curve, File, Interactions, read_file
from caploc.folder import ANSWERS, CURVE, INTERACTIONS, RESULT, refuse_links
from caploc.report import colours
from caploc.report.advice import next_steps
from caploc.report.answers import Status, answer_rows
from caploc.report.contrasts import contrasts_of
from caploc.report.headmap import head_map
from caploc.report.headtable import head_table
from caploc.report.members import describe_estimand, member_rows
from caploc.report.method import facts, format_versions, method_paragraphs
from caploc.report.pictures import FIGURES, drawn_figures, write_figures
from caploc.report.plots import draw_curve, draw_effects, draw_scores, units_by_task
from caploc.report.reading import called, counted, inline, visible
from caploc.report.scores import comparisons, tabulate_curve
from caploc.report.sentence import headline, second_sentence
from caploc.report.sureness import questions
from caploc.report.templates import write_page
from caploc.report.units import outcome_unit
from caploc.result import AnswerPair, Members, Result


def write_report(folder: Path, result: Result, answers: Sequence[AnswerPair]) -> Path:
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
    curve, found = curve_of(folder), _found(folder / INTERACTIONS, Interactions)
    members = result.validation.members or Members()
    unit = outcome_unit(result)
    rows = answer_rows(answers, unit)
    counts = {status.value: sum(row.status is status for row in rows) for status in Status}
    compared, table = comparisons(result), head_table(result)
    units = units_by_task(result)
    return write_page(
        folder,
        "report.html.j2",
        task=called(result.task.name),
        model=called(result.model.name),
        headline=headline(result),
        second_sentence=second_sentence(result),
        notes=[inline(note) for note in result.search.notes],
        steps_next=next_steps(result, curve),
        questions=questions(result),
        comparisons=compared,
        score_charts=draw_scores(compared),
        curve_charts=draw_curve(curve, units) if curve else [],
        curve=tabulate_curve(curve, units) if curve else None,
        contrasts=contrasts_of(found, result) if found else None,
        map=head_map(result),
        table=table,
        effects_chart=draw_effects(table.rows, unit, result.estimand.heads),
        estimand=describe_estimand(result.estimand),
        estimand_name=result.estimand.heads,
        members=member_rows(result),
        members_on=counted(members.examples or 0, "example"),
        unit=unit,
        steps=colours.STEPS,
        answers=rows,
        every_answer=[row.as_list() for row in rows],
        counts=counts,
        method=method_paragraphs(result),
        command=visible(result.command or "not recorded"),
        facts=facts(result),
        versions=format_versions(result),
        figures=drawn_figures(folder),
    )


def rewrite_page(folder: Path) -> Path:
    """Write the figures and the page of a finished run from its files.

    Raises:
        UserError: if the folder holds no finished run.
        OSError: if a file cannot be written.
    """
    refuse_links(folder)
    result, answers = read_file(folder / RESULT, Result), read_file(folder / ANSWERS, Answers)
    write_figures(folder / FIGURES, result, curve_of(folder))
    return write_report(folder, result, answers.root)


def curve_of(folder: Path) -> Curve | None:
    """The content of curve.json, where there is one.

    Raises:
        UserError: if it cannot be read.
    """
    return _found(folder / CURVE, Curve)


def _found(path: Path, kind: type[File]) -> File | None:
    return read_file(path, kind) if path.exists() else None
