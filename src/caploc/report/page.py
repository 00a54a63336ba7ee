"""The page of one run, with what the model said before and after, example by example."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from os.path import commonprefix
from pathlib import Path

from caploc.contents import Answers, Curve, Interactions, read_file
from caploc.folder import ANSWERS, CURVE, INTERACTIONS, RESULT
from caploc.report import charts
from caploc.report.advice import next_steps
from caploc.report.charts import chart
from caploc.report.headtable import (
    count_frontier_examples,
    describe_estimand,
    explain_standings,
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
from caploc.report.sentence import headline, second_sentence
from caploc.report.sureness import contrasts_of, questions
from caploc.report.templates import write_page
from caploc.report.wording import (
    ScoreKind,
    Unit,
    called,
    clipped,
    counted,
    inline,
    outcome_unit,
    significant,
    visible,
)
from caploc.result import AnswerPair, Members, Result
from caploc.tasks.task import READ_OFF

SCORES = "Scores before and after the knockout; the numbers are in the table below."
CURVES = "Scores with 0, 1, 2 and more heads knocked out; the numbers are in the table below."


def write_report(folder: Path, result: Result, answers: Sequence[AnswerPair]) -> Path:
    """Write the page of a run, `report.html`, and return its path.

    It also shows what else lies in the folder: the curve of `caploc curve`, the contrasts of
    `caploc interactions`, and links to figures. Raises OSError if it cannot be written; UserError
    if curve.json or interactions.json cannot be read.
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
        steps_next=next_steps(result, curve, place, together=found is not None),
        named=bool(result.top),
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
        unnamed=explain_standings(result),
        members=member_rows(result),
        frontier=tabulate_frontier(result, others=True),
        frontier_examples=count_frontier_examples(result),
        frontier_chart=draw_frontier(result),
        goal=result.search.goal,
        members_on=counted(members.examples or 0, "example"),
        members_fresh=members.fresh,
        unit=outcome_unit(result),
        steps=charts.STEPS,
        answers=rows,
        every_answer=[astuple(row) for row in rows],
        counts={each: sum(row.status is each for row in rows) for each in Status},
        method=method_paragraphs(result),
        command=visible(result.command or "not recorded"),
        facts=facts(result),
        versions=[(inline(name), inline(version)) for name, version in result.versions.items()],
        figures=drawn_figures(folder),
        place=place,
    )


def rewrite_page(folder: Path) -> Path:
    """Write the figures and the page of a finished run from its files.

    Raises UserError if the folder holds no finished run; OSError if a file cannot be written.
    """
    result, answers = read_file(folder / RESULT, Result), read_file(folder / ANSWERS, Answers)
    write_figures(folder / FIGURES, result, curve_of(folder))
    return write_report(folder, result, answers.root)


def curve_of(folder: Path) -> Curve | None:
    """Read curve.json, where there is one; raises UserError if it cannot be read."""
    path = folder / CURVE
    return read_file(path, Curve) if path.exists() else None


# A blank belongs to the word before it: else texts of other words would be alike in every blank.
WORDS = re.compile(r"\s+|\w+\s*|[^\w\s]\s*")
SHORT = 24  # characters up to which single characters are compared: numbers, single words
MOST_WORDS = 160  # words of both texts up to which they are compared; beyond, only their ends
TEXT_BUDGET = 2_000_000  # characters of all answers together, which keeps the page a few MB
SHORTEST, LONGEST = 200, 4_000  # to which one text may be cut

Parts = list[str]  # alike, different, alike, different ...: beginning with what is alike


def split_differences(before: str, after: str) -> tuple[Parts, Parts]:
    """Cut both texts into parts that are alike in turn with parts that differ.

    Joined, the parts give the texts again, and those at even places are the same in both.
    """
    if before == after:
        return [before], [after]
    start = len(commonprefix([before, after]))
    rest = before[start:], after[start:]
    end = len(commonprefix([rest[0][::-1], rest[1][::-1]]))
    middles = tuple(text[: len(text) - end] for text in rest)
    tail = rest[0][len(rest[0]) - end :]
    changed = [*_changed(*middles), *([(tail, tail)] if tail else [])]
    old, new = zip((before[:start], after[:start]), *changed, strict=True)
    return list(old), list(new)


