"""What became of each answer when heads were knocked out, told apart from the intact answer.

The categories stand in their order of precedence: an answer is the first that fits. Those of
`BROKEN` say that the model lost the ability to answer, whatever it knows; each needs that the
intact answer to the same example was not so itself.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

import numpy as np
from lm_eval.models.utils import normalize_gen_kwargs
from scipy import stats

from caploc.result import Common
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request, Response, Scored
from caploc.validation.wording import Habits, Repetition, is_program, normalised, repetition

# Nats a token by which even the best choice, or a whole text, became less likely. In the demo
# model endings of sentences are chosen at chance from 1.5 on, and whole texts lose either less
# than 1.5 or more than 2: there it neither knows nor says anything of its world any more.
UNLIKELY = 2.0
# Tokens from which one text's likelihood says how well the model speaks. That of a shorter one
# may be as low in a model that is sure of another answer, well said.
WHOLE_TEXT = 8
SLACK = 0.1  # standard deviations of the intact outcomes that a real-valued outcome may lose


class Category(StrEnum):
    """What an answer is, in order of precedence."""

    UNSCORED = "not scored"  # no number in one of the two
    EMPTY = "empty"  # whitespace at most
    STUCK = "stuck"  # one word or symbol repeated to the end
    LOOP = "loop"  # a phrase repeated to the end
    SAME_ANSWER = "same answer"  # wrong, and what far too many other examples got too
    GIBBERISH = "gibberish"  # words that the task never uses: nonsense, or another language
    RUNS_ON = "runs on"  # to the token limit, where the intact answer ended
    UNLIKELY = "unlikely"  # every choice, or the whole text, became far less likely
    RIGHT = "right"  # scored as right, or no worse than intact
    SAME_CHOICE = "same choice"  # wrong, and the position that far too many others got too
    FORMAT = "format"  # nothing in it that the task could judge
    MISSED = "missed"  # a short gold text is not what the model would say, and what is, unknown
    WRONG_CONTENT = "wrong content"  # well-formed, and wrong or worse than intact


# They tell of a model that can no longer answer.
BROKEN = frozenset(Category) - {
    Category.UNSCORED,
    Category.RIGHT,
    Category.MISSED,
    Category.WRONG_CONTENT,
}


@dataclass(frozen=True)
class Answered:
    """One example's responses under one mask, and what they are worth.

    `judged` is what the task's metric sees of a written answer, None if it finds nothing there.
    """

    responses: tuple[Response, ...]
    outcome: float
    judged: str | None

    @cached_property
    def text(self) -> str | None:
        return written_text(self.responses)

    @cached_property
    def likelihood(self) -> float | None:
        """Nats a token of the likeliest of the texts scored; None where the model wrote."""
        scored = [r.logprob / max(r.tokens, 1) for r in self.responses if isinstance(r, Scored)]
        return max(scored, default=None)

    @cached_property
    def repetition(self) -> Repetition | None:
        return repetition(self.text or "")


@dataclass(frozen=True)
class Case:
    """One example with no head and with heads knocked out; `gold` is None where there is none."""

    example: int
    requests: tuple[Request, ...]
    gold: str | None
    intact: Answered
    knocked_out: Answered

    @property
    def unchanged(self) -> bool:
        same_text = self.intact.text is not None and self.intact.text == self.knocked_out.text
        return same_text or self.intact.responses == self.knocked_out.responses

    @property
    def prompt(self) -> str:
        return "\n".join(r.prompt for r in self.requests if isinstance(r, Generate))

    @property
    def limit(self) -> int | None:
        asked = [r for r in self.requests if isinstance(r, Generate)]
        # lm-eval's own reading of the options, with the default of its Hugging Face model.
        limits = [normalize_gen_kwargs(json.loads(r.options))["max_gen_toks"] for r in asked]
        return max(limits, default=None)

    def pick(self, answered: Answered, by_length: bool) -> int | None:
        """The position, from 1, of the likeliest of several texts, the first of equals."""
        scored = [r for r in answered.responses if isinstance(r, Scored)]
        if len(scored) < 2:
            return None
        lengths = [
            len(r.continuation.strip()) if by_length and isinstance(r, LogLikelihood) else 1
            for r in self.requests
        ]
        worth = [r.logprob / max(n, 1) for r, n in zip(scored, lengths, strict=True)]
        return worth.index(max(worth)) + 1


def written_text(responses: Iterable[Response]) -> str | None:
    """What the model wrote; None where it only scored texts."""
    texts = [response.text for response in responses if isinstance(response, Generated)]
    return "\n".join(texts) if texts else None


Answer = TypeVar("Answer", str, int)  # in words, or as the position of a choice, from 1

EXCESS = 0.5  # share beyond the usual one, of the room above it
CHANCE = 0.001  # of a share that large, were the usual one true


def overused(
    answers: Sequence[Answer], usual: Mapping[Answer, float], choices: int | None = None
) -> list[Common]:
    """Answers whose share is far above their usual one, the most frequent first.

    The excess is measured as kappa measures agreement, (share - usual) / (1 - usual): an answer
    that half of all questions have by right must be given to three quarters of them to stand out,
    one of four choices to five in eight, and an answer that no question has to half of them: a
    model that knows less falls back on a favourite guess more often, and that is no loss of
    speech. The share must also be beyond chance, by a binomial test. `usual` may lack answers that
    are not usual at all.
    """
    count = len(answers)
    rare = 1 / (count + 2)  # of what was not seen once (Laplace)
    found = []
    for answer, times in Counter(answers).most_common():
        share, normal = times / count, max(usual.get(answer, 0.0), rare)
        excess = (share - normal) / (1 - normal) if normal < 1 else 0.0
        if excess >= EXCESS and float(stats.binom.sf(times - 1, count, normal)) < CHANCE:
            found.append(
                Common(answer=answer, choices=choices, count=times, share=share, usual=normal)
            )
    return found


def answer_shares(answers: Iterable[Answer]) -> dict[Answer, float]:
    """The share of each answer, drawn a little towards rare: (times + 1) / (all + 2)."""
    counts = Counter(answers)
    everything = sum(counts.values())
    return {answer: (times + 1) / (everything + 2) for answer, times in counts.items()}


class Labels:
    """What is usual among all examples, which the category of one depends on."""

    def __init__(self, cases: Sequence[Case], prompts: Iterable[str], by_length: bool) -> None:
        """Learn from the scored cases what is usual.

        `prompts` are those of the whole task; `by_length` is how acc_norm picks choices.
        """
        self.by_length = by_length
        self.slack = slack(cases)
        texts = [case for case in cases if case.intact.text is not None]
        golds = [case.gold or "" for case in texts]
        self.habits = Habits(golds, [case.intact.text or "" for case in texts], prompts)
        self.answers = common_answers(texts)
        offered = {len(case.requests) for case in cases if len(case.requests) > 1}
        self.picks = {count: self.common_picks(cases, count) for count in sorted(offered)}

    def common_picks(self, cases: Sequence[Case], count: int) -> list[Common]:
        """Positions among `count` choices that are picked too often, against intact and chance."""
        several = [case for case in cases if len(case.requests) == count]
        before = [case.pick(case.intact, self.by_length) for case in several]
        after = [case.pick(case.knocked_out, self.by_length) for case in several]
        usual = answer_shares(pick for pick in before if pick is not None)
        picks = [pick for pick in after if pick is not None]
        floor = {pick: max(1 / count, usual.get(pick, 0.0)) for pick in picks}
        return overused(picks, floor, count)

    def worse(self, case: Case) -> bool:
        """Whether the outcome is not right, or, where it is no 0 or 1, lower than intact."""
        if self.slack is None:
            return case.knocked_out.outcome != 1
        return case.knocked_out.outcome < case.intact.outcome - self.slack

    def better(self, case: Case) -> bool:
        """Whether the outcome became right, or, where it is no 0 or 1, higher than intact."""
        if self.slack is None:
            return case.knocked_out.outcome > case.intact.outcome
        return case.knocked_out.outcome > case.intact.outcome + self.slack

    def of(self, case: Case) -> Category:
        unchanged = case.unchanged
        for category, fits in RULES:
            if (not unchanged or category is Category.RIGHT) and fits(self, case):
                return category
        return Category.WRONG_CONTENT


def slack(cases: Sequence[Case]) -> float | None:
    """What a real-valued outcome may lose and still count as kept; None for outcomes of 0 and 1."""
    before = [case.intact.outcome for case in cases]
    after = [case.knocked_out.outcome for case in cases]
    if {*before, *after} <= {0.0, 1.0}:
        return None
    return float(SLACK * np.std(before))


def judged_answer(answered: Answered) -> str:
    """The answer as it is compared with others: the judged part of it, or the whole.

    What is judged may hold more than the answer: a program with the beginning from its prompt.
    """
    text, judged = answered.text or "", answered.judged
    return normalised(judged if judged is not None and judged in text else text)


def common_answers(cases: Sequence[Case]) -> list[Common]:
    """Answers given far more often than intact, and than they are right; empty ones aside."""
    answers = [judged_answer(case.knocked_out) for case in cases]
    intact = answer_shares(judged_answer(case.intact) for case in cases)
    gold = answer_shares(normalised(case.gold or "") for case in cases)
    usual = {answer: max(intact.get(answer, 0.0), gold.get(answer, 0.0)) for answer in answers}
    return [common for common in overused(answers, usual) if common.answer] if answers else []


def is_empty(labels: Labels, case: Case) -> bool:
    """Nothing was written, where intact something was."""
    intact, knocked_out = case.intact.text, case.knocked_out.text
    return bool(intact and intact.strip()) and knocked_out is not None and not knocked_out.strip()


def repeats(single: bool) -> Callable[[Labels, Case], bool]:
    """A test for a repeated end that the intact answer does not have."""

    def test(labels: Labels, case: Case) -> bool:
        found = case.knocked_out.repetition
        return found is not None and found.single is single and case.intact.repetition is None

    return test


def runs_on(labels: Labels, case: Case) -> bool:
    """The token limit ended the answer, and not the intact one."""
    tokens = [
        max((r.tokens for r in answered.responses if isinstance(r, Generated)), default=0)
        for answered in (case.intact, case.knocked_out)
    ]
    return case.limit is not None and tokens[0] < case.limit <= tokens[1]


def is_unlikely(labels: Labels, case: Case) -> bool:
    """Even the likeliest choice, or a text long enough, lost `UNLIKELY` nats a token."""
    before, after = case.intact.likelihood, case.knocked_out.likelihood
    if before is None or after is None or before - after < UNLIKELY:
        return False
    return len(case.knocked_out.responses) > 1 or tokens_scored(case) >= WHOLE_TEXT


def is_common_answer(labels: Labels, case: Case) -> bool:
    """Wrong, another answer than intact, and the one that far too many examples got."""
    if case.knocked_out.text is None or not labels.worse(case):
        return False
    answer = judged_answer(case.knocked_out)
    return answer != judged_answer(case.intact) and answer in {c.answer for c in labels.answers}


def is_common_pick(labels: Labels, case: Case) -> bool:
    """Another choice than intact, at the position that far too many examples got."""
    pick = case.pick(case.knocked_out, labels.by_length)
    if pick is None or pick == case.pick(case.intact, labels.by_length):
        return False
    return pick in {common.answer for common in labels.picks[len(case.requests)]}


def is_out_of_form(labels: Labels, case: Case) -> bool:
    """Nothing to judge in it, no program where intact was one, or of a shape never seen."""
    intact, knocked_out = case.intact.text, case.knocked_out.text
    if intact is None or knocked_out is None:
        return False
    if not (case.knocked_out.judged or "").strip() and (case.intact.judged or "").strip():
        return True
    if labels.habits.is_misshapen(knocked_out):
        return True
    return is_program(intact, case.prompt) and not is_program(knocked_out, case.prompt)


def is_missed(labels: Labels, case: Case) -> bool:
    """One text alone was scored, too short to tell what else the model would have said."""
    return len(case.knocked_out.responses) == 1 and 0 < tokens_scored(case) < WHOLE_TEXT


def tokens_scored(case: Case) -> int:
    """Tokens of the longest text scored, 0 where the model wrote."""
    tokens = [r.tokens for r in case.knocked_out.responses if isinstance(r, Scored)]
    return max(tokens, default=0)


RULES: tuple[tuple[Category, Callable[[Labels, Case], bool]], ...] = (
    (Category.EMPTY, is_empty),
    (Category.STUCK, repeats(single=True)),
    (Category.LOOP, repeats(single=False)),
    (Category.SAME_ANSWER, is_common_answer),
    (
        Category.GIBBERISH,
        lambda labels, case: labels.habits.is_gibberish(case.knocked_out.text or ""),
    ),
    (Category.RUNS_ON, runs_on),
    (Category.UNLIKELY, is_unlikely),
    (Category.RIGHT, lambda labels, case: not labels.worse(case)),
    (Category.SAME_CHOICE, is_common_pick),
    (Category.FORMAT, is_out_of_form),
    (Category.MISSED, is_missed),
)
