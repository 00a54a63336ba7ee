"""What the rows of a run took; which engine stepped in is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from caploc.engine.api import Answer, Way
from caploc.progress import Progress
from caploc.registries import PLAIN
from caploc.store import Row
from caploc.store.rows import unpack

SLOW = {PLAIN: ", which shares nothing between rows and is slower"}


@dataclass
class Cost:
    """What the rows of a run took, whether they were measured now or before."""

    rows: int = 0
    intact: int = 0  # of them, those with nothing knocked out
    forward_tokens: float = 0.0  # run, in units of a pass through all layers
    plain_tokens: int = 0  # of reading and saying every row alone
    seconds: float = 0.0
    stepped_in: set[Way] = field(default_factory=set)  # engines not asked first, and why

    def as_dict(self) -> dict[str, int | float]:
        return {
            "rows": self.rows,
            "forward_tokens": round(self.forward_tokens),
            "plain_tokens": self.plain_tokens,
            "seconds": round(self.seconds, 3),
        }

    def tell_ways(self, answers: Sequence[Answer], progress: Progress) -> None:
        """Tell, once each, which engine had to step in, and why."""
        for answer in answers:
            if (way := answer.way) is not None and way.why and way not in self.stepped_in:
                slow = SLOW.get(way.engine, "")
                progress.tell(f"Engine {way.engine}{slow}, answers: {way.why}.")
                self.stepped_in.add(way)

    def count(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        self.intact += sum(not len(unpack(row.mask)) for row in rows)
        self.forward_tokens += sum(row.tokens for row in rows)
        self.plain_tokens += sum(row.plain_tokens for row in rows)
        self.seconds += sum(row.seconds for row in rows)
