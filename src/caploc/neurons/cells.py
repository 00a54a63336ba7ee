"""Intervals and matrices in cells, sentences and pictures, as pages on neurons show them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.stats.intervals import Interval

Row = tuple[str | Value, ...]
NamedRow = dict[str, str | Value]  # by column
Matrix = Float64[np.ndarray, "rows columns"]
YES_NO = {True: "yes", False: "no", None: NOTHING}


def bounds(interval: Interval | Mapping[str, Any] | None) -> drawing.Interval:
    """Take mean, low and high of an interval, fresh or from a file; None for what is not known."""
    if interval is None:
        return None, None, None
    found = interval.as_dict() if isinstance(interval, Interval) else interval
    return found["mean"], found["low"], found["high"]


def ranged(interval: Interval | Mapping[str, Any] | None, digits: int = 3) -> str:
    """Write the mean of an interval and its bounds."""
    mean, low, high = bounds(interval)
    if mean is None:
        return NOTHING
    if low is None or high is None:
        return f"{mean:z.{digits}f}"
    return f"{mean:z.{digits}f} [{low:z.{digits}f}, {high:z.{digits}f}]"


def mean_and_range(values: Sequence[float]) -> drawing.Interval:
    """Take mean, least and most of several numbers."""
    return (float(np.mean(values)), min(values), max(values)) if values else (None, None, None)


def as_text(value: float | None) -> str:
    """Write a number in a sentence."""
    return "not known" if value is None else f"{value:.3f}"


def effects_matrix(
    name: str,
    title: str,
    tasks: tuple[Sequence[str], Sequence[str]],
    effects: tuple[Matrix, Matrix],
    words: tuple[str, str],
) -> Exhibit:
    """Show a matrix of effects of one task's neurons (row) on each task (column).

    `effects` are those of located neurons and, in brackets, of random ones; `words` the head of the
    rows, and a note.
    """
    located, random = effects
    rows: list[Row] = [
        (
            task,
            *(
                f"{_cell(own)} ({_cell(drawn)})" if np.isfinite(drawn) else _cell(own)
                for own, drawn in zip(located[place], random[place], strict=True)
            ),
        )
        for place, task in enumerate(tasks[0])
    ]
    draw = partial(drawing.draw_matrix, *tasks, located, label="nats a token", diverging=True)
    return Exhibit(name, title, (words[0], *tasks[1]), rows, [words[1]], draw)


def _cell(value: float) -> str:
    return f"{value:z.3f}" if np.isfinite(value) else NOTHING
