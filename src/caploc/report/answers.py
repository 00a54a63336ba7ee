"""What the model said before and after, example by example, those that changed first."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from os.path import commonprefix
from typing import Any

from caploc.report.differences import Parts, split_differences
from caploc.report.reading import clipped, inline, visible
from caploc.report.units import ScoreKind, Unit, significant
from caploc.result import AnswerPair

TEXT_BUDGET = 2_000_000  # characters of all answers together, which keeps the page a few MB
SHORTEST, LONGEST = 200, 4_000  # to which one text may be cut


class Status(Enum):
    """What knocking the heads out did to one answer."""

    BROKEN = "broken"
    GAINED = "gained"
    REWORDED = "reworded"  # another text, scored the same
    UNCHANGED = "unchanged"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One example, ready to show; a text that is missing is None."""

    example: str
    status: Status
    prompt: str
    gold: str | None
    intact: Parts | None  # alike and different parts in turn
    knocked_out: Parts | None
    outcomes: str
    kind: str = ""  # of the second answer, where it is not right: empty, loop, wrong content ...

    def as_list(self) -> list[Any]:
        """As the page's script reads it."""
        texts = [self.example, self.status.value, self.prompt, self.gold]
        return [*texts, self.intact, self.knocked_out, self.outcomes, self.kind]


def answer_rows(answers: Sequence[AnswerPair], unit: Unit) -> list[ShownAnswer]:
    """Turn the answers of a run into rows: broken, gained, reworded, then the rest."""
    limit = max(SHORTEST, min(LONGEST, TEXT_BUDGET // (4 * max(1, len(answers)))))
    order = list(Status)
    rows = [_row(answer, unit, limit) for answer in answers]
    return sorted(rows, key=lambda row: order.index(row.status))


def status_of(answer: AnswerPair, unit: Unit) -> Status:
    """Compare the two answers to one example.

    Log-probabilities never come out exactly alike, so there an answer whose text is the same is
    unchanged whatever its outcome.
    """
    before, after = answer.intact_outcome, answer.knocked_out_outcome
    texts = answer.intact, answer.knocked_out
    if None in texts and (before is None or after is None):
        return Status.UNKNOWN
    same_text = texts[0] == texts[1] and None not in texts
    if same_text and (unit.kind is ScoreKind.NATS or before == after):
        return Status.UNCHANGED
    harm = unit.harm(after - before) if before is not None and after is not None else 0.0
    if harm > 0:
        return Status.BROKEN
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
        outcomes=_outcomes(answer),
        kind="" if answer.kind == "right" else inline(answer.kind),
    )


def _parts(before: str | None, after: str | None, limit: int) -> tuple[Parts | None, Parts | None]:
    """Both texts in parts alike and different in turn; one without the other is one part."""
    if before is None or after is None:
        alone = [None if text is None else [clipped(text, limit)] for text in (before, after)]
        return alone[0], alone[1]
    return split_differences(*_around_change(before, after, limit))


def _around_change(before: str, after: str, limit: int) -> tuple[str, str]:
    """Of long texts, about `limit` characters around the place where they begin to differ."""
    texts = before, after
    if max(map(len, texts)) <= limit:
        return before, after
    start = max(0, len(commonprefix(texts)) - limit // 4)
    lead = f"[… {start:,} characters left out …]\n" if start else ""
    cut = [lead + clipped(text[start:], limit) for text in texts]
    return cut[0], cut[1]


def _said(text: str | None) -> str | None:
    """Line breaks get a mark: whether an answer ends in one can decide its score."""
    return None if text is None else visible(text).replace("\n", "↵\n")


def _outcomes(answer: AnswerPair) -> str:
    outcomes = answer.intact_outcome, answer.knocked_out_outcome
    return " → ".join("–" if outcome is None else _plain(outcome) for outcome in outcomes)


def _plain(outcome: float) -> str:
    return str(int(outcome)) if outcome in (0, 1) else significant(outcome)
