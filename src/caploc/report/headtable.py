"""The heads as a page shows them: where each stands, the map of all, the table of some."""

import math
from dataclasses import dataclass
from typing import Any

from caploc.components import ALONE, WITHIN, Head
from caploc.frontiers import find_unbroken, find_worst
from caploc.report import charts
from caploc.report.wording import (
    Unit,
    called,
    capital,
    counted,
    finite_numbers,
    inline,
    name_list,
    outcome_unit,
    percent,
    unit_of,
    write_q,
)
from caploc.result import Effect, Estimand, Frontier, HeadEffect, Result

MEANINGS = {"named": " (knocked out in the check)", "critical": " (breaks the task alone)"}
DENSE = 24  # columns from which a cell is too narrow for its number
HEADS_LISTED = 24  # rows without a script, which shows all heads a page at a time
QUIET = "·"  # in the place of an effect that may be none
UNSURE = "?"  # and of one that may be none, and may as well be as large as those of named heads
SIZEABLE = 0.5  # of the largest effect of a named head, from which on another one's is large
LIKELIEST = 10  # rows if no head stands out
SMALL = 0.05  # q below which a reader takes a head for sure


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one head; None and "" where nothing is."""

    entry: HeadEffect  # its effect; one that a result does not list has none
    named: bool  # among the top, and so knocked out in the check
    selected: bool
    candidate: bool  # tried alone, and not named
    critical: bool
    universal: bool | None
    excluded: bool
    chance: str  # of belonging to the top, as a percentage
    alone: str  # on how many examples it was knocked out alone; "no" if on none

    @property
    def words(self) -> list[str]:
        """The standing in words, the weightiest first."""
        told = {
            "named": self.named,
            "selected": self.selected and not self.named,
            "breaks another task too": self.universal is True and self.named,
            "left out: breaks another task too": self.universal is True and not self.named,
            "critical": self.critical and self.universal is not True,
            "candidate": self.candidate and self.universal is not True,
            "excluded": self.excluded,
        }
        return [word for word, holds in told.items() if holds]

    @property
    def marks(self) -> str:
        """CSS classes of the standing, each after a blank."""
        signs = {
            " t": self.named,
            " s": self.selected and not self.named,
            " d": self.candidate,
            " c": self.critical,
            " x": self.universal is True,
        }
        return "".join(sign for sign, holds in signs.items() if holds)


def standings(result: Result) -> dict[str, Standing]:
    """Return where each head of the grid stands, by name; results without a search say little."""
    search, entries, found = result.search, result.by_name(), {}
    tried, excluded = search.tried or [], search.excluded
    alone = f"{search.tried_on:,}" if search.tried_on else "yes"
    for head in result.grid.grid().components:
        name, layer, index = str(head), head.layer, head.index
        entry = entries.get(name) or HeadEffect(head=name, layer=layer, index=index, effect=None)
        named, universal = name in result.top, name in search.universal or entry.universal
        left_out = universal is True and not named
        # chances are of single heads' effects, and say nothing of a set that is named
        chance = None if left_out or search.seeks_set else entry.top_chance
        found[name] = Standing(
            entry=entry,
            named=named,
            selected=bool(entry.selected),
            candidate=name in tried and not named,
            critical=bool(entry.critical) or name in search.critical,
            universal=universal,
            excluded=name in excluded,
            chance="" if chance is None else percent(chance),
            alone=alone if name in tried else "no" if tried else "",
        )
    return found


def name_top(result: Result) -> str:
    """Return what chances are chances to belong to."""
    return f"the top {result.method.top:,}" if result.method.top else "the top"


@dataclass(frozen=True, slots=True)
class Cell:
    """One head of the map."""

    head: Head
    shade: str  # CSS class of its colour; `u` where the head was not measured
    text: str  # its effect, without the unit
    note: str  # all that is known of it, a line each
    standing: Standing
    starts_group: bool  # the first head of a key-value group, not first in its layer


@dataclass(frozen=True, slots=True)
class HeadMap:
    """The cells of every layer, and what the legend says."""

    layers: list[list[Cell]]
    columns: int
    dense: bool  # too many columns for numbers in the cells
    tick: int  # every how many columns the label is shown
    limit: float  # the largest effect, which has the strongest colour
    needed_end: str
    helped_end: str
    marks: set[str]  # the words of all standings that some cell has
    unmeasured: int
    open: int  # heads whose interval holds zero
    unsure: int  # those of them whose effect may be large
    grouped: bool  # some heads share keys and values
    uneven: bool  # some layer has fewer heads than another


def head_map(result: Result) -> HeadMap:
    """Lay the heads of a result out by layer, coloured by effect around zero."""
    unit, grid, place = outcome_unit(result), result.grid.grid(), name_top(result)
    limit = largest_effect(result)
    unsure = {each.head for each in sizeable_unnamed(result) if each.is_open}
    cells = []
    for standing in standings(result).values():
        entry, effect, head = standing.entry, standing.entry.effect, standing.entry.place
        notes, starts, group = _notes(standing, unit, place), False, grid.group(head)
        if group is not None:
            size, count = grid.group_sizes[head.layer], grid.heads_per_layer[head.layer]
            first, last = group * size, min((group + 1) * size, count) - 1
            notes.append(f"key-value group {group} (H{first}–H{last})")
            starts = head.index == first > 0
        shade, text = "u", "–"
        if effect is not None:
            step = charts.shade_number(-effect, limit)
            shade = "o" if entry.is_open else charts.shade_class(step)
            # of what may be nothing no number stands out: the note and the table have it
            quiet = entry.is_open and not standing.named
            text = QUIET if quiet else unit.short_effect(effect, limit)
            text = UNSURE if entry.head in unsure else text
        cells.append(Cell(head, shade, text, "\n".join(notes), standing, starts))
    columns = max(grid.heads_per_layer, default=0)
    return HeadMap(
        layers=[cells[columns] for columns in grid.layer_slices],
        columns=columns,
        dense=columns > DENSE,
        tick=1 if columns <= DENSE else 4 if columns <= 48 else 8,
        limit=limit,
        needed_end=unit.effect(-limit) if limit else "",
        helped_end=unit.effect(limit) if limit else "",
        marks={word.removeprefix("left out: ") for cell in cells for word in cell.standing.words},
        unmeasured=sum(cell.shade == "u" for cell in cells),
        open=sum(cell.shade == "o" and not cell.standing.named for cell in cells),
        unsure=len(unsure),
        grouped=any(cell.starts_group for cell in cells),
        uneven=any(size < columns for size in grid.heads_per_layer),
    )


def largest_effect(result: Result) -> float:
    """Return the largest effect that is not open, whose colour is the strongest; else of all."""
    known = finite_numbers(entry.effect for entry in result.heads if not entry.is_open)
    every = finite_numbers(entry.effect for entry in result.heads)
    return max(map(abs, known or every), default=0.0)


def _notes(standing: Standing, unit: Unit, place: str) -> list[str]:
    """Say of a cell's head what is known of it, a line each."""
    lines = [f"{standing.entry.head}: {unit.effect(standing.entry.effect)}"]
    if interval := unit.interval(standing.entry):
        lines.append(f"95 % interval {interval}")
    if standing.chance:
        lines.append(f"belongs to {place} with a chance of {standing.chance}")
    if standing.alone:
        plain = {"no": "no answers were asked without it alone", "yes": "tried alone"}
        lines.append(plain.get(standing.alone, f"tried alone on {standing.alone} examples"))
    words = [word + MEANINGS.get(word, "") for word in standing.words]
    return [*lines, ", ".join(words)] if words else lines


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One row of the table of heads."""

    rank: str
    head: str
    effect: str
    interval: str
    q: str
    standing: Standing

    def as_list(self) -> list[Any]:
        """As the page's script reads it: eight texts to show, then three numbers to sort by."""
        stands, entry = self.standing, self.standing.entry
        texts = [self.effect, self.interval, stands.chance, stands.alone, self.q]
        texts = [text or "–" for text in (*texts, ", ".join(stands.words))]
        chance = entry.top_chance if stands.chance else None
        return [self.rank, self.head, *texts, entry.effect, chance, entry.q]


