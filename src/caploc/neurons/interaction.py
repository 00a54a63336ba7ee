"""Is losing heads and neurons at once more, or less, than the sum of both losses? Numbers only.

Of each example, with losses taken from the same intact outcome,

    interaction = loss(both) - loss(heads) - loss(neurons)

Above 0 each covers for the loss of the other, below 0 they do the same work or lie on one path. On
a scale with a floor, such as accuracy, losses that reach it look as if they did the same work. The
definitions, and what the verdict says, are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int

from caploc.commonality import Interval, Result, mean_interval
from caploc.commonality.intervals import BATCH, LEVEL, RESAMPLES
from caploc.designs import generator

CONDITIONS = ("heads", "neurons", "both")
Outcomes = Float64[np.ndarray, " examples"]  # NaN is missing


@dataclass(frozen=True)
class Ratio(Result):
    """Mean loss of both over the sum of both mean losses, above 1 if more than the sum.

    None if that sum is not above 0; the bounds alone are None if it is not in every resample.
    """

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Joint(Result):
    """What heads, neurons and both cost, on the examples whose outcome is known in every condition.

    `intact` is the mean outcome before, the others the mean loss of it, more is more lost; `summed`
    is that of heads plus that of neurons. Intervals are paired: each example keeps all of its
    outcomes. `undefined` is the number of examples left out.
    """

    intact: Interval
    heads: Interval
    neurons: Interval
    both: Interval
    summed: Interval
    interaction: Interval
    ratio: Ratio
    undefined: int


@dataclass(frozen=True)
class Verdict(Result):
    """Whether both cost more than the sum, in one word and in sentences.

    `sum` says only that the interval of the interaction holds 0. `reached` counts, by arm, the
    random draws whose mean interaction is at least as far on the located one's side. `saturated`:
    by the task's metric both losses add up to more than lies between the intact outcome and that
    of guessing, so that its interaction says nothing.
    """

    kind: Literal["more", "sum", "less"]
    reached: dict[str, int]
    saturated: bool
    sentence: str


def interactions(intact: Outcomes, cut: Mapping[str, Outcomes]) -> Outcomes:
    """The interaction of each example, from its outcomes in every condition."""
    return cut["heads"] + cut["neurons"] - cut["both"] - intact


def joint(intact: Outcomes, cut: Mapping[str, Outcomes], *, seed: int = 0) -> Joint:
    """The losses of every condition, and how they add up.

    Raises:
        BadData: if an outcome is infinite.
    """
    table = np.stack([intact, *(cut[name] for name in CONDITIONS)])
    known = ~np.isnan(table).any(axis=0)
    whole, heads, neurons, both = table[:, known]
    lost = {"heads": whole - heads, "neurons": whole - neurons, "both": whole - both}
    summed = lost["heads"] + lost["neurons"]
    told = lost | {"summed": summed, "interaction": lost["both"] - summed}
    return Joint(
        intact=mean_interval(whole, seed=seed),
        **{name: mean_interval(each, seed=seed) for name, each in told.items()},
        ratio=ratio(lost["both"], summed, seed=seed),
        undefined=int((~known).sum()),
    )


def ratio(above: Outcomes, below: Outcomes, *, seed: int = 0) -> Ratio:
    """Mean over mean of the same examples, with a percentile bootstrap interval over them."""
    if not len(below) or not below.mean() > 0:
        return Ratio(None, None, None)
    value = float(above.mean() / below.mean())
    if len(below) < 2:
        return Ratio(value, None, None)
    random = generator(seed)
    drawn = np.concatenate(
        [
            quotients(above, below, random.integers(len(below), size=(count, len(below))))
            for count in chunks(RESAMPLES, BATCH)
        ]
    )
    if np.isnan(drawn).any():
        return Ratio(value, None, None)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(value, float(low), float(high))


def quotients(
    above: Outcomes, below: Outcomes, chosen: Int[np.ndarray, "resamples examples"]
) -> Float64[np.ndarray, " resamples"]:
    """Mean over mean of each resample; NaN where the lower one is not above 0."""
    one, other = above[chosen].mean(axis=1), below[chosen].mean(axis=1)
    return np.divide(one, other, out=np.full_like(one, np.nan), where=other > 0)


def chunks(total: int, most: int) -> list[int]:
    """A total in parts of at most so many."""
    return [min(most, total - first) for first in range(0, total, most)]


def judge(
    metric: Joint, logprob: Joint, drawn: Mapping[str, Sequence[Joint]], chance: float
) -> Verdict:
    """The verdict on located heads and neurons, from log-probabilities (nats a gold token).

    `drawn` are, by arm, the same figures of random draws; `chance` is the mean outcome of guessing
    by the task's metric.
    """
    found = logprob.interaction
    sign = -1 if found.mean < 0 else 1
    kind: Literal["more", "sum", "less"] = "sum"
    if found.excludes_zero:
        kind = "less" if sign < 0 else "more"
    reached = {
        arm: sum(sign * each.interaction.mean >= sign * found.mean for each in joints)
        for arm, joints in drawn.items()
    }
    saturated = bool(metric.summed.mean > metric.intact.mean - chance)
    told = [added_up(kind, logprob)]
    if kind != "sum":
        told += [
            f"{count or 'None'} of {len(drawn[arm])} draws of {arm} "
            f"{'do' if count != 1 else 'does'} as much."
            for arm, count in reached.items()
        ]
    if saturated:
        told.append("The metric is left out: its losses add up to more than there is to lose.")
    return Verdict(kind, reached, saturated, " ".join(told))


def added_up(kind: str, lost: Joint) -> str:
    """How the losses of log-probability add up, as a sentence."""
    found = lost.interaction
    low, high = sorted((abs(found.low), abs(found.high)))
    apart = f"{abs(found.mean):.2f} (95 % interval {low:.2f} to {high:.2f})"
    start = (
        f"Without its heads and its neurons the task loses {lost.both.mean:.2f} nats a gold token "
        f"(heads alone {lost.heads.mean:.2f}, neurons alone {lost.neurons.mean:.2f})"
    )
    ends = {
        "more": f"{apart} more than the sum of both losses, as if each covered for the other.",
        "less": f"{apart} less than the sum of both losses: {less(lost)}.",
        "sum": f"which {found.items} examples cannot tell from the sum of both losses (95 % "
        f"interval of the difference {found.low:+.2f} to {found.high:+.2f}).",
    }
    return f"{start}, {ends[kind]}"


def less(lost: Joint) -> str:
    """What a sum that is not reached points to."""
    alone = {"heads": lost.heads.mean, "neurons": lost.neurons.mean}
    worse = max(alone, key=alone.__getitem__)
    if lost.both.mean >= alone[worse]:
        return "they do the same work, or lie on one path"
    other = "neurons" if worse == "heads" else "heads"
    return f"once the {worse} are gone, the {other} do harm"
