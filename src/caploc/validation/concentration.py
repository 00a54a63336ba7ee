"""Answers given far more often than the questions call for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scipy import stats

Answer = TypeVar("Answer", str, int)  # in words, or as the position of a choice

EXCESS = 0.5  # share beyond the usual one, of the room above it
CHANCE = 0.001  # of a share that large, were the usual one true


@dataclass(frozen=True, slots=True)
class Overused(Generic[Answer]):
    """An answer, how many examples got it, what share that is and what share is usual."""

    answer: Answer
    count: int
    share: float
    usual: float


def overused(answers: Sequence[Answer], usual: Mapping[Answer, float]) -> list[Overused[Answer]]:
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
            found.append(Overused(answer, times, share, normal))
    return found


def answer_shares(answers: Iterable[Answer]) -> dict[Answer, float]:
    """The share of each answer, drawn a little towards rare: (times + 1) / (all + 2)."""
    counts = Counter(answers)
    everything = sum(counts.values())
    return {answer: (times + 1) / (everything + 2) for answer, times in counts.items()}
