"""Drive a search from its first plan to what it found; count its rows."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from caploc.recovery import Measurements
from caploc.search import Found, Plan, Search

Answer = Callable[[Plan], Measurements]


@dataclass(frozen=True)
class Done:
    """A search that has ended.

    `asked` counts its rows by kind, but those with no head knocked out, which every method needs.
    """

    found: Found
    asked: dict[str, int]

    @property
    def rows(self) -> int:
        """Of all kinds."""
        return sum(self.asked.values())


def drive(search: Search, answer: Answer) -> Done:
    """Have every plan answered, until the search returns."""
    asked, measured = Counter[str](), None
    while True:
        try:
            plan = next(search) if measured is None else search.send(measured)
        except StopIteration as end:
            return Done(end.value, +asked)
        gone = plan.masks.sum(axis=1)[plan.mask]
        read = plan.probe.endswith(".likelihood")
        asked["signal" if read else "one head"] += int((gone == 1).sum())
        asked["signal" if read else "several heads"] += int((gone > 1).sum())
        measured = answer(plan)
