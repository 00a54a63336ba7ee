"""Which heads are universal: those whose loss costs many kinds of tasks, each beyond doubt."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from scipy import stats

from caploc.components import Component
from caploc.stats import JsonRecord

WIDTH = 1.96  # standard errors on either side of a 95 % interval
SHARE = 0.1  # of the intact score above chance, that losing the head must cost
LEVEL = 0.05  # false discovery rate over all heads and tasks
FEWEST_FAMILIES = 2


@dataclass(frozen=True)
class HeadCost:
    """The change of a task's score when one head is knocked out, and its standard error.

    In score units, and negative where the head is needed. The error is of the paired difference
    over examples; 0 is taken at its word, so that few examples that all change must not give it.
    """

    effect: float
    stderr: float


@dataclass(frozen=True)
class Intact:
    """A task's score with no head knocked out, its standard error, and the score of guessing."""

    score: float
    stderr: float
    chance: float = 0.0

    @property
    def above(self) -> float:
        """What there is to lose."""
        return self.score - self.chance


@dataclass(frozen=True)
class TaskVerdict(JsonRecord):
    """One head on one task.

    `share` is the share of the intact score above chance that its loss costs, `q` the false
    discovery rate at which the task would be said to need it; at `LEVEL` it is `needed`.
    """

    task: str
    family: str
    effect: float
    stderr: float
    share: float
    p: float
    q: float
    needed: bool


@dataclass(frozen=True)
class HeadVerdict(JsonRecord):
    """A head, the families of tasks that need it, and whether it is universal.

    It is where `wanted` of the `families` in which it was tried surely need it: half of them, and
    two at least.
    """

    head: str
    universal: bool
    needed_by: list[str]
    families: int
    wanted: int
    trials: list[TaskVerdict]


@dataclass(frozen=True)
class Universality(JsonRecord):
    """All candidates, universal ones first, and tasks with nothing to lose, which are left out."""

    candidates: list[HeadVerdict]
    left_out: list[str]
    share: float = SHARE

    @property
    def universal(self) -> list[str]:
        return [each.head for each in self.candidates if each.universal]

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"universal": self.universal}


def judge_universality(
    effects: Mapping[str, Mapping[Component, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str] | None = None,
) -> Universality:
    """Find the heads that at least half of the families of tasks need, and two.

    `effects` are of single heads, by task; `families` name the family of a task, which is otherwise
    one of its own: twins such as gsm8k and arithmetic must not make a head universal together. A
    family needs a head if one of its tasks does. For each head and task the hypothesis is that its
    loss costs no more than `SHARE` of the intact score above chance,

        z = (D - share (I - c)) / (se(D) + share se(I)),   D = -effect,

    one-sided; the error is an upper bound, whatever the correlation of D and I on the same
    examples. All of these tests together have false discovery rate `LEVEL` (Benjamini and Hochberg,
    1995).
    """
    # Where the model is not above chance beyond doubt, a share of the score means nothing.
    clear = {
        task: tried
        for task, tried in effects.items()
        if intact[task].above > WIDTH * intact[task].stderr
    }
    heads = sorted({head for tried in effects.values() for head in tried})
    named = {task: (families or {}).get(task, task) for task in clear}
    trials = tested_heads(clear, intact, named)
    found = [judge_head(head, [each for whose, each in trials if whose == head]) for head in heads]
    found.sort(key=lambda each: (not each.universal, -len(each.needed_by)))
    return Universality(found, [task for task in effects if task not in clear])


def tested_heads(
    effects: Mapping[str, Mapping[Component, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str],
) -> list[tuple[Component, TaskVerdict]]:
    """Test every head on every task on which it was measured."""
    asked = [
        (head, task, each)
        for task, tried in effects.items()
        for head, each in tried.items()
        if isfinite(each.effect) and isfinite(each.stderr)
    ]
    if not asked:
        return []
    p = [loss_p_value(each, intact[task]) for _, task, each in asked]
    q = stats.false_discovery_control(p).tolist()
    rows = []
    for (head, task, each), chance, rate in zip(asked, p, q, strict=True):
        figures = (each.effect, each.stderr, -each.effect / intact[task].above, chance, rate)
        rows.append((head, TaskVerdict(task, families[task], *figures, needed=rate <= LEVEL)))
    return rows


def loss_p_value(effect: HeadCost, intact: Intact) -> float:
    """Compute a one-sided p of the hypothesis that the loss costs no more than the share."""
    error = effect.stderr + SHARE * intact.stderr
    surplus = -effect.effect - SHARE * intact.above
    if error == 0:
        return 0.0 if surplus > 0 else 1.0
    return float(stats.norm.sf(surplus / error))


def judge_head(head: Component, trials: list[TaskVerdict]) -> HeadVerdict:
    """Judge one head by its trials on every task."""
    families = dict.fromkeys(each.family for each in trials)
    needed = list(dict.fromkeys(each.family for each in trials if each.needed))
    wanted = max(FEWEST_FAMILIES, ceil(len(families) / 2))
    universal = len(needed) >= wanted
    return HeadVerdict(str(head), universal, needed, len(families), wanted, trials)