def _changed(before: str, after: str) -> list[tuple[str, str]]:
    """Pairs of parts, different and alike in turn; neither the first nor the last is alike."""
    short = max(len(before), len(after)) <= SHORT and not (" " in before or " " in after)
    words = [list(text) if short else WORDS.findall(text) for text in (before, after)]
    if not all(words) or sum(map(len, words)) > MOST_WORDS:
        return [(before, after)]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    return [
        ("".join(words[0][a:b]), "".join(words[1][c:d])) for _, a, b, c, d in matcher.get_opcodes()
    ]


class Status(StrEnum):
    """What knocking the heads out did to one answer."""

    LOST = "lost"
    GAINED = "gained"
    REWORDED = "reworded"  # another text, scored the same
    UNCHANGED = "unchanged"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One example, ready to show, in the order that the page's script reads; None is missing."""

    example: str
    status: Status
    prompt: str
    gold: str | None
    intact: Parts | None  # alike and different parts in turn
    knocked_out: Parts | None
    outcomes: str
    kind: str = ""  # of the second answer, where it is not right: empty, loop, wrong content ...


def answer_rows(
    answers: Sequence[AnswerPair], unit: Unit, *, limit: int | None = None
) -> list[ShownAnswer]:
    """Turn the answers of a run into rows: lost, gained, reworded, then the rest.

    Without a `limit` of characters each text gets its part of what a page may hold.
    """
    limit = limit or max(SHORTEST, min(LONGEST, TEXT_BUDGET // (4 * max(1, len(answers)))))
    order = list(Status)
    rows = [_row(answer, unit, limit) for answer in answers]
    return sorted(rows, key=lambda row: order.index(row.status))


def status_of(answer: AnswerPair, unit: Unit) -> Status:
    """Compare the two answers to one example.

    Log-probabilities never come out exactly alike, so there an answer whose text is the same is
    unchanged whatever its outcome, and so is one that is itself a log-probability and scores alike.
    """
    before, after = answer.intact_outcome, answer.knocked_out_outcome
    texts = answer.intact, answer.knocked_out
    if None in texts and (before is None or after is None):
        return Status.UNKNOWN
    read_off = all(text is not None and text.startswith(READ_OFF) for text in texts)
    same_text = read_off or (texts[0] == texts[1] and None not in texts)
    if same_text and (unit.kind is ScoreKind.NATS or before == after):
        return Status.UNCHANGED
    harm = unit.harm(after - before) if before is not None and after is not None else 0.0
    if harm > 0:
        return Status.LOST
    if harm < 0:
        return Status.GAINED
    return Status.UNCHANGED if None in texts or same_text else Status.REWORDED


def _row(answer: AnswerPair, unit: Unit, limit: int) -> ShownAnswer:
    parts = _parts(_said(answer.intact), _said(answer.knocked_out), limit)
    gold = _said(answer.gold)
    return ShownAnswer(
        example=visible(answer.example),
        status=status_of(answer, unit),
        prompt=clipped(visible(answer.prompt), limit, keep_end=True),
        gold=None if gold is None else clipped(gold, limit),
        intact=parts[0],
        knocked_out=parts[1],
        outcomes=" → ".join(map(_plain, (answer.intact_outcome, answer.knocked_out_outcome))),
        kind="" if answer.kind == "right" else inline(answer.kind),
    )


def _parts(before: str | None, after: str | None, limit: int) -> tuple[Parts | None, Parts | None]:
    """Both texts in parts alike and different in turn; one without the other is one part."""
    if before is None or after is None:
        alone = [None if text is None else [clipped(text, limit)] for text in (before, after)]
        return alone[0], alone[1]
    texts = [before, after]
    if max(map(len, texts)) > limit:  # about so many characters around where they begin to differ
        start = max(0, len(commonprefix(texts)) - limit // 4)
        lead = f"[… {start:,} characters left out …]\n" if start else ""
        texts = [lead + clipped(text[start:], limit) for text in texts]
    return split_differences(*texts)


def _said(text: str | None) -> str | None:
    """Line breaks get a mark: whether an answer ends in one can decide its score."""
    return None if text is None else visible(text).replace("\n", "↵\n")


def _plain(outcome: float | None) -> str:
    if outcome is None:
        return "–"
    return str(int(outcome)) if outcome in (0, 1) else significant(outcome)
