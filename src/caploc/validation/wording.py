"""What the answers to a task usually look like, and whether an answer still looks so.

Everything is learnt from the texts at hand (prompts, gold answers, intact answers): no dictionary
and no language is assumed, and where the intact answers themselves are too varied to teach
anything, nothing is called strange.
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


@dataclass(frozen=True, slots=True)
class Text:
    """The answers to one example; a gold answer that is missing is the empty text."""

    gold: str
    intact: str


class Habits:
    """How the intact model answers these examples: in what shape, with what words."""

    def __init__(self, texts: Sequence[Text], prompts: Iterable[str]) -> None:
        """Look at examples; `prompts` are those of the whole task. No order matters."""
        shapes = Counter(shape(text.intact) for text in texts)
        golds = {shape(text.gold) for text in texts if text.gold}
        short = sum(times for kind, times in shapes.items() if len(THING.findall(kind)) <= SHORT)
        alike = max(shapes.values(), default=0)
        fixed = len(texts) > 1 and min(short, alike) >= SAME_SHAPE * len(texts)
        self.shapes = {*shapes, *golds} if fixed else None
        lines = {line for prompt in prompts for line in prompt.splitlines()}
        self.asked = {word for line in lines for word in words(line)}
        answers = [words(text.gold) | words(text.intact) for text in texts]
        self.said = Counter(word for found in answers for word in found)
        new = sorted(self.new_share(text.intact) for text in texts)
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
    """Whether the text is Python with more than expressions in it."""
    tree = parse_python(program)
    return tree is not None and any(
        isinstance(node, ast.stmt) and not isinstance(node, ast.Expr) for node in ast.walk(tree)
    )


def parse_python(program: str) -> ast.Module | None:
    """The text as Python, None if it is none."""
    if len(program) > LONGEST_PROGRAM:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, which kind depends on the Python
            return ast.parse(program)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
