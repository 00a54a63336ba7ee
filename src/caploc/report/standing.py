"""Where a head stands: what the search and the check say of it, for the map and the table alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caploc.report.reading import Result, at, known, number_at

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
    goal: str

    def of(self, name: str, entry: Mapping[str, Any] | None) -> Standing:
        """Where the head of this name and entry stands."""
        named, universal = name in self.top, at(entry, "universal")
        left_out = (universal is True or name in self.universal) and not named
        chance = None if left_out else known(at(entry, "top_chance"))
        return Standing(
            named=named,
            selected=at(entry, "selected") is True,
            candidate=name in self.shortlist and not named,
            tied=name in self.tied,
            critical=at(entry, "critical") is True or name in self.critical,
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
    search = at(result, "search")
    wanted = number_at(result, "method", "top")
    return Standings(
        top=[str(name) for name in at(result, "top") or ()],
        wanted=None if wanted is None else int(wanted),
        shortlist=[str(name) for name in at(search, "shortlist") or ()],
        tied={str(name) for name in at(search, "tied") or ()},
        critical={str(name) for name in at(search, "critical") or ()},
        universal={str(name) for name in at(search, "universal") or ()},
        alone=_alone(search),
        goal=str(at(search, "goal")),
    )


def _alone(search: Any) -> str:
    """The heads at the border of the top are tried on more examples than the others."""
    count = number_at(search, "checked_on")
    if not count:
        return "no" if count == 0 else "yes"
    kind = {True: " fresh", False: " used before"}.get(at(search, "fresh"), "")
    return f"up to {count:,.0f}{kind}"


def percent(share: float) -> str:
    """A chance or a share, to whole percent; what is nearly sure is not called sure."""
    if 0 < share < 0.01:
        return "<\u00a01\u00a0%"
    if 0.99 < share < 1:
        return ">\u00a099\u00a0%"
    return f"{100 * share:.0f}\u00a0%"
