"""Drive a search from its first plan to what it found; count its rows and the time it thinks."""

from collections.abc import Callable
from dataclasses import dataclass

from caploc.recovery import Measurements
from caploc.search import Found, Plan, Search
from clock import Stopwatch

Answer = Callable[[Plan], Measurements]


@dataclass(frozen=True)
class Done:
    """A search that has ended.

    `rows` leaves out those with no head knocked out, which every method needs; `thinking` has the
    CPU seconds of the search itself, `measuring` the seconds of its rows (0 where nothing runs).
    """

    found: Found
    rows: int
    thinking: float
    measuring: float = 0.0


def drive(search: Search, answer: Answer) -> Done:
    """Have every plan answered, until the search returns."""
    rows, thinking, measured = 0, 0.0, None
    while True:
        watch = Stopwatch()
        try:
            plan = next(search) if measured is None else search.send(measured)
        except StopIteration as end:
            return Done(end.value, rows, thinking + watch.read().cpu)
        thinking += watch.read().cpu
        rows += int(plan.masks.any(axis=1)[plan.mask].sum())
        measured = answer(plan)
