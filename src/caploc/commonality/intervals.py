"""How sure a mean over items is: bootstrap intervals.

    mean_interval(values)                 # one number an item
    paired_interval(first, second)        # both measured on the same items
    difference_interval(first, second)    # two groups of items

Percentile intervals of `scipy.stats.bootstrap`: of every method they alone need nothing of the data
but that items are independent. With few items (below about 20) they are somewhat too narrow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy import stats

from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.sharing import Chance

LEVEL = 0.95
RESAMPLES = 9_999
BATCH = 500  # resamples held in memory at a time
Values = Float64[np.ndarray, " items"]  # NaN is missing


class Result:
    """A frozen dataclass that can be written to a file."""

    def as_dict(self) -> dict[str, Any]:
        """As files hold it: field by field, in plain Python, NaN as None."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # its heirs are dataclasses
        }


def plain(value: Any) -> Any:
    """The value in plain Python.

    An array becomes nested lists; a set of neurons (a boolean array) the columns of its members;
    a number that is not finite None.
    """
    if isinstance(value, Result | Chance):
        return value.as_dict()
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 1:
        return np.flatnonzero(value).tolist()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no Result; it cannot be written as one.")
    return value


@dataclass(frozen=True)
class Interval(Result):
    """A mean, or a difference of means, and the bounds within which it is known to lie.

    `items` is the number of items it rests on (of the smaller group, for two). NaN where there is
    no item; the bounds alone are NaN for a single one. Where all values are equal, the bounds are
    the mean.
    """

    mean: float
    low: float
    high: float
    items: int
    level: float = LEVEL

    @property
    def excludes_zero(self) -> bool:
        """Whether both bounds lie on the same side of 0; False if they are missing."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Values, *, seed: int = 0, level: float = LEVEL) -> Interval:
    """The mean of the items' values and its interval; missing values are left out.

    Raises:
        BadOption: if `level` is not strictly between 0 and 1. BadData: if a value is infinite.
    """
    return bootstrapped((known(values),), seed, level)


def paired_interval(
    first: Values, second: Values, *, seed: int = 0, level: float = LEVEL
) -> Interval:
    """The mean of `first - second`, item by item; an item that lacks either is left out.

    Raises:
        BadOption: if `level` is not strictly between 0 and 1. BadData: if a value is infinite.
    """
    return mean_interval(first - second, seed=seed, level=level)


def difference_interval(
    first: Float64[np.ndarray, " first"],
    second: Float64[np.ndarray, " second"],
    *,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """The mean of one group of items less that of another, each resampled on its own.

    Raises:
        BadOption: if `level` is not strictly between 0 and 1. BadData: if a value is infinite.
    """
    return bootstrapped((known(first), known(second)), seed, level)


def bootstrapped(groups: tuple[np.ndarray, ...], seed: int, level: float) -> Interval:
    """The mean of the first group, less that of the second if there is one."""
    if not 0 < level < 1:
        raise BadOption(
            f"The level of an interval must lie strictly between 0 and 1; got {level:g}."
        )
    items = min(len(group) for group in groups)
    if items == 0:
        return Interval(np.nan, np.nan, np.nan, 0, level)
    first, *rest = groups
    mean = float(first.mean() - sum(each.mean() for each in rest))
    if items == 1:
        return Interval(mean, np.nan, np.nan, 1, level)
    if all(np.ptp(group) == 0 for group in groups):
        return Interval(mean, mean, mean, items, level)
    bounds = stats.bootstrap(
        groups,
        contrast,
        n_resamples=RESAMPLES,
        batch=BATCH,
        vectorized=True,
        confidence_level=level,
        method="percentile",
        random_state=generator(seed),
    ).confidence_interval
    return Interval(mean, float(bounds.low), float(bounds.high), items, level)


def contrast(
    first: Float64[np.ndarray, "*some first"],
    second: Float64[np.ndarray, "*some second"] | None = None,
    axis: int = -1,
) -> Float64[np.ndarray, "*some"]:
    """The mean of the first values along the axis, less that of the second if there are any."""
    mean: np.ndarray = first.mean(axis=axis)
    return mean if second is None else mean - second.mean(axis=axis)


def known(values: Float64[np.ndarray, " values"]) -> Float64[np.ndarray, " known"]:
    """The values that are not missing.

    Raises:
        BadData: if one is infinite.
    """
    if np.isinf(values).any():
        raise BadData(
            f"{np.count_nonzero(np.isinf(values))} of {len(values)} values are infinite and have "
            "no mean; leave them out (as NaN), or use a metric that is finite."
        )
    finite: np.ndarray = values[~np.isnan(values)]
    return finite
