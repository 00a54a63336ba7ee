"""Which answers knocking heads out loses, and what stands in their place."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from caploc.result import AnswerPair, Lost, Status, number
from caploc.store import Row
from caploc.tasks.task import (
    Example,
    Generated,
    Response,
    Rolling,
    Scored,
    Task,
    choices_of,
    prompt_of,
    responses_from_json,
    write_answer,
)
from caploc.validation import Comparison

SHOWN = 3  # lost answers that the record holds
TIMES = 3  # a phrase that is said so often at the end of a text is a loop: twice is speech
SHORTEST = 10  # characters of a loop: `1111` and `===` are short enough to be meant
LEAST = 1 / 3  # of the text, so that a refrain at the end of a long one is no loop
CLOSING = ".!?…。！？ "  # may end a loop that was stopped
# Nats a token by which even the likeliest choice fell: a model that is sure of another answer
# loses less, one that says nothing sensible any more loses more.
UNLIKELY = 2.0


class Kind(StrEnum):
    """What stands in the place of a lost answer, the first that fits."""

    SPACE = "other white space"  # and, as far as it is known, the right words
    EMPTY = "empty"
    LOOPS = "loops"
    CUT_OFF = "cut off"  # by the token limit, where the intact answer ended
    UNLIKELY = "no likely choice"
    REPEATS = "repeats the word"  # of the question
    OTHER = "other answer"


def find_lost(compared: Comparison) -> Lost:
    """Count the lost answers by what stands in their place; samples are of the most frequent."""
    rows = list(zip(compared.intact_rows, compared.knocked_out_rows, strict=True))
    fell = [pair for pair in rows if pair[1].outcome < pair[0].outcome]
    pairs = [show_pair(compared.task, *each) for each in fell]
    lost = [pair for pair in pairs if pair.status is Status.LOST]
    kinds = Counter(str(pair.kind) for pair in lost)
    lost.sort(key=lambda pair: -kinds[str(pair.kind)])
    return Lost(
        count=len(lost),
        examples=len(rows),
        kinds=dict(kinds.most_common()),
        samples=lost[:SHOWN],
    )


def show_pair(task: Task, before: Row, after: Row) -> AnswerPair:
    """Put an example in words, as answered before and after."""
    responses = responses_from_json(before.responses), responses_from_json(after.responses)
    example, first = task.example(before.number), task.requests(before.number)[0]
    pair = AnswerPair(
        example=before.number,
        prompt=prompt_of(first),
        gold=None if isinstance(first, Rolling) else example.gold,
        intact=write_answer(example, responses[0]),
        knocked_out=write_answer(example, responses[1]),
        intact_outcome=number(before.outcome),
        knocked_out_outcome=number(after.outcome),
    )
    if pair.status is not Status.LOST:
        return pair
    return pair.model_copy(update={"kind": kind_of(pair, example, *responses)})


def kind_of(
    pair: AnswerPair, example: Example, before: Sequence[Response], after: Sequence[Response]
) -> Kind:
    """Say what stands in the place of a lost answer."""
    text, first = (pair.knocked_out or "").strip(), after[0]
    said = first.instead if len(after) == 1 and isinstance(first, Scored) else ""
    if begins_alike(said, pair.gold or ""):
        return Kind.SPACE
    if not text:
        return Kind.EMPTY
    wrote = isinstance(first, Generated)
    if wrote and is_loop(text):
        return Kind.LOOPS
    if wrote and is_cut_off(after) and not is_cut_off(before):
        return Kind.CUT_OFF
    if len(after) > 1 and likeliest(example, before) - likeliest(example, after) >= UNLIKELY:
        return Kind.UNLIKELY
    asked = (pair.prompt or "").strip().splitlines()[-2:]
    return Kind.REPEATS if text in " ".join(asked).split() else Kind.OTHER


def begins_alike(said: str, gold: str) -> bool:
    """Tell whether a text, known up to its first other token, differs in white space alone."""
    words = said.strip()
    return len(words) > 1 and gold.strip().startswith(words) and not gold.startswith(said)


def is_cut_off(responses: Sequence[Response]) -> bool:
    """Tell whether the token limit ended what was written."""
    return any(isinstance(each, Generated) and each.end is None for each in responses)


def likeliest(example: Example, responses: Sequence[Response]) -> float:
    """Return the log-probability, in nats a token, of the likeliest of several choices."""
    scored = [each.logprob / max(each.tokens, 1) for each in choices_of(example, responses)]
    return max(scored, default=0.0)


def is_loop(text: str) -> bool:
    """Tell whether a text ends in a phrase that is said again and again, the last time in part.

    Greedy decoding of the same last words gives the same next words, so that a model in a loop
    stays there; a phrase repeated in the middle of a text is none.
    """
    plain = " ".join(text.split()).rstrip(CLOSING)
    for period in range(1, len(plain) // TIMES + 1):
        length = period
        while length < len(plain) and plain[-1 - length] == plain[period - 1 - length]:
            length += 1
        long = length >= max(SHORTEST, TIMES * period, LEAST * len(plain))
        if long and not plain[-period:].strip().isdecimal():  # 0.3333333333 is a number
            return True
    return False
