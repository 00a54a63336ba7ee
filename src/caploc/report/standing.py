"""Where a head stands: what the search and the check say of it, for the map and the table alike."""

from dataclasses import dataclass

from caploc.result import HeadEffect, Result, Search

MEANINGS = {
    "named": "knocked out in the check",
    "critical": "breaks the task alone",
    "universal": "breaks another task too",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one head beside its effect; None and "" where nothing is."""

    named: bool  # among the top, and so knocked out in the check
    selected: bool
    candidate: bool  # on the shortlist, and not named
    tied: bool
    critical: bool
    universal: bool | None
    chance: str  # of belonging to the top, as a percentage
    alone: str  # on how many examples it was knocked out alone; "no" if on none

    @property
    def words(self) -> list[str]:
        """The standing in words, the weightiest first."""
        told = [
            ("named", self.named),
            ("selected", self.selected and not self.named),
            ("left out: universal", self.universal is True and not self.named),
            ("universal", self.universal is True and self.named),
            ("critical", self.critical and self.universal is not True),
            ("candidate", self.candidate and self.universal is not True),
            ("tied", self.tied),
        ]
        return [word for word, holds in told if holds]


@dataclass(frozen=True, slots=True)
class Standings:
    """What the search says of all heads."""

    top: list[str]
    wanted: int | None  # heads asked for
    shortlist: list[str]
    tied: set[str]
    critical: set[str]
    universal: set[str]
    alone: str
    goal: str | None

    def of(self, name: str, entry: HeadEffect | None) -> Standing:
        """Where the head of this name and entry stands."""
        named, universal = name in self.top, entry.universal if entry else None
        left_out = (universal is True or name in self.universal) and not named
        chance = None if left_out or not entry else entry.top_chance
        return Standing(
            named=named,
            selected=bool(entry and entry.selected),
            candidate=name in self.shortlist and not named,
            tied=name in self.tied,
            critical=bool(entry and entry.critical) or name in self.critical,
            universal=True if name in self.universal else universal,
            chance="" if chance is None else percent(chance),
            alone="" if left_out else self.alone_of(name),
        )

    def alone_of(self, name: str) -> str:
        """On how many examples a head was knocked out alone; empty if none ever was."""
        if name in self.shortlist:
            return self.alone
        return "no" if self.shortlist else ""

    @property
    def place(self) -> str:
        """What the chances are chances of: `the top 5`, where a set is named, of single heads."""
        place = f"the top {self.wanted:,}" if self.wanted else "the top"
        return f"{place} alone" if self.goal == "set" else place


def standings(result: Result) -> Standings:
    """Gather what a result says of its heads; results without a search say little."""
    search = result.search
    return Standings(
        top=result.top,
        wanted=result.method.top,
        shortlist=search.shortlist or [],
        tied=set(search.tied or []),
        critical=set(search.critical),
        universal=set(search.universal),
        alone=_alone(search),
        goal=search.goal,
    )


def _alone(search: Search) -> str:
    """The heads at the border of the top are tried on more examples than the others."""
    count = search.checked_on
    if not count:
        return "no" if count == 0 else "yes"
    kind = {True: " fresh", False: " used before"}.get(search.fresh, "")  # type: ignore[arg-type]
    return f"up to {count:,}{kind}"


def percent(share: float) -> str:
    """A chance or a share, to whole percent; what is nearly sure is not called sure."""
    if 0 < share < 0.01:
        return "<\u00a01\u00a0%"
    if 0.99 < share < 1:
        return ">\u00a099\u00a0%"
    return f"{100 * share:.0f}\u00a0%"