@dataclass(frozen=True, slots=True)
class HeadTable:
    """The heads that count, most needed first, and which columns have anything to show."""

    title: str
    rows: list[HeadRow]
    every: list[HeadRow]  # all heads, the listed ones first
    count: int  # heads that belong here, those too many to list included
    named: bool  # whether any of the rows is named
    place: str  # what the chances are chances of
    columns: set[str]  # of those that not every table has, the ones that some row fills

    def as_data(self) -> dict[str, Any]:
        """All heads as the page's script reads them; the first `count` of them count.

        Each ends with its place in the table, the order that sorting by rank comes back to.
        """
        rows = [[*row.as_list(), place] for place, row in enumerate(self.every, 1)]
        return {"count": self.count, "named": self.named, "rows": rows}


def head_table(result: Result) -> HeadTable:
    """List the top in its own order, the selected, and what else the search looked at closely.

    If no head is named, the ten most needed.
    """
    stands, top, listed = standings(result), result.top, result.by_name()
    chosen = [name for name in top if name in listed]
    chosen += [name for name in listed if name not in top and stands[name].words]
    if not top:
        chosen = [name for name, one in listed.items() if one.effect is not None][:LIKELIEST]
    unit = outcome_unit(result)
    every = [
        HeadRow(
            rank=str(rank) if stands[name].named or not top else "–",
            head=inline(name),
            effect=unit.effect(listed[name].effect),
            interval=unit.interval(listed[name]) or "–",
            q=write_q(listed[name].q),
            standing=stands[name],
        )
        for rank, name in enumerate(dict.fromkeys([*chosen, *listed]), 1)
    ]
    rows = every[: min(len(chosen), HEADS_LISTED)]
    named = any(row.standing.named for row in rows)
    title = (
        "Named heads and candidates" if named else "The heads most needed alone, none of them named"
    )
    filled = {
        "intervals": any(row.interval != "–" for row in rows),
        "chances": any(row.standing.chance for row in rows),
        "alone": any(row.standing.alone for row in rows),
        "q": any(row.q != "–" for row in rows),
    }
    return HeadTable(
        title=title if rows else "No effects were measured",
        rows=rows,
        every=every,
        count=len(chosen),
        named=named,
        place=name_top(result),
        columns={name for name, holds in filled.items() if holds},
    )


