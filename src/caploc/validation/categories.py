"""What became of each answer when heads were knocked out, told apart from the intact answer.

The categories stand in their order of precedence: an answer is the first that fits. Those of
`BROKEN` say that the model lost the ability to answer, whatever it knows; each needs that the
intact answer to the same example was not so itself.

How the answers to a task usually look, and whether one still looks so or repeats itself, is learnt
from the texts at hand (prompts, gold answers, intact answers): no dictionary and no language is
assumed, and where the intact answers themselves are too varied to teach anything, nothing is called
strange. A model that has fallen into a loop does not leave it: greedy decoding of the same last
words gives the same next words, up to the token limit. A phrase repeated in the middle of an answer
that then goes on is therefore none (three like lines of a program and then its `return`).
"""

import ast
import json
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from textwrap import dedent
from typing import TypeVar

import numpy as np
from lm_eval.models.utils import normalize_gen_kwargs
from scipy import stats

from caploc.result import Common
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request, Response, Scored

LONGEST_PROGRAM = 20_000  # characters; Python's parser is asked about nothing longer
NUMBER = re.compile(r"[-+]?\d(?:[\d.,]*\d)?")
WORD = re.compile(r"[^\W\d_]+")
MARKS = " \t\r\n.,;:!?\"'`*()[]{}"
THING = re.compile(r"[0wx]+")  # a number or a word in a shape
SAME_SHAPE = 0.95  # of the intact answers, for a task whose answers have one shape
SHORT = 2  # numbers and words in such an answer; what takes a sentence can be worded otherwise
# An answer is gibberish from a third of strange words on where intact answers have no new ones, and
# later where they do: twice the share that only one intact answer in twenty exceeds comes on top.
# Wrong answers to grade-school questions stay below in 99 of 100, with 100 and with 1000 known
# ones; nonsense made of their letters is above in 85.
STRANGE, HEADROOM = 1 / 3, 2.0
FEWEST_WORDS = 2  # strange ones: a single one may be a name


class Habits:
    """How the intact model answers these examples: in what shape, with what words."""

    def __init__(
        self, golds: Sequence[str], answers: Sequence[str], prompts: Iterable[str]
    ) -> None:
        """Look at each example's gold answer, empty where it is missing, and intact answer.

        `prompts` are those of the whole task. No order of examples matters.
        """
        shapes = Counter(map(shape, answers))
        short = sum(times for kind, times in shapes.items() if len(THING.findall(kind)) <= SHORT)
        alike = max(shapes.values(), default=0)
        fixed = len(answers) > 1 and min(short, alike) >= SAME_SHAPE * len(answers)
        self.shapes = {*shapes, *map(shape, filter(None, golds))} if fixed else None
        lines = {line for prompt in prompts for line in prompt.splitlines()}
        self.asked = {word for line in lines for word in words(line)}
        pairs = zip(golds, answers, strict=True)
        self.said = Counter(word for gold, told in pairs for word in words(gold) | words(told))
        new = sorted(map(self.new_share, answers))
        usual = new[int(0.95 * (len(new) - 1))] if new else 1.0
        self.strange = STRANGE + HEADROOM * usual  # beyond 1 where new words are the rule

    def new_share(self, intact: str) -> float:
        """The share of an intact answer's words that no prompt and no other answer has."""
        found = words(intact)
        new = [word for word in found if word not in self.asked and self.said[word] < 2]
        return len(new) / max(len(found), 1)

    def is_gibberish(self, answer: str) -> bool:
        """Whether the answer is full of words that no prompt, gold or intact answer has."""
        found = words(answer)
        strange = [word for word in found if word not in self.asked and not self.said[word]]
        return len(strange) >= FEWEST_WORDS and len(strange) >= self.strange * len(found)

    def is_misshapen(self, answer: str) -> bool:
        """Whether the task's answers all have one shape and this one has another."""
        return self.shapes is not None and shape(answer) not in self.shapes


def words(text: str) -> set[str]:
    """The words of a text, without regard to case."""
    return set(WORD.findall(text.casefold()))


def shape(text: str) -> str:
    """Tell what kind of thing a text is: numbers become 0, words w, single letters x.

    Every other character stays, and runs of whitespace become one space.
    """
    plain = NUMBER.sub("0", " ".join(text.split()))
    return WORD.sub(lambda found: "x" if len(found[0]) == 1 else "w", plain)


