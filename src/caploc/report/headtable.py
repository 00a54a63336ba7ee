"""The heads as a page shows them: where each stands, the map of all, the table of some."""

from dataclasses import dataclass

from caploc.components import Component
from caploc.report.colours import GREYS, shade_class, shade_number
from caploc.result import HeadEffect, Member, Members, Result
from caploc.wording import (
    Unit,
    finite_numbers,
    outcome_unit,
    percent,
)

DARKEST = 0.5  # share of probability lost from which a scanned head has the darkest grey
DENSE = 24  # columns from which a cell is too narrow for its number
LISTED = 12  # heads of the table


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one head; None and "" where nothing is."""

    entry: HeadEffect  # its effect; one that a result does not list has none
    named: bool  # among the top, and so knocked out in the check
    candidate: bool  # tried alone, and not named
    critical: bool
    universal: bool
    excluded: bool
    unconfirmed: bool  # found by the search, and not confirmed by the check
    costly: bool  # confirmed, and left out since it costs other tasks
    chance: str  # of belonging to the top, as a percentage

    @property
    def words(self) -> list[str]:
        """The standing in words, the weightiest first."""
        told = {
            "named": self.named,
            "breaks another task too": self.universal and self.named,
            "left out: breaks another task too": self.universal and not self.named,
            "breaks the task alone": self.critical and not self.universal,
            "tried alone": self.candidate and not self.universal,
            "not confirmed": self.unconfirmed,
            "left out: costs other tasks": self.costly,
            "excluded": self.excluded,
        }
        return [word for word, holds in told.items() if holds]

    @property
    def marks(self) -> str:
        """CSS classes of the standing, each after a blank."""
        signs = {
            " t": self.named,
            " d": self.candidate,
            " c": self.critical,
            " x": self.universal,
        }
        return "".join(sign for sign, holds in signs.items() if holds)


def standings(result: Result) -> dict[str, Standing]:
    """Return where each head of the grid stands, by name; results without a search say little."""
    search, entries, found = result.search, result.by_name(), {}
    tried, excluded = search.tried or [], search.excluded
    for head in result.grid.grid().components:
        name, layer, index = str(head), head.layer, head.index
        entry = entries.get(name) or HeadEffect(head=name, layer=layer, index=index, effect=None)
        named, universal = name in result.top, name in search.universal
        left_out = universal and not named
        # chances are of single heads' effects, and say nothing of a set that is named
        chance = None if left_out or search.seeks_set else entry.top_chance
        found[name] = Standing(
            entry=entry,
            named=named,
            candidate=name in tried and not named,
            critical=name in search.critical,
            universal=universal,
            excluded=name in excluded,
            unconfirmed=name in result.validation.unconfirmed,
            costly=name in result.validation.costly,
            chance="" if chance is None else percent(chance),
        )
    return found


@dataclass(frozen=True, slots=True)
class Cell:
    """One head of the map."""

    head: Component
    shade: str  # CSS class of its colour; `u` not measured, `q0` to `q5` scanned only
    text: str  # its effect, without the unit
    note: str  # all that is known of it, a line each
    standing: Standing
    starts_group: bool  # the first head of a key-value group, not first in its layer


@dataclass(frozen=True, slots=True)
class HeadMap:
    """The cells of every layer, and what the legend says."""

    kind: str  # of the components that the cells are of
    letter: str  # of their names
    layers: list[list[Cell]]
    columns: int
    dense: bool  # too many columns for numbers in the cells
    tick: int  # every how many columns the label is shown
    limit: float  # the largest effect, which has the strongest colour
    needed_end: str
    helped_end: str
    marks: set[str]  # the words of all standings that some cell has
    scanned: int  # heads that only the scan asked
    unmeasured: int
    open: int  # heads whose interval holds zero
    uneven: bool  # some layer has fewer heads than another


def head_map(result: Result) -> HeadMap:
    """Lay the heads of a result out by layer, coloured by effect around zero."""
    unit, grid = outcome_unit(result), result.grid.grid()
    place = f"the top {result.method.top:,}" if result.method.top else "the top"
    limit = largest_effect(result)
    cells = []
    for standing in standings(result).values():
        entry, effect, head = standing.entry, standing.entry.effect, standing.entry.place
        notes, starts, group = _notes(standing, unit, place), False, grid.group(head)
        if group is not None:
            mates = next(each for each in grid.groups if grid.column(head) in each)
            first, last = (grid.component(mates[end]).index for end in (0, -1))
            notes.append(f"key-value group {group} (H{first}–H{last})")
            starts = head.index == first > 0
        shade, text = "u", ""
        if effect is not None:
            step = shade_number(-effect, limit)
            shade = "o" if entry.is_open else shade_class(step)
            # of what may be nothing no number stands out: the note has it
            quiet = step == 0 or (entry.is_open and not standing.named)
            text = "" if quiet else unit.number(effect, plus=True, digits=2)
        elif entry.scanned:
            shade = f"q{round(GREYS * min(max(entry.lost or 0.0, 0.0) / DARKEST, 1.0))}"
            notes = [describe_scan(entry), *notes[1:]]
        cells.append(Cell(head, shade, text, "\n".join(notes), standing, starts))
    columns = max(grid.per_layer, default=0)
    return HeadMap(
        kind=grid.COMPONENT.KIND,
        letter=grid.COMPONENT.LETTER,
        layers=[cells[columns] for columns in grid.layer_slices],
        columns=columns,
        dense=columns > DENSE,
        tick=1 if columns <= DENSE else 4 if columns <= 48 else 8,
        limit=limit,
        needed_end=unit.change(-limit) if limit else "",
        helped_end=unit.change(limit) if limit else "",
        marks={word.removeprefix("left out: ") for cell in cells for word in cell.standing.words},
        scanned=sum(cell.shade.startswith("q") for cell in cells),
        unmeasured=sum(cell.shade == "u" for cell in cells),
        open=sum(cell.shade == "o" and not cell.standing.named for cell in cells),
        uneven=any(size < columns for size in grid.per_layer),
    )


def describe_scan(entry: HeadEffect) -> str:
    """Say what the scan saw of a head that no trial followed."""
    stayed = (entry.scanned or 0) - (entry.broken or 0)
    lost = f", {100 * entry.lost:.0f} % of their probability lost" if entry.lost is not None else ""
    return f"{entry.head}: scanned; {stayed} of {entry.scanned} right answers stayed{lost}"


def largest_effect(result: Result) -> float:
    """Return the largest effect that is not open, whose colour is the strongest; else of all."""
    known = finite_numbers(entry.effect for entry in result.heads if not entry.is_open)
    every = finite_numbers(entry.effect for entry in result.heads)
    return max(map(abs, known or every), default=0.0)


def _notes(standing: Standing, unit: Unit, place: str) -> list[str]:
    """Say of a cell's head what is known of it, a line each."""
    effect = standing.entry.effect
    said = "not measured" if effect is None else unit.change(effect)
    lines = [f"{standing.entry.head}: {said}"]
    if interval := unit.interval(standing.entry):
        lines.append(f"95 % interval {interval}")
    if standing.chance:
        lines.append(f"belongs to {place} with a chance of {standing.chance}")
    return [*lines, ", ".join(standing.words)] if standing.words else lines


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One head with all that is known of it: by the search, and by the check if it is named."""

    standing: Standing
    member: Member | None


def list_heads(result: Result) -> list[HeadRow]:
    """List the named heads, then the others with a standing, then those needed most; a few."""
    stands, members = standings(result), result.validation.members or Members()
    checked = {one.head: one for one in members.heads}
    known = [entry.head for entry in result.heads if entry.effect is not None]
    chosen = [*result.top, *(name for name in known if stands[name].words), *known]
    names = list(dict.fromkeys(chosen))[: max(LISTED, len(result.top))]
    return [HeadRow(stands[name], checked.get(name)) for name in names if name in stands]
