"""Located neurons for a reader: how many, how steady, in which layers, shared with which tasks."""

from functools import partial

import numpy as np

from caploc.commonality import COMPARED, chance
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.neurons.exhibits.intervals import bounds, figure, known, ranged
from caploc.neurons.finding import Found, ordered
from caploc.neurons.grid import NeuronGrid
from caploc.neurons.located import Located

NAMED = 8  # neurons of a task that the table names
Row = tuple[str | Value, ...]


def shown(located: Located) -> list[Exhibit]:
    """The exhibits of located neurons."""
    exhibits = [sets(located), layers(located), sizes(located), growth(located)]
    return exhibits + ([matrix(located)] if len(located.found) > 1 else [])


def sets(located: Located) -> Exhibit:
    """Each task's neurons: how many, how steady, how unlike other tasks'."""
    rows: list[Row] = []
    for task, each in located.found.items():
        within = each.within()
        columns = ordered(each)
        names = " ".join(str(located.grid.part(column)) for column in columns[:NAMED])
        rows.append(
            (
                task,
                str(each.examples),
                str(len(columns)),
                Value(100 * len(columns) / located.grid.size, digits=2),
                ranged(within.rates[COMPARED]),
                ranged(within.rates["iou"]),
                by_chance(each, located.grid),
                ranged(located.apart(task)),
                {True: "yes", False: "no", None: NOTHING}[located.separate(task)],
                names + (" …" if len(columns) > NAMED else "") if names else NOTHING,
            )
        )
    columns_ = (
        "task examples neurons share,_% overlap_within IoU_within by_chance,_in_layers "
        "overlap_across apart highest_scores"
    )
    names_ = list(located.found)
    return Exhibit(
        "neurons",
        "Neurons of each task",
        tuple(column.replace("_", " ") for column in columns_.split()),
        rows,
        [
            "Overlap is the number in common by the larger set, averaged over pairs of subsets, "
            "with 95 % intervals from resampling subsets (across: and tasks). By chance: what "
            "random sets with as many neurons in each layer would overlap. Apart: the interval "
            "within lies above the one across.",
        ],
        partial(
            drawing.points,
            names_,
            {
                "within the task": [
                    bounds(each.within().rates[COMPARED]) for each in located.found.values()
                ],
                "across tasks": [bounds(located.apart(task)) for task in names_],
            },
            label="overlap of subsets' sets, by the larger",
        ),
    )


def by_chance(found: Found, grid: NeuronGrid) -> Value:
    """The overlap expected of two subsets' sets if each kept only its numbers in the layers."""
    shares = []
    for first in range(len(found.subsets)):
        for second in range(first + 1, len(found.subsets)):
            one, other = found.subsets[first], found.subsets[second]
            if largest := max(int(one.sum()), int(other.sum())):
                shares.append(chance(one, other, grid).expected_in_layers / largest)
    return Value(float(np.mean(shares)) if shares else None)


def layers(located: Located) -> Exhibit:
    """How many of each task's neurons lie in each layer."""
    table = np.array([located.grid.counts(each.located) for each in located.found.values()])
    names = [f"L{layer}" for layer in range(located.grid.layers)]
    rows = [(task, *map(str, counts)) for task, counts in zip(located.found, table, strict=True)]
    return Exhibit(
        "layers",
        "Neurons in each layer",
        ("task", *names),
        list(rows),
        [],
        partial(
            drawing.matrix,
            list(located.found),
            names,
            table.astype(float),
            label="neurons",
            digits=0,
        ),
    )


def sizes(located: Located) -> Exhibit:
    """How many neurons other thresholds and shares choose, from all examples."""
    swept = {task: each.sweep(located.rule) for task, each in located.found.items()}
    first = next(iter(swept.values()))
    columns = [f"{each.level:g} sigma" for each in first.by_sigma]
    columns += [f"{100 * each.level:g} %" for each in first.by_share]
    rows: list[Row] = [
        (task, *(str(each.count) for each in (*one.by_sigma, *one.by_share)))
        for task, one in swept.items()
    ]
    limits = [f"{located.grid.size * share:.0f}" for share in first.cantelli]
    rows.append(("at most, whatever the scores", *limits, *[NOTHING] * len(first.by_share)))
    return Exhibit(
        "thresholds", "How many neurons a threshold chooses", ("task", *columns), rows, []
    )


def growth(located: Located) -> Exhibit:
    """How alike two subsets' sets are by the number of examples in each."""
    points = {task: each.curve for task, each in located.found.items()}
    steps = sorted({step for curve in points.values() for step, _, _ in curve})
    rows: list[Row] = []
    for task, curve in points.items():
        at = {step: overlap for step, overlap, _ in curve}
        rows.append((task, *(Value(at[step]) if step in at else NOTHING for step in steps)))
    return Exhibit(
        "growth",
        "Overlap within a task by examples in a subset",
        ("task", *(f"{step}" for step in steps)),
        rows,
        [],
        partial(
            drawing.curves,
            {task: [point[:2] for point in curve] for task, curve in points.items()},
            across="examples in each subset",
            up="overlap by the larger set",
            logarithmic=True,
        ),
    )


def matrix(located: Located) -> Exhibit:
    """The overlap of every two tasks' neurons, on the diagonal within each task."""
    overlaps, summary = located.overlaps(), located.cohesion()
    values = overlaps.rates[COMPARED]
    rows: list[Row] = [
        (task, *(Value(known(float(value)), digits=2) for value in row))
        for task, row in zip(overlaps.datasets, values, strict=True)
    ]
    notes = [
        f"Cohesion, the mean of the diagonal, is {figure(summary.cohesion)}; separability, the "
        f"mean of the rest, {figure(summary.separability)} (lower is further apart)."
    ]
    if summary.contrast is not None:
        notes.append(
            f"Tasks of one kind overlap by {figure(summary.same_kind)}, of different kinds by "
            f"{figure(summary.across_kinds)} (p {figure(summary.p)}, kinds dealt out at random)."
        )
    return Exhibit(
        "overlap",
        "Overlap of the tasks' neurons",
        ("task", *overlaps.datasets),
        rows,
        notes,
        partial(
            drawing.matrix,
            overlaps.datasets,
            overlaps.datasets,
            values,
            label="overlap by the larger set",
        ),
    )
