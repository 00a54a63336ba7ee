"""A phrase said again and again at the end of an answer: its shortest form, and how often.

A model that has fallen into a loop does not leave it: greedy decoding of the same last words gives
the same next words, up to the token limit. A phrase repeated in the middle of an answer that then
goes on is therefore none (three like lines of a program and then its `return`).
"""

from dataclasses import dataclass

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
