"""The page of one run: its card, what was lost, where the heads are; the rest is folded."""

import shlex
from pathlib import Path

from caploc.contents import ContrastEffect, Curve, Interactions, read_file
from caploc.folder import CURVE, INTERACTIONS, RESULT
from caploc.report.card import describe
from caploc.report.colours import STEPS
from caploc.report.figures import (
    FIGURES,
    chart_curve,
    draw,
    draw_scores,
    metrics_of,
    tabulate_curve,
    write_figures,
)
from caploc.report.headtable import head_map, list_heads
from caploc.report.templates import write_page
from caploc.result import Lost, Result
from caploc.verdict import both_said, make_card, shorten_prompt
from caploc.wording import (
    called,
    inline,
    outcome_unit,
    percent,
    unit_of,
    unit_of_outcomes,
    visible,
    write_q,
)

CLEAR = 0.05  # q below which a contrast is shown
CURVES = "Scores with 0, 1, 2 and more heads knocked out; the numbers are in the table below."


def write_report(folder: Path, result: Result) -> Path:
    """Write the page of a run, `report.html`, and return its path.

    It also shows what else lies in the folder: the curve of `caploc curve`, and the contrasts of
    `caploc interactions`. Raises OSError if it cannot be written; UserError if curve.json or
    interactions.json cannot be read.
    """
    curve, unit, card = curve_of(folder), outcome_unit(result), make_card(result)
    chart = None if curve is None else chart_curve(curve, metrics_of(result))
    return write_page(
        folder,
        "report.html.j2",
        **describe(card),
        tag="h1",
        result=result,
        task=called(result.task.name),
        scores=draw_scores(card),
        lost=result.validation.task.lost or Lost(count=0, examples=0),
        both_said=both_said,
        map=head_map(result),
        steps=STEPS,
        heads=list_heads(result),
        unit=unit,  # of what the search says
        own=unit_of_outcomes(unit_of(result)),  # of what the check says
        scored=unit_of(result),
        curve=tabulate_curve(curve, metrics_of(result)) if curve else None,
        curve_chart=None if chart is None else draw(CURVES, chart),
        contrasts=contrasts_of(folder),
        place=shlex.quote(visible(folder)),
        inline=inline,
        percent=percent,
        visible=visible,
        called=called,
        shorten=shorten_prompt,
        write_q=write_q,
    )


def rewrite_page(folder: Path) -> Path:
    """Write the figures and the page of a finished run from its files.

    Raises UserError if the folder holds no finished run; OSError if a file cannot be written.
    """
    result = read_file(folder / RESULT, Result)
    write_figures(folder / FIGURES, result, curve_of(folder))
    return write_report(folder, result)


def curve_of(folder: Path) -> Curve | None:
    """Read curve.json, where there is one; raises UserError if it cannot be read."""
    path = folder / CURVE
    return read_file(path, Curve) if path.exists() else None


def contrasts_of(folder: Path) -> list[ContrastEffect]:
    """Read from interactions.json, where there is one, the contrasts that are beyond doubt."""
    path = folder / INTERACTIONS
    found = read_file(path, Interactions).interactions if path.exists() else []
    return [each for each in found if each.q is not None and each.q < CLEAR]
