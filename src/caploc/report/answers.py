"""What the model said before and after, example by example, those that changed first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from os.path import commonprefix
from typing import Any

from caploc.report.wording import ScoreKind, Unit, clipped, inline, significant, visible
from caploc.result import AnswerPair

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
    end = min(len(commonprefix([rest[0][::-1], rest[1][::-1]])), *map(len, rest))
    middles = tuple(text[: len(text) - end] for text in rest)
    tail = rest[0][len(rest[0]) - end :]
    parts: tuple[Parts, Parts] = ([before[:start]], [after[:start]])
    for alike, old, new in _changed(*middles):
        for side, text in zip(parts, (old, new), strict=True):
            side += [text, alike]
    for side in parts:
        side[-1] += tail
        if not side[-1]:
            side.pop()
    return parts


def _changed(before: str, after: str) -> list[tuple[str, str, str]]:
    """Pairs of different parts, each with what is alike after it."""
    short = max(len(before), len(after)) <= SHORT and not (" " in before or " " in after)
    words = [list(text) if short else WORDS.findall(text) for text in (before, after)]
    if not all(words) or sum(map(len, words)) > MOST_WORDS:
        return [("", before, after)]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    blocks = matcher.get_matching_blocks()
    changed, old, new = [], 0, 0
    for block in blocks:
        gap = "".join(words[0][old : block.a]), "".join(words[1][new : block.b])
        old, new = block.a + block.size, block.b + block.size
        alike = "".join(words[0][block.a : old])
        if any(gap):
            changed.append((alike, *gap))
        elif changed and alike:
            changed[-1] = (changed[-1][0] + alike, *changed[-1][1:])
    return changed


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


def answer_rows(
    answers: Sequence[AnswerPair], unit: Unit, *, limit: int | None = None
) -> list[ShownAnswer]:
    """Turn the answers of a run into rows: broken, gained, reworded, then the rest.

    Without a `limit` of characters each text gets its part of what a page may hold.
    """
    limit = limit or max(SHORTEST, min(LONGEST, TEXT_BUDGET // (4 * max(1, len(answers)))))
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
