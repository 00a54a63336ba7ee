"""How localized a task is in a model, whether that depends on size, and which heads are universal.

Localization strength is the share of its score that the task loses with the heads found knocked
out, less the share that general tasks lose: large where few heads carry this task and no other.
Universal heads are those whose loss costs many kinds of tasks, each beyond doubt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, factorial, inf, isfinite
from typing import Any

import numpy as np
from scipy import stats

from caploc.components import Head
from caploc.designs import generator
from caploc.errors import BadOption, UnknownName
from caploc.stats import JsonRecord

WIDTH = 1.96  # standard errors on either side of a 95 % interval
CLEAR = 2.0  # standard errors that an intact score must lie above chance
FEWEST_MODELS = 3  # whose order can be right or wrong
ALL_ORDERS = 8  # models, at most, of which every order is tried
ORDERS = 9_999  # random ones, of more
ROUNDING = 1e-12  # of a correlation


@dataclass(frozen=True)
class Scores:
    """A task's score with no head and with the heads found knocked out, with standard errors.

    `change_stderr` is that of the difference of the two, both being of the same examples; None
    where it is not known, and then they are taken as independent, which is too cautious where an
    example that is hard stays hard. `chance` is the score of guessing.
    """

    intact: float
    intact_stderr: float
    knocked_out: float
    knocked_out_stderr: float
    change_stderr: float | None = None
    chance: float = 0.0


@dataclass(frozen=True)
class Strength(JsonRecord):
    """Localization strength with its 95 % interval, and the two shares that it is made of."""

    strength: float
    stderr: float
    low: float
    high: float
    task_loss: float
    task_stderr: float
    general_loss: float
    general_stderr: float


@dataclass(frozen=True)
class Trend(JsonRecord):
    """Whether localization grows or falls with the number of parameters.

    `rho` is Spearman's rank correlation (None where all strengths are equal) and `p` its two-sided
    permutation p; `least_p` is the smallest p that these models could give, had they come in
    perfect order: 1/60 with five.
    """

    models: list[str]
    rho: float | None
    p: float
    least_p: float


def share_error(
    left: float, whole: float, errors: tuple[float, float], change: float | None
) -> float:
    """Compute the standard error of a share `r` that is left of a whole, by the delta method.

    `var r = (r² var I + var K - 2 r cov(I, K)) / whole²`, with the errors of I (the whole score)
    and K (what is left of it), and `cov(I, K) = (var I + var K - var(I - K)) / 2`, or 0 where the
    error of the change is not known.
    """
    intact, cut = errors
    covariance = 0.0
    if change is not None:
        covariance = (intact**2 + cut**2 - change**2) / 2
        covariance = min(max(covariance, -intact * cut), intact * cut)  # rounded errors may not fit
    variance = left**2 * intact**2 + cut**2 - 2 * left * covariance
    return float(max(variance, 0.0) ** 0.5 / abs(whole))


def share_lost(scores: Scores) -> tuple[float, float]:
    """Compute the share of the intact score above chance that is lost, and its standard error.

    Raises BadOption if the intact score is not above chance by two standard errors.
    """
    above = scores.intact - scores.chance
    if above <= 0 or above < CLEAR * scores.intact_stderr:
        raise BadOption(
            f"An intact score of {scores.intact:.4g} is not clearly above chance "
            f"({scores.chance:.4g}): there is nothing to take a share of; use a task that the "
            "model can do, or more examples."
        )
    left = (scores.knocked_out - scores.chance) / above
    errors = scores.intact_stderr, scores.knocked_out_stderr
    return 1 - left, share_error(left, above, errors, scores.change_stderr)


def localization(task: Scores, general: Scores) -> Strength:
    """Take the share of the task's score lost less that of the general one, of other examples.

    Raises BadOption if one of the intact scores is not clearly above chance.
    """
    own, elsewhere = share_lost(task), share_lost(general)
    strength, error = own[0] - elsewhere[0], float(np.hypot(own[1], elsewhere[1]))
    ends = strength - WIDTH * error, strength + WIDTH * error
    return Strength(strength, error, *ends, *own, *elsewhere)


def mean_strength(strengths: Sequence[Strength]) -> Strength:
    """Average the strengths of several tasks of one model.

    General examples are the same in all, so errors are averaged too: an upper bound.
    """
    means = {
        field.name: float(np.mean([getattr(each, field.name) for each in strengths]))
        for field in fields(Strength)
    }
    half = WIDTH * means["stderr"]
    ends = {"low": means["strength"] - half, "high": means["strength"] + half}
    return Strength(**means | ends)


def trend(
    strengths: Mapping[str, Strength], parameters: Mapping[str, float], *, seed: int = 0
) -> Trend:
    """Compare models by their number of parameters.

    With eight models or fewer every order of the strengths is tried; with more, random ones, and
    `p = (1 + orders as extreme) / (1 + orders)`. Raises BadOption with fewer than three models;
    UnknownName if a model's size is not given.
    """
    if len(strengths) < FEWEST_MODELS:
        raise BadOption(
            f"A trend needs {FEWEST_MODELS} models or more; got {', '.join(strengths) or 'none'}."
        )
    if missing := [model for model in strengths if model not in parameters]:
        raise UnknownName(f"The number of parameters of {', '.join(missing)} is not given.")
    models = sorted(strengths, key=lambda model: parameters[model])
    figures = [parameters[model] for model in models], [strengths[m].strength for m in models]
    ranks = stats.rankdata(figures, axis=1)
    sizes, values = ranks - ranks.mean(axis=1, keepdims=True)
    if not sizes.any() or not values.any():
        return Trend(models, None, 1.0, 1.0)
    length, every = float(np.linalg.norm(sizes) * np.linalg.norm(values)), len(models) <= ALL_ORDERS
    tried = stats.permutation_test(
        (values,),
        lambda order, axis: (np.abs(order @ sizes) / length).round(9),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=inf if every else ORDERS,
        alternative="greater",
        random_state=generator(seed),
    )
    orders = tried.null_distribution
    least = max(2 / factorial(len(models)), 1 / (1 + ORDERS))
    if every:
        least = float((orders >= orders.max() - ROUNDING).mean())
    return Trend(models, float(values @ sizes) / length, float(tried.pvalue), least)


SHARE = 0.1  # of the intact score above chance, that losing the head must cost
LEVEL = 0.05  # false discovery rate over all heads and tasks
FEWEST_FAMILIES = 2
VERDICTS = ("universal", "open", "not universal")


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

    `share` is the share of the intact score above chance that its loss costs, from `low` to `high`
    with 95 % confidence, `q` the false discovery rate at which the task would be said to need it.
    The verdict is `needed` (for sure by the share asked for), `spared` (for sure by less), or
    `open`.
    """

    task: str
    family: str
    effect: float
    stderr: float
    share: float
    low: float
    high: float
    p: float
    q: float
    verdict: str


