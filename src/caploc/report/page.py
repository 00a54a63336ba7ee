"""The page of one run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from caploc.contents import Answers, Curve, Interactions, read_file
from caploc.folder import ANSWERS, CURVE, INTERACTIONS, RESULT, refuse_links
from caploc.report import colours
from caploc.report.answers import Status, answer_rows
from caploc.report.charts import chart
from caploc.report.headtable import (
    count_frontier_examples,
    describe_estimand,
    explain_unnamed,
    head_map,
    head_table,
    member_rows,
    tabulate_frontier,
)
from caploc.report.method import facts, method_paragraphs
from caploc.report.plots import (
    FIGURES,
    curve_specs,
    draw_effects,
    draw_frontier,
    drawn_figures,
    scores_specs,
    units_by_task,
    write_figures,
)
from caploc.report.scores import comparisons, read_curve, tabulate_curve
from caploc.report.sentence import headline, next_steps, second_sentence
from caploc.report.sureness import contrasts_of, questions
from caploc.report.templates import write_page
from caploc.report.wording import called, counted, inline, outcome_unit, visible
from caploc.result import AnswerPair, Members, Result

SCORES = "Scores before and after the knockout; the numbers are in the table below."
CURVES = "Scores with 0, 1, 2 and more heads knocked out; the numbers are in the table below."


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
    curve, together = curve_of(folder), folder / INTERACTIONS
    found = read_file(together, Interactions) if together.exists() else None
    members = result.validation.members or Members()
    rows = answer_rows(answers, outcome_unit(result))
    place = shlex.quote(visible(folder))
    compared, table, units = comparisons(result), head_table(result), units_by_task(result)
    specs = curve_specs(curve, units) if curve else []
    return write_page(
        folder,
        "report.html.j2",
        task=called(result.task.name),
        model=called(result.model.shown),
        headline=headline(result),
        second_sentence=second_sentence(result),
        notes=[inline(note) for note in result.search.notes],
        steps_next=next_steps(result, curve, place),
        questions=questions(result),
        comparisons=compared,
        score_charts=[chart(SCORES, spec) for spec in scores_specs(compared)],
        curve_charts=[chart(CURVES, spec) for spec in specs],
        curve=tabulate_curve(curve, units) if curve else None,
        curve_told=read_curve(curve, units) if curve else "",
        contrasts=contrasts_of(found, result) if found else None,
        map=head_map(result),
        table=table,
        effects_chart=draw_effects(table.rows, outcome_unit(result), result.estimand.heads),
        estimand=describe_estimand(result.estimand),
        estimand_name=result.estimand.heads,
        unnamed=explain_unnamed(result),
        members=member_rows(result),
        frontier=tabulate_frontier(result, others=True),
        frontier_examples=count_frontier_examples(result),
        frontier_chart=draw_frontier(result),
        goal=result.search.goal,
        members_on=counted(members.examples or 0, "example"),
        unit=outcome_unit(result),
        steps=colours.STEPS,
        answers=rows,
        every_answer=[row.as_list() for row in rows],
        counts={each.value: sum(row.status is each for row in rows) for each in Status},
        method=method_paragraphs(result),
        command=visible(result.command or "not recorded"),
        facts=facts(result),
        versions=[(inline(name), inline(version)) for name, version in result.versions.items()],
        figures=drawn_figures(folder),
        place=place,
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
    path = folder / CURVE
    return read_file(path, Curve) if path.exists() else None
