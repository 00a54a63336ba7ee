"""The page of one run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from caploc.report import colours
from caploc.report.answers import Status, answer_rows
from caploc.report.figures import write_heads_figure
from caploc.report.headmap import head_map
from caploc.report.headtable import head_table
from caploc.report.method import facts, method_paragraphs, versions
from caploc.report.reading import Result, at, called, inline, visible
from caploc.report.sentence import headline, second_sentence
from caploc.report.strips import comparisons
from caploc.report.sureness import questions
from caploc.report.templates import write_page
from caploc.report.units import outcome_unit

Answers = Sequence[Mapping[str, Any]]


def write_report(folder: Path, result: Result, answers: Answers) -> Path:
    """Write the page of a run, and its figures beside it.

    `result` is the content of result.json; `answers` holds what the model said to each example
    before and after. Writes `report.html`, `figures/heads.png` and `figures/heads.pdf`.

    Returns:
        The path of the page.

    Raises:
        OSError: if the folder or a file in it cannot be written.
    """
    unit = outcome_unit(result)
    rows = answer_rows(answers, unit)
    counts = {status: sum(row.status is status for row in rows) for status in Status}
    write_heads_figure(folder / "figures", result)
    return write_page(
        folder,
        "report.html.j2",
        task=called(at(result, "task", "name") or "a task"),
        model=called(at(result, "model", "name") or "a model"),
        headline=headline(result),
        second_sentence=second_sentence(result),
        notes=[inline(note) for note in at(result, "search", "notes") or ()],
        questions=questions(result),
        comparisons=comparisons(result),
        map=head_map(result),
        table=head_table(result),
        unit=unit,
        steps=colours.STEPS,
        answers=rows,
        counts=counts,
        method=method_paragraphs(result),
        command=visible(at(result, "command") or "not recorded"),
        facts=facts(result),
        versions=versions(result),
    )