def normalised(text: str) -> str:
    """Drop what two ways of writing an answer differ in: case, width, spaces, marks around it."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return plain.strip(MARKS) or plain


def is_program(answer: str, prompt: str) -> bool:
    """Whether the answer is Python that does something: `42` and `cake` only name a value.

    It may stand alone, be a body, go on where the prompt ends, or be fenced.
    """
    before, *fenced = answer.split("```")
    block = fenced[0].partition("\n")[2] if fenced else ""
    programs = dict.fromkeys((dedent(answer), prompt + answer, block, dedent(before)))
    return any(does_something(program) for program in programs)


def does_something(program: str) -> bool:
    """Tell whether the text is Python with more than expressions in it."""
    if len(program) > LONGEST_PROGRAM:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, which kind depends on the Python
            tree = ast.parse(program)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return any(isinstance(n, ast.stmt) and not isinstance(n, ast.Expr) for n in ast.walk(tree))


LEAST_TIMES = 3.0  # said in full: twice is how people and programs repeat themselves
LEAST_TIMES_WORD = 4.0  # of a single word or symbol: `no, no, no` is speech
LEAST_SHARE = 1 / 3  # of the answer, so that a refrain at the end of a long text is none
LEAST_LENGTH = 10  # characters: `1111` and `===` are short enough to be meant
LONGEST_WORD = 20  # characters; a longer repeated stretch without a space is a phrase
CLOSING = ".!?…。！？"  # may end a loop that was stopped


@dataclass(frozen=True, slots=True)
class Repetition:
    """The shortest phrase that is repeated, how often, and its share of the answer's characters.

    The last repeat may be cut short, so `times` need not be whole.
    """

    phrase: str
    times: float
    share: float

    @property
    def single(self) -> bool:
        """Whether it is one word, symbol or token and no phrase, wherever it is begun."""
        return self.phrase.count(" ") < 2 and len(self.phrase) <= LONGEST_WORD


def repetition(text: str) -> Repetition | None:
    """Find the repetition that the text ends in, None if it ends in none worth the name.

    Runs of whitespace count as one space; closing marks after the last repeat do not matter.
    """
    plain = " ".join(text.split())
    # What stands between two repeats is missing after the last one.
    endings = [core + gap for core in (plain, plain.rstrip(CLOSING)) for gap in ("", " ")]
    found = [told for ending in endings if (told := repeated_end(ending)) is not None]
    return max(found, key=lambda told: told.share, default=None)


def repeated_end(text: str) -> Repetition | None:
    """Find the longest end of exactly this text that repeats a phrase (0.33333333 is no phrase)."""
    longest, least = None, max(LEAST_LENGTH, LEAST_SHARE * len(text))
    for length, period in enumerate(end_periods(text), start=1):
        if length < max(least, LEAST_TIMES * period):
            continue
        told = Repetition(text[-period:], length / period, length / len(text))
        enough = told.times >= LEAST_TIMES_WORD or not told.single
        if enough and not told.phrase.strip().isdecimal():
            longest = told
    return longest


def end_periods(text: str) -> list[int]:
    """Find the smallest period of every end of the text, the shortest end first.

    A text of n characters has period p if its first and last n - p characters agree: what Knuth,
    Morris and Pratt's failure function of the reversed text gives, in linear time.
    """
    turned = text[::-1]
    agree = [0] * len(turned)
    for place in range(1, len(turned)):
        known = agree[place - 1]
        while known and turned[place] != turned[known]:
            known = agree[known - 1]
        agree[place] = known + (turned[place] == turned[known])
    return [length - known for length, known in enumerate(agree, start=1)]


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
    SAME_ANSWER = "same answer as others"  # wrong, and what far too many of them got
    GIBBERISH = "words foreign to the task"  # nonsense, another language, other talk
    RUNS_ON = "runs on"  # to the token limit, where the intact answer ended
    UNLIKELY = "unlikely"  # every choice, or the whole text, became far less likely
    RIGHT = "right"  # scored as right, or no worse than intact
    SAME_CHOICE = "same choice as others"  # wrong, and the position far too many got
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

    @cached_property
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
    """Share of each answer, drawn a little towards rare: (times + 1) / (all + 2)."""
    counts = Counter(answers)
    return {answer: (times + 1) / (counts.total() + 2) for answer, times in counts.items()}


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
        return case.knocked_out.outcome > case.intact.outcome + (self.slack or 0.0)

    def of(self, case: Case) -> Category:
        for category, fits in RULES:
            if (category is Category.RIGHT or not case.unchanged) and fits(self, case):
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
    return [common for common in overused(answers, usual) if common.answer]


def is_empty(labels: Labels, case: Case) -> bool:
    """Nothing was written, where intact something was."""
    intact, knocked_out = case.intact.text, case.knocked_out.text
    return bool(intact and intact.strip()) and knocked_out is not None and not knocked_out.strip()


def repeats(labels: Labels, case: Case, *, single: bool) -> bool:
    """It ends in a repetition, of one word or not, that the intact answer does not have."""
    found = case.knocked_out.repetition
    return found is not None and found.single is single and case.intact.repetition is None


def runs_on(labels: Labels, case: Case) -> bool:
    """The token limit ended the answer, and not the intact one."""
    tokens = [
        max((len(r.said) for r in answered.responses if isinstance(r, Generated)), default=0)
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
    (Category.STUCK, partial(repeats, single=True)),
    (Category.LOOP, partial(repeats, single=False)),
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
