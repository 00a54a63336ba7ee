"""The map of all heads, layer by layer: what each cell shows and says."""

import math
from dataclasses import dataclass

from caploc.heads import Head, HeadGrid
from caploc.report import colours
from caploc.report.reading import finite_numbers
from caploc.report.standing import MEANINGS, Standing, Standings, standings
from caploc.report.units import Unit, outcome_unit
from caploc.result import Bounded, HeadEffect, Result

DENSE = 24  # columns from which a cell is too narrow for its number


@dataclass(frozen=True, slots=True)
class Cell:
    """One head of the map."""

    head: Head
    shade: str  # CSS class of its colour; `u` where the head was not measured
    text: str  # its effect, without the unit
    note: str  # all that is known of it, a line each
    standing: Standing
    starts_group: bool  # the first head of a key-value group, not first in its layer

    @property
    def marks(self) -> str:
        """CSS classes of its standing, each after a blank."""
        stands = self.standing
        signs = {
            " t": stands.named,
            " s": stands.selected and not stands.named,
            " d": stands.candidate,
            " c": stands.critical,
            " x": stands.universal is True,
        }
        return "".join(sign for sign, holds in signs.items() if holds)


@dataclass(frozen=True, slots=True)
class HeadMap:
    """The cells of every layer, and what the legend says."""

    layers: list[list[Cell]]
    columns: int
    limit: float  # the largest effect, which has the strongest colour
    needed_end: str
    helped_end: str
    unit: Unit
    unmeasured: int

    @property
    def marks(self) -> set[str]:
        """The words of all standings that some cell has."""
        words = (word for layer in self.layers for cell in layer for word in cell.standing.words)
        return {word.removeprefix("left out: ") for word in words}

    @property
    def dense(self) -> bool:
        """Whether the columns are too many for numbers in the cells."""
        return self.columns > DENSE

    @property
    def tick(self) -> int:
        """Every how many columns (and layers, in a dense map) the label is shown."""
        return 1 if self.columns <= DENSE else 4 if self.columns <= 48 else 8

    @property
    def grouped(self) -> bool:
        """Whether some heads share keys and values."""
        return any(cell.starts_group for layer in self.layers for cell in layer)

    @property
    def uneven(self) -> bool:
        """Whether some layer has fewer heads than another."""
        return any(len(layer) < self.columns for layer in self.layers)


def head_map(result: Result) -> HeadMap:
    """Lay the heads of a result out by layer, coloured by effect around zero."""
    unit, grid = outcome_unit(result), result.grid.grid()
    entries = by_head(result)
    effects = {head: entry.effect for head, entry in entries.items()}
    limit = max((abs(effect) for effect in finite_numbers(effects.values())), default=0.0)
    around = _Around(unit, grid, limit, standings(result))
    cells = [_cell(head, entries.get(head), around) for head in grid.heads]
    return HeadMap(
        layers=[cells[columns] for columns in grid.layer_slices],
        columns=max(grid.heads_per_layer, default=0),
        limit=limit,
        needed_end=unit.effect(math.copysign(limit, -unit.harm(-1))) if limit else "",
        helped_end=unit.effect(math.copysign(limit, unit.harm(-1))) if limit else "",
        unit=unit,
        unmeasured=sum(effects.get(head) is None for head in grid.heads),
    )


def by_head(result: Result) -> dict[Head, HeadEffect]:
    """Return the entries of a result by their head."""
    return {entry.place: entry for entry in result.heads}


@dataclass(frozen=True, slots=True)
class _Around:
    """What a cell needs to know beyond its own entry."""

    unit: Unit
    grid: HeadGrid
    limit: float
    known_of: Standings


def _cell(head: Head, entry: HeadEffect | None, around: _Around) -> Cell:
    unit, grid = around.unit, around.grid
    effect = entry.effect if entry else None
    standing = around.known_of.of(str(head), entry)
    group = grid.group(head)
    shade = "u"
    if effect is not None:
        shade = colours.name(colours.step(unit.harm(effect), around.limit))
    return Cell(
        head=head,
        shade=shade,
        text=unit.short_effect(effect, around.limit) if effect is not None else "–",
        note="\n".join(_note(head, entry, around, standing)),
        standing=standing,
        starts_group=bool(group) and grid.group(Head(head.layer, head.index - 1)) != group,
    )


def _note(head: Head, entry: HeadEffect | None, around: _Around, standing: Standing) -> list[str]:
    unit = around.unit
    lines = [f"{head}: {unit.effect(entry.effect if entry else None)}"]
    interval = interval_text(entry, unit)
    if interval:
        lines.append(f"95 % interval {interval}")
    if standing.chance:
        lines.append(f"belongs to {around.known_of.place} with a chance of {standing.chance}")
    if standing.alone:
        lines.append(_alone(standing.alone))
    if standing.words:
        lines.append(", ".join(_explained(word) for word in standing.words))
    return lines + _group_note(head, around.grid)


def _alone(where: str) -> str:
    plain = {"no": "not checked alone", "yes": "checked alone"}
    return plain.get(where, f"checked alone on {where} examples")


def _explained(word: str) -> str:
    meaning = MEANINGS.get(word.removeprefix("left out: "))
    return f"{word} ({meaning})" if meaning else word


def _group_note(head: Head, grid: HeadGrid) -> list[str]:
    group = grid.group(head)
    if group is None:
        return []
    size = grid.group_sizes[head.layer]
    last = min((group + 1) * size, grid.heads_per_layer[head.layer]) - 1
    return [f"key-value group {group} (H{group * size}–H{last})"]


def interval_text(effect: Bounded | None, unit: Unit) -> str:
    """Write `−45.1 to −37.0`, or nothing where an end is missing."""
    if effect is None or effect.low is None or effect.high is None:
        return ""
    return f"{unit.bare_effect(effect.low)} to {unit.bare_effect(effect.high)}"