def describe_estimand(estimand: Estimand) -> str:
    """End a sentence that begins with `what the score changes when a head is`."""
    if estimand.heads == ALONE:
        return "knocked out alone"
    share = f"{100 * estimand.rate:.3g}\u00a0% of all heads" if estimand.rate else "other heads"
    return f"knocked out among others ({share}, drawn at random)"


def sizeable_unnamed(result: Result) -> list[HeadEffect]:
    """List heads that do much, as estimated, and are not named; the largest effect first.

    Those that are left out because they break other tasks are not among them. Much is half of what
    the first of the others does, named or not.
    """
    left_out = {*result.search.universal, *result.search.excluded}
    effects = {
        each.head: each.effect
        for each in result.heads
        if each.effect is not None and each.head not in left_out and not each.universal
    }
    bar = min(SIZEABLE * min(effects.values(), default=0.0), 0.0)
    larger = {head for head, effect in effects.items() if effect < bar} - {*result.top}
    return sorted(
        (each for each in result.heads if each.head in larger), key=lambda each: each.effect or 0.0
    )


def explain_standings(result: Result) -> str:
    """Say which named heads the check leaves in doubt, why others are not named, what q is worth.

    Empty if there is no need.
    """
    told = _unconfirmed(result), _unnamed(result), _doubtful(result)
    return " ".join(text for text in told if text)


def _unconfirmed(result: Result) -> str:
    """Say which heads, named for what they do alone, may do nothing by the check's examples."""
    members = result.validation.members
    if members is None or result.estimand.top == WITHIN or not members.fresh:
        return ""
    unit = unit_of(result)
    doubted = [
        f"{one.head} {unit.effect(one.alone.effect)} ({unit.interval(one.alone)})"
        for one in members.heads
        if unit.interval(one.alone) and (one.alone.low or 0.0) <= 0 <= (one.alone.high or 0.0)
    ]
    if not doubted:
        return ""
    what = "its interval holds" if len(doubted) == 1 else "their intervals hold"
    return (
        f"The check does not confirm {name_list(doubted, 5)} alone: on its "
        f"{counted(members.examples or 0, 'example')} {what} 0."
    )


def _doubtful(result: Result) -> str:
    """Say why q may be small of a head whose own interval holds zero, if one that is shown does."""
    known = [each for each in result.heads if each.effect is not None]
    sure = [each for each in known if each.is_open and each.q is not None and each.q < SMALL]
    if not any(each in known[:LIKELIEST] for each in sure):
        return ""
    return (
        f"q of {name_list([each.head for each in sure], 3)} is below {SMALL:g} though the interval "
        "holds 0: "
        "it is the share of heads that do nothing to be expected among all down to this one."
    )


def _unnamed(result: Result) -> str:
    if result.estimand.top == WITHIN:
        return _beside_the_set(result)
    top, known = result.top, [each for each in result.heads if each.effect is not None]
    weakest = max((each.effect or 0.0 for each in known if each.head in top), default=-math.inf)
    larger = [each for each in known if each.head not in top and (each.effect or 0.0) < weakest]
    if not larger:
        return ""
    names, reasons = [each.head for each in larger], dict.fromkeys(map(_why_not, larger))
    told = f"Not named, though of larger effect than a named head: {name_list(names, 5)}."
    return f"{told} {capital(name_list(list(reasons)))}."


