"""What became of the answers: which were lost, and what stands in their place."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from caploc.result import READ_OFF, AnswerPair
from caploc.wording import ScoreKind, Unit


class Status(StrEnum):
    """What knocking the heads out did to one answer."""

    LOST = "lost"
    GAINED = "gained"
    REWORDED = "reworded"  # another text, scored the same
    UNCHANGED = "unchanged"
    UNKNOWN = "not measured"


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


class Fate(StrEnum):
    """What stands in the place of a lost answer."""

    EMPTY = "empty"
    LOOPS = "loops"
    CUT_OFF = "cut off"
    REPEATS = "repeats the word"
    OTHER = "other answer"


FATES = {
    "empty": Fate.EMPTY,
    "stuck": Fate.LOOPS,
    "loop": Fate.LOOPS,
    "runs on": Fate.CUT_OFF,
}  # by the kind of the answer, as the check tells it


def fate_of(answer: AnswerPair) -> Fate:
    """Tell what stands in the place of a lost answer."""
    text = (answer.knocked_out or "").strip()
    if not text:
        return Fate.EMPTY
    if answer.kind in FATES:
        return FATES[answer.kind]
    asked = (answer.prompt or "").strip().splitlines()[-2:]
    return Fate.REPEATS if text in " ".join(asked).split() else Fate.OTHER


@dataclass(frozen=True, slots=True)
class LostAnswers:
    """The lost answers: how many of how many, what became of them, and a few to show."""

    count: int
    of: int
    fates: list[tuple[Fate, int]]  # the most frequent first
    shown: list[AnswerPair]


def sum_up_lost(answers: Sequence[AnswerPair], unit: Unit, shown: int) -> LostAnswers:
    """Count the lost answers by what became of them; those shown are of the most frequent fates."""
    lost = [answer for answer in answers if status_of(answer, unit) is Status.LOST]
    fates = Counter(map(fate_of, lost))
    lost.sort(key=lambda answer: -fates[fate_of(answer)])
    return LostAnswers(len(lost), len(answers), fates.most_common(), lost[:shown])
