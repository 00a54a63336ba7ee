"""The table of the heads that count: effects with their intervals, and where each head stands."""

from dataclasses import dataclass
from typing import Any

from caploc.report.headmap import interval_text
from caploc.report.reading import inline
from caploc.report.standing import Standing, Standings, standings
from caploc.report.units import Unit, outcome_unit
from caploc.result import HeadEffect, Result

HEADS_LISTED = 24  # rows without a script, which shows all heads a page at a time
LIKELIEST = 10  # rows if no head stands out


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One row of the table of heads."""

    rank: str
    head: str
    effect: str
    interval: str
    q: str
    standing: Standing
    number: float | None  # effect, its interval and q as they are, to sort by and to draw
    low: float | None
    high: float | None
    q_number: float | None
    chance: float | None

    def as_list(self) -> list[Any]:
        """As the page's script reads it: eight texts to show, then three numbers to sort by."""
        stands = self.standing
        words = ", ".join(stands.words)
        texts = [self.effect, self.interval, stands.chance, stands.alone, self.q, words]
        numbers = [self.number, self.chance, self.q_number]
        return [self.rank, self.head, *(text or "–" for text in texts), *numbers]


@dataclass(frozen=True, slots=True)
class HeadTable:
    """The heads that count, most needed first, and which columns have anything to show."""

    rows: list[HeadRow]
    every: list[HeadRow]  # all heads, the listed ones first
    place: str  # what the chances are chances of
    intervals: bool
    chances: bool
    alone: bool
    q: bool
    named: bool  # whether any of the rows is named
    left_out: int  # heads that belong here but are too many to list

    @property
    def count(self) -> int:
        """How many heads belong here, those too many to list included."""
        return len(self.rows) + self.left_out

    def as_data(self) -> dict[str, Any]:
        """All heads as the page's script reads them; the first `count` of them count.

        Each ends with its place in the table, the order that sorting by rank comes back to.
        """
        rows = [[*row.as_list(), place] for place, row in enumerate(self.every, 1)]
        return {"count": self.count, "named": self.named, "rows": rows}

    @property
    def title(self) -> str:
        """What the table shows."""
        if not self.rows:
            return "No effects were measured"
        return "The heads that count" if self.named else "The likeliest heads, none of them named"


def head_table(result: Result) -> HeadTable:
    """List the top, the selected, and what else the search looked at closely.

    If there are none of these, the ten most needed.
    """
    known_of, unit = standings(result), outcome_unit(result)
    entries = result.heads
    chosen = _chosen(entries, known_of)
    chosen = chosen or [entry for entry in entries if entry.effect is not None][:LIKELIEST]
    others = [entry for entry in entries if not any(entry is one for one in chosen)]
    every = [_row(number, e, known_of, unit) for number, e in enumerate([*chosen, *others], 1)]
    rows = every[: min(len(chosen), HEADS_LISTED)]
    return HeadTable(
        rows=rows,
        every=every,
        place=known_of.place,
        intervals=any(row.interval != "–" for row in rows),
        chances=any(row.standing.chance for row in rows),
        alone=any(row.standing.alone for row in rows),
        q=any(row.q != "–" for row in rows),
        named=any(row.standing.named for row in rows),
        left_out=len(chosen) - len(rows),
    )


def _chosen(entries: list[HeadEffect], known_of: Standings) -> list[HeadEffect]:
    """The top in its own order, then all others that have a standing."""
    by_name = {entry.head: entry for entry in entries}
    top = [by_name[name] for name in known_of.top if name in by_name]
    others = [
        entry
        for name, entry in by_name.items()
        if name not in known_of.top and known_of.of(name, entry).words
    ]
    return top + others


def _row(rank: int, entry: HeadEffect, known_of: Standings, unit: Unit) -> HeadRow:
    standing, q = known_of.of(entry.head, entry), entry.q
    ends = (entry.low, entry.high) if None not in (entry.low, entry.high) else (None, None)
    return HeadRow(
        rank=str(rank) if standing.named or not known_of.top else "–",
        head=inline(entry.head),
        effect=unit.effect(entry.effect),
        interval=interval_text(entry, unit) or "–",
        q="–" if q is None else "<\u00a00.001" if q < 0.001 else f"{q:.2g}",
        standing=standing,
        number=entry.effect,
        low=ends[0],
        high=ends[1],
        q_number=q,
        chance=entry.top_chance if standing.chance else None,
    )