@dataclass(frozen=True)
class HeadVerdict(JsonRecord):
    """A head, the families of tasks that need it, and whether it is universal.

    It is where `wanted` of the `families` in which it was tried need it: half of them, and two at
    least. It is not where fewer than these can still need it, and open otherwise.
    """

    head: str
    verdict: str
    needed_by: list[str]
    families: int
    wanted: int
    trials: list[TaskVerdict]


@dataclass(frozen=True)
class Universality(JsonRecord):
    """All candidates, universal ones first, and tasks with nothing to lose, which are left out."""

    candidates: list[HeadVerdict]
    left_out: list[str]
    share: float
    level: float

    @property
    def universal(self) -> list[str]:
        return [each.head for each in self.candidates if each.verdict == "universal"]

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"universal": self.universal}


def judge_universality(
    effects: Mapping[str, Mapping[Head, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str] | None = None,
    *,
    share: float = SHARE,
    level: float = LEVEL,
) -> Universality:
    """Find the heads that at least half of the families of tasks need, and two.

    `effects` are of single heads, by task; `families` name the family of a task, which is otherwise
    one of its own: twins such as gsm8k and arithmetic must not make a head universal together. A
    family needs a head if one of its tasks does. For each head and task the hypothesis is that its
    loss costs no more than `share` of the intact score above chance,

        z = (D - share (I - c)) / (se(D) + share se(I)),   D = -effect,

    one-sided; the error is an upper bound, whatever the correlation of D and I on the same
    examples. All of these tests together have false discovery rate `level` (Benjamini and Hochberg,
    1995). The interval holds the shares s for which `|D - s (I - c)| <= 1.96 (se(D) + |s| se(I))`.
    Raises BadOption if `share` or `level` is out of range, or a task's intact score is not given.
    """
    for name, value in (("share", share), ("level", level)):
        if not 0 < value < 1:
            raise BadOption(f"The {name} must lie between 0 and 1; got {value:g}.")
    if missing := [task for task in effects if task not in intact]:
        raise BadOption(f"The intact score of {', '.join(missing)} is not given.")
    # Where the model is not above chance beyond doubt, a share of the score means nothing.
    clear = {
        task: tried
        for task, tried in effects.items()
        if intact[task].above > WIDTH * intact[task].stderr
    }
    heads = sorted({head for tried in effects.values() for head in tried})
    named = {task: (families or {}).get(task, task) for task in clear}
    trials = tested_heads(clear, intact, named, share, level)
    found = [judge_head(head, [each for whose, each in trials if whose == head]) for head in heads]
    found.sort(key=lambda each: (VERDICTS.index(each.verdict), -len(each.needed_by)))
    return Universality(found, [task for task in effects if task not in clear], share, level)


def tested_heads(
    effects: Mapping[str, Mapping[Head, HeadCost]],
    intact: Mapping[str, Intact],
    families: Mapping[str, str],
    share: float,
    level: float,
) -> list[tuple[Head, TaskVerdict]]:
    """Test every head on every task on which it was measured."""
    asked = [
        (head, task, each)
        for task, tried in effects.items()
        for head, each in tried.items()
        if isfinite(each.effect) and isfinite(each.stderr)
    ]
    if not asked:
        return []
    p = [loss_p_value(each, intact[task], share) for _, task, each in asked]
    rows = []
    q = stats.false_discovery_control(p).tolist()
    for (head, task, each), chance, rate in zip(asked, p, q, strict=True):
        low, high = loss_interval(each, intact[task])
        verdict = "needed" if rate <= level else "spared" if high < share else "open"
        lost = -each.effect / intact[task].above
        figures = (each.effect, each.stderr, lost, low, high, chance, rate)
        rows.append((head, TaskVerdict(task, families[task], *figures, verdict)))
    return rows


def loss_p_value(effect: HeadCost, intact: Intact, share: float) -> float:
    """Compute a one-sided p of the hypothesis that the loss costs no more than the share."""
    error = effect.stderr + share * intact.stderr
    surplus = -effect.effect - share * intact.above
    if error == 0:
        return 0.0 if surplus > 0 else 1.0
    return float(stats.norm.sf(surplus / error))


def loss_interval(effect: HeadCost, intact: Intact) -> tuple[float, float]:
    """Find the shares that the measured loss leaves possible, as `universal` says."""
    ends = []
    for side in (-1, 1):
        lost = -effect.effect + side * WIDTH * effect.stderr
        wider = -side if lost >= 0 else side  # a positive share is widened by a smaller whole
        ends.append(lost / (intact.above + wider * WIDTH * intact.stderr))
    return ends[0], ends[1]


def judge_head(head: Head, trials: list[TaskVerdict]) -> HeadVerdict:
    """Judge one head by its trials on every task."""
    families = list(dict.fromkeys(each.family for each in trials))
    needed = list(dict.fromkeys(each.family for each in trials if each.verdict == "needed"))
    possible = {each.family for each in trials if each.verdict != "spared"}
    wanted = max(FEWEST_FAMILIES, ceil(len(families) / 2))
    verdict = "open"
    if len(needed) >= wanted:
        verdict = "universal"
    elif len(possible) < wanted <= len(families):
        verdict = "not universal"
    return HeadVerdict(str(head), verdict, needed, len(families), wanted, trials)
