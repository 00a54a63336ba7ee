"""What the rows of a run took, and which engines answered them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from caploc.engine.api import Answer, Way
from caploc.progress import Progress
from caploc.registries import PLAIN
from caploc.result import Answerer
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
    ways: Counter[Way] = field(default_factory=Counter)  # who answered how many requests, and why

    def as_dict(self) -> dict[str, int | float]:
        return {
            "rows": self.rows,
            "forward_tokens": round(self.forward_tokens),
            "plain_tokens": self.plain_tokens,
            "seconds": round(self.seconds, 3),
        }

    def answerers(self) -> list[Answerer]:
        """Say who answered what was asked by this process, those of most requests first."""
        return [
            Answerer(engine=way.engine, requests=count, why=way.why or None)
            for way, count in self.ways.most_common()
        ]

    def count_ways(self, answers: Sequence[Answer], progress: Progress) -> None:
        """Count who answered; an engine that had to step in is told."""
        for answer in answers:
            if (way := answer.way) is not None:
                if way.why and way not in self.ways:
                    slow = SLOW.get(way.engine, "")
                    progress.tell(f"Engine {way.engine}{slow}, answers: {way.why}.")
                self.ways[way] += 1

    def count(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        self.intact += sum(not len(unpack(row.mask)) for row in rows)
        self.forward_tokens += sum(row.tokens for row in rows)
        self.plain_tokens += sum(row.plain_tokens for row in rows)
        self.seconds += sum(row.seconds for row in rows)
