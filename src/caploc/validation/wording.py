"""How the answers to a task usually look, and whether one still looks so or repeats itself.

Everything is learnt from the texts at hand (prompts, gold answers, intact answers): no dictionary
and no language is assumed, and where the intact answers themselves are too varied to teach
anything, nothing is called strange.

A model that has fallen into a loop does not leave it: greedy decoding of the same last words gives
the same next words, up to the token limit. A phrase repeated in the middle of an answer that then
goes on is therefore none (three like lines of a program and then its `return`).
"""

import ast
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import dedent

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
    """What kind of thing a text is: numbers become 0, words w, single letters x.

    Every other character stays, and runs of whitespace become one space.
    """
    plain = NUMBER.sub("0", " ".join(text.split()))
    return WORD.sub(lambda found: "x" if len(found[0]) == 1 else "w", plain)


def normalised(text: str) -> str:
    """A text without what two ways of writing the same answer differ in.

    Case, width, runs of whitespace, and marks around it; a text of marks alone stays.
    """
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
    """The repetition that the text ends in, None if it ends in none worth the name.

    Runs of whitespace count as one space; closing marks after the last repeat do not matter.
    """
    plain = " ".join(text.split())
    # What stands between two repeats is missing after the last one.
    endings = [core + gap for core in (plain, plain.rstrip(CLOSING)) for gap in ("", " ")]
    found = [told for ending in endings if (told := repeated_end(ending)) is not None]
    return max(found, key=lambda told: told.share, default=None)


def repeated_end(text: str) -> Repetition | None:
    """The longest end of exactly this text that repeats a phrase often enough.

    A number alone is no phrase: 0.333333333333 is an answer.
    """
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
    """The smallest period of every end of the text, the shortest end first.

    A text of n characters has period p if its first and last n - p characters agree. The longest
    such agreement of every beginning of the reversed text is what Knuth, Morris and Pratt's
    failure function gives, in linear time.
    """
    turned = text[::-1]
    agree = [0] * len(turned)
    for place in range(1, len(turned)):
        known = agree[place - 1]
        while known and turned[place] != turned[known]:
            known = agree[known - 1]
        agree[place] = known + (turned[place] == turned[known])
    return [length - known for length, known in enumerate(agree, start=1)]


def tell_left_out(heads: Sequence[str], fresh: bool) -> str:
    """Say which heads of a set are not named, and why."""
    where = "fresh examples" if fresh else "the examples at hand"
    adds = "adds" if len(heads) == 1 else "add"
    return (
        f"{' '.join(heads)} {adds} nothing to the set that {where} would show beyond doubt, and "
        f"{'is' if len(heads) == 1 else 'are'} not named."
    )
