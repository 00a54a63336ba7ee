"""Means over items with their intervals, and how records of them are written. No model.

Intervals are percentile ones of `scipy.stats.bootstrap`, which of every method alone need nothing
of the data but that items are independent. With few items (below about 20) they are somewhat too
narrow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float64
from pydantic import BeforeValidator
from scipy import stats

from caploc.designs import generator
from caploc.errors import BadData

LEVEL = 0.95
RESAMPLES = 9_999
BATCH = 500  # resamples held in memory at a time
Values = Float64[np.ndarray, " items"]  # NaN is missing
# A number of a record: NaN where it is not known, which is null in a file.
Known = Annotated[float, BeforeValidator(lambda value: np.nan if value is None else value)]


class JsonRecord:
    """A frozen dataclass that files hold."""

    def as_dict(self) -> dict[str, Any]:
        """Describe it as files have it: field by field, in plain Python, NaN as None."""
        return {
            field.name: plain_value(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # its heirs are dataclasses
        }


def plain_value(value: Any) -> Any:
    """Turn a value into plain Python: a set (boolean array) into its columns, NaN into None."""
    if isinstance(value, JsonRecord):
        return value.as_dict()
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 1:
        return np.flatnonzero(value).tolist()
    if isinstance(value, np.ndarray | np.generic):
        return plain_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no JsonRecord; it cannot be written as one.")
    return value


@dataclass(frozen=True)
class Interval(JsonRecord):
    """A mean, and the bounds within which it is known to lie.

    `items` is the number of items it rests on. NaN where there is no item; the bounds alone are NaN
    for a single one. Where all values are equal, the bounds are the mean.
    """

    mean: Known
    low: Known
    high: Known
    items: int
    level: float = LEVEL


def mean_interval(values: Values, *, seed: int = 0) -> Interval:
    """Average the items, NaN left out, with a 95 % interval; raises BadData if one is infinite."""
    if np.isinf(values).any():
        raise BadData(
            f"{np.count_nonzero(np.isinf(values))} of {len(values)} values are infinite and have "
            "no mean; leave them out (as NaN), or use a metric that is finite."
        )
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) else np.nan
    if len(known) < 2 or np.ptp(known) == 0:
        end = mean if len(known) > 1 else np.nan
        return Interval(mean, end, end, len(known))
    bounds = stats.bootstrap(
        (known,), np.mean, n_resamples=RESAMPLES, batch=BATCH, vectorized=True,
        confidence_level=LEVEL, method="percentile", random_state=generator(seed),
    ).confidence_interval  # fmt: skip
    return Interval(mean, float(bounds.low), float(bounds.high), len(known))


def paired_interval(first: Values, second: Values, *, seed: int = 0) -> Interval:
    """Average `first - second` as `mean_interval`; an item that lacks either is left out."""
    return mean_interval(first - second, seed=seed)