def _beside_the_set(result: Result) -> str:
    """Say which heads beside a set the task may need too; "" if none is known to."""
    unit, others = outcome_unit(result), sizeable_unnamed(result)
    sure, unsure = (
        name_list(
            [
                f"{each.head} {unit.effect(each.effect)} ({unit.interval(each) or 'not sure'})"
                for each in others
                if each.is_open is is_open
            ],
            5,
        )
        for is_open in (False, True)
    )
    struck = [
        f"{each.head} {unit.effect(each.effect)}"
        for each in result.heads
        if each.universal and each.head not in result.top and each.effect is not None
    ]
    if not others and not struck:
        return ""
    beside = "Not in the set, though alone" if result.top else "Alone"
    first = f"{beside} these take much, as tried or estimated: {sure}. " if sure else ""
    beside = "Not in it, with estimates" if result.top else "Estimates"
    second = f"{beside} that are large and not sure: {unsure}. " if unsure else ""
    if struck:
        second += f"Left out, for other tasks break too: {name_list(struck, 5)}. "
    spare = " and for what it leaves alone" if result.search.goal == "specific" else ""
    chosen = "the set was chosen" if result.top else "sets are chosen"
    return (
        f"{first}{second}An effect here is of one head {describe_estimand(result.estimand)}, by "
        f"this run's rows; {chosen} for what heads do together{spare}."
    )


def _why_not(entry: HeadEffect) -> str:
    """Say why a head of a large effect is not named."""
    if entry.universal:
        return "what breaks other tasks too is no head of this one"
    if entry.is_open:
        return "an interval that holds 0 leaves open whether a head does anything"
    return "how sure it is that a head does anything (q) counts beside the size of its effect"


def member_rows(result: Result) -> list[list[str]]:
    """Write what named heads do alone and within their set, each with its interval.

    Of one head alone the two are the same: there is no row.
    """
    members, unit = result.validation.members, unit_of(result)
    return [
        [inline(one.head), *write_effects(unit, one.alone, one.within)]
        for one in (members.heads if members and members.heads[1:] else [])
    ]


def tabulate_frontier(result: Result, *, others: bool = False) -> tuple[list[str], list[list[str]]]:
    """Tabulate the sets of a search for a specific one: headings, and a row for each set.

    Each says what the set takes from the task and from the twin that loses least, and what it costs
    the other task that loses most, and with `others` all of them. Without twins there are no
    columns of theirs, and unless some task was to be spared none of whether it was.
    """
    frontier, unit = result.validation.frontier or Frontier(), unit_of(result)
    headings = ["set", "damage", "95 % interval", "in other words", "95 % interval"]
    headings += ["worst elsewhere", "95 % interval", "in", "spares"]
    rows = []
    for one in frontier.sets:
        worst, twin = find_worst(one.spared), find_unbroken(one.twins)
        told = (each.effect if each else Effect() for each in (twin, worst))
        effects = write_effects(unit, one.damage, *told)
        elsewhere = called(worst.task) if worst else "–"
        rest = [
            f"{called(each.task)} {unit.effect(each.effect.effect)}"
            for each in one.spared
            if others and each is not worst
        ]
        elsewhere += f"; {', '.join(rest)}" if rest else ""
        kept = "not surely" if one.keeps is None else f"from {unit.effect(one.keeps).lstrip('+')}"
        kept = "yes" if one.within else kept
        rows.append([inline(" ".join(one.heads)), *effects, elsewhere, kept])
    if not any(one.twins for one in frontier.sets):
        headings, *rows = ([*row[:3], *row[5:]] for row in (headings, *rows))
    if result.search.goal != "specific":
        headings, *rows = (row[:-1] for row in (headings, *rows))
    return headings, rows


def count_frontier_examples(result: Result) -> str:
    """Write on how many examples the sets of a search for a specific one were judged."""
    frontier = result.validation.frontier or Frontier()
    others = {each.examples for one in frontier.sets for each in (*one.spared, *one.twins)}
    known = sorted(count for count in others if count)
    own = f"{frontier.examples} " if frontier.examples else ""
    if not known:
        return f"{own}fresh examples of the task, and on examples of each other task"
    ends = f"{known[0]}" if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    return f"{own}fresh examples of the task, and on {ends} of each other task"


def write_effects(unit: Unit, *effects: Effect | HeadEffect) -> list[str]:
    """Write each effect and its interval as two cells."""
    pairs = ((unit.effect(each.effect), unit.interval(each) or "–") for each in effects)
    return [cell for pair in pairs for cell in pair]
