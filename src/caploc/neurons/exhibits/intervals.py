"""Intervals in cells, sentences and pictures."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from caploc.commonality import Interval
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING


def bounds(interval: Interval | None) -> drawing.Interval:
    """An interval as it is drawn."""
    if interval is None:
        return None, None, None
    return tuple(known(x) for x in (interval.mean, interval.low, interval.high))  # type: ignore[return-value]


def known(value: float) -> float | None:
    """The number, None for NaN."""
    return None if np.isnan(value) else float(value)


def ranged(interval: Interval | None, digits: int = 3) -> str:
    """An interval in a cell: the mean and its bounds."""
    mean, low, high = bounds(interval)
    if mean is None:
        return NOTHING
    if low is None or high is None:
        return f"{mean:z.{digits}f}"
    return f"{mean:z.{digits}f} [{low:z.{digits}f}, {high:z.{digits}f}]"


def cell(value: float) -> str:
    """A number of a matrix, a dash for NaN."""
    return f"{value:z.3f}" if np.isfinite(value) else NOTHING


def figure(value: float | None) -> str:
    """A number in a sentence."""
    return "not known" if value is None else f"{value:.3f}"


def from_file(interval: Mapping[str, Any] | None) -> drawing.Interval:
    """An interval that was read from a file."""
    if interval is None:
        return None, None, None
    return interval["mean"], interval["low"], interval["high"]


def told(interval: Mapping[str, Any] | None, digits: int = 3) -> str:
    """An interval that was read from a file, in a cell."""
    mean, low, high = (np.nan if each is None else float(each) for each in from_file(interval))
    return ranged(Interval(mean, low, high, items=0), digits)
