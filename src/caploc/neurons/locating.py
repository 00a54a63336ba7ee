"""Find every task's neurons, and hold them against each other: `neurons locate` and `overlap`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc.contents import read_contents
from caploc.errors import BadOption, UserError
from caploc.folder import NEURONS, OVERLAP
from caploc.neurons.erasure import (
    LAYERS,
    LOCATED,
    ErasedTask,
    Eraser,
    Erasing,
    erased_arms_exhibit,
)
from caploc.neurons.finding import Rule, TaskNeurons
from caploc.neurons.sites import NeuronGrid
from caploc.neurons.study import (
    YES_NO,
    Finding,
    NamedRow,
    NeuronLab,
    NeuronStudy,
    Reported,
    Row,
    as_text,
    bounds,
    open_study,
    ranged,
    run_command,
    write_result,
)
from caploc.progress import Progress
from caploc.report import drawing
from caploc.report.exhibits import NOTHING, Exhibit, Value
from caploc.stats.chance import count_shared
from caploc.stats.intervals import Interval
from caploc.stats.sets import COMPARED, RATES, Cohesion, Overlaps, between, cohesion, rates_between
from caploc.stats.threshold import SHARES, SIGMAS, cantelli

NAMED = 8  # neurons that a table names
TITLES = {
    "reference": "of the row's neurons",
    "largest": "by the larger set",
    "smallest": "by the smaller set",
    "dice": "Dice",
    "iou": "IoU",
}


@dataclass(frozen=True)
class LocatedNeurons:
    """The neurons of several tasks of one model, and what their subsets have in common.

    `kinds` says which tasks are of one kind (each its own if it is not named); `erased` what each
    loses without its neurons, where that was measured.
    """

    grid: NeuronGrid
    rule: Rule
    found: dict[str, TaskNeurons]
    kinds: Mapping[str, str]
    erased: Mapping[str, ErasedTask] = field(default_factory=dict)

    @classmethod
    def by(cls, lab: NeuronLab, kinds: Mapping[str, str]) -> "LocatedNeurons":
        found = {task: lab.found(task) for task in lab.study.tasks}
        erased = {task: erase_own(lab, task) for task in found if lab.study.judged}
        known = {task: each for task, each in erased.items() if each is not None}
        return cls(lab.bench.neurons.grid, lab.study.rule, found, kinds, known)

    @property
    def carried_by_few(self) -> dict[str, TaskNeurons]:
        """List the tasks of which a few examples carry most of the score."""
        return {task: each for task, each in self.found.items() if each.carried_by_few}

    def overlaps(self) -> Overlaps:
        """Compute the five rates between every two tasks, on the diagonal within each."""
        return rates_between(
            {task: each.located for task, each in self.found.items()},
            {task: each.subsets for task, each in self.found.items()},
        )

    def cohesion(self) -> Cohesion:
        """Ask whether sets are alike within a task and a kind, and unlike across."""
        overlaps = self.overlaps()
        kinds = {task: self.kinds.get(task, task) for task in self.found}
        return cohesion(overlaps.rates[COMPARED], overlaps.datasets, kinds)

    def apart(self, task: str) -> Interval | None:
        """Tell how alike a task's subsets are to other tasks'; None for a single task."""
        others = {name: each.subsets for name, each in self.found.items() if name != task}
        return between(self.found[task].subsets, others, COMPARED) if others else None

    def separate(self, task: str) -> bool | None:
        """Ask whether the interval within a task lies above that across; None if not known."""
        within, other = self.found[task].within().rates[COMPARED], self.apart(task)
        if other is None or np.isnan(within.low) or np.isnan(other.high):
            return None
        return within.low > other.high

    def as_dict(self) -> dict[str, Any]:
        several = len(self.found) > 1
        apart = {task: self.apart(task) for task in self.found}
        return {
            "grid": {
                "layers": self.grid.layers,
                "neurons": list(self.grid.neurons_per_layer),
                "expert_widths": list(self.grid.expert_widths),
                "expert_counts": list(self.grid.expert_counts),
            },
            "tasks": [
                each.as_dict(self.grid, self.rule)
                | {
                    "by_chance": overlap_by_chance(each, self.grid),
                    "across": other.as_dict() if (other := apart[task]) else None,
                    "separate": self.separate(task),
                    "erased": self.erased[task].own.as_dict() if task in self.erased else None,
                }
                for task, each in self.found.items()
            ],
            "overlaps": self.overlaps().as_dict() if several else None,
            "cohesion": self.cohesion().as_dict() if several else None,
        }


def erase_own(lab: NeuronLab, task: str) -> ErasedTask | None:
    """Measure what a task loses without its neurons, and without others as many in each layer.

    None if it has no neuron.
    """
    found, study = lab.found(task), lab.study
    if not found.located.any():
        return None
    asked = Erasing(limit=study.judged, seed=study.seed)
    own = Eraser(lab.bench, asked, found, lab.progress).erase(lab.source(task), (LOCATED, LAYERS))
    return ErasedTask(task, int(found.located.sum()), own, [])


def locate(
    study: NeuronStudy,
    folder: Path,
    progress: Progress | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    command: str = "",
) -> Reported:
    """Find the neurons of every task; write `neurons.json` and `report.html`."""
    check_kinds(kinds or {}, study.tasks, "the run", "they are")

    def find(lab: NeuronLab) -> Finding:
        located = LocatedNeurons.by(lab, kinds or {})
        model = {"name": study.model.name, "fingerprint": lab.bench.neurons.fingerprint}
        results = {
            "model": model,
            "rule": str(study.rule),
            "attribution": study.attribution.method,
            **located.as_dict(),
        }
        return Finding(
            NEURONS,
            results,
            f"Neurons of {study.model.name}",
            locating_headline(located, study.least),
            exhibits(located),
            [*describe_locating(study), *warn_of_few(located)],
        )

    return run_command(open_study(study, folder, progress, command), find, folder, command)


def check_kinds(kinds: Mapping[str, str], tasks: Iterable[str], where: str, are: str) -> None:
    """Refuse kinds of tasks that are not there."""
    if strange := [task for task in kinds if task not in set(tasks)]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of {where}; {are} "
            f"{', '.join(dict.fromkeys(tasks))}."
        )


def locating_headline(located: LocatedNeurons, least: float) -> str:
    """Say the answer in a sentence; neurons are chosen on a share `least` of the subsets."""
    where = subsets_of(least)
    counts = {task: int(each.located.sum()) for task, each in located.found.items()}
    total, needed = located.grid.size, erasing_words(located)
    if len(counts) == 1:
        ((task, count),) = counts.items()
        return f"{count} of {total:,} neurons are chosen for {task} on {where}{needed}"
    apart = sum(located.separate(task) is True for task in counts)
    return (
        f"{min(counts.values())} to {max(counts.values())} of {total:,} neurons are chosen for a "
        f"task on {where}; for {apart} of {len(counts)} tasks its own subsets agree beyond "
        f"doubt more than those of different tasks{needed}"
    )


def erasing_words(located: LocatedNeurons) -> str:
    """Say of how many tasks the neurons are needed; nothing where that was not measured."""
    if not located.erased:
        return ""
    beaten = sum(each.own.beats() is True for each in located.erased.values())
    return (
        f"; for {beaten} of {len(located.found)} erasing them costs more than every draw of as "
        "many random neurons of the same layers"
    )


def subsets_of(least: float) -> str:
    """Say on which subsets a task's neurons are chosen."""
    return "every subset" if least == 1 else f"{100 * least:g} % of the subsets or more"


def describe_locating(study: NeuronStudy) -> list[str]:
    """Say what was done."""
    asked, rule = study.attribution, study.rule
    points = f" with {asked.steps} points" if asked.copies > 1 else ""
    lines = [
        f"Every feed-forward neuron is scored on gold answers ({asked.method}{points}, target "
        f"{asked.target}, positions {asked.positions}); scores are averaged over the examples of "
        f"each of {study.subsets} disjoint subsets, and {rule} are chosen. A task's neurons are "
        f"those chosen on {subsets_of(study.least)}.",
    ]
    if rule.share is None:
        lines.append(
            f"Whatever the scores, at most {100 * cantelli(rule.sigma):.2f} % of the neurons can "
            f"lie more than {rule.sigma:g} standard deviations above the mean (Cantelli), and if "
            "they were normal almost none would: that some do says that scores have heavy tails, "
            "and no more. What counts is whether the same ones are chosen again."
        )
    return lines


def warn_of_few(located: LocatedNeurons) -> list[str]:
    """Warn of tasks whose score is that of a few examples."""
    return [
        f"Warning: of {task}'s {each.examples} examples a few carry most of the score, which "
        f"weighs as that of {each.moments.effective_items:.0f}: its neurons are theirs. Leave "
        "out --raw, so that each example weighs alike."
        for task, each in located.carried_by_few.items()
    ]


def exhibits(located: LocatedNeurons) -> list[Exhibit]:
    """Show how many neurons there are, how steady, in which layers, shared with which tasks."""
    ways = [sets_exhibit, layers_exhibit, thresholds_exhibit, growth_exhibit]
    ways += [overlap_exhibit] if len(located.found) > 1 else []
    erased = list(located.erased.values())
    return [*(show(located) for show in ways), *([erased_arms_exhibit(erased)] if erased else [])]


def sets_exhibit(located: LocatedNeurons) -> Exhibit:
    """Show each task's neurons: how many, how steady, how unlike other tasks'."""
    rows: list[NamedRow] = []
    within = {task: each.within().rates for task, each in located.found.items()}
    apart = {task: located.apart(task) for task in located.found}
    for task, each in located.found.items():
        columns = each.ordered
        names = " ".join(str(located.grid.part(column)) for column in columns[:NAMED])
        rows.append(
            {
                "task": task,
                "examples": str(each.examples),
                "neurons": str(len(columns)),
                "share, %": Value(100 * len(columns) / located.grid.size, digits=2),
                "overlap within": ranged(within[task][COMPARED]),
                "IoU within": ranged(within[task]["iou"]),
                "halves": Value(float(np.mean(each.halves)) if each.halves else None),
                "by chance, in layers": Value(overlap_by_chance(each, located.grid)),
                "overlap across": ranged(apart[task]),
                "apart": YES_NO[located.separate(task)],
                "highest scores": names + " …" * (len(columns) > NAMED) if names else NOTHING,
            }
        )
    note = (
        "Overlap is the number in common by the larger set, averaged over pairs of subsets, with "
        "95 % intervals from resampling subsets (across: and tasks); halves: of two halves of the "
        "subsets, averaged over random splits. By chance: what random sets "
        "with as many neurons in each layer would overlap. Apart: the interval within lies above "
        "the one across."
    )
    series = {
        "within the task": [bounds(each[COMPARED]) for each in within.values()],
        "across tasks": [bounds(each) for each in apart.values()],
    }
    label = "overlap of subsets' sets, by the larger"
    draw = partial(drawing.draw_points, list(located.found), series, label=label)
    return Exhibit.of("neurons", "Neurons of each task", rows, [note], draw)


def overlap_by_chance(found: TaskNeurons, grid: NeuronGrid) -> float | None:
    """Average the overlap of two subsets' sets if each kept only its numbers in the layers."""
    shares = [
        count_shared(one, other, grid).expected_in_layers / max(one.sum(), other.sum())
        for one, other in combinations(found.subsets, 2)
        if one.any() or other.any()
    ]
    return float(np.mean(shares)) if shares else None


def layers_exhibit(located: LocatedNeurons) -> Exhibit:
    """Show how many of each task's neurons lie in each layer."""
    table = np.array([located.grid.counts(each.located) for each in located.found.values()])
    names = [f"L{layer}" for layer in range(located.grid.layers)]
    rows: list[Row] = [
        (task, *map(str, counts)) for task, counts in zip(located.found, table, strict=True)
    ]
    tasks, counts = list(located.found), table.astype(float)
    draw = partial(drawing.draw_matrix, tasks, names, counts, label="neurons", digits=0)
    return Exhibit("layers", "Neurons in each layer", ("task", *names), rows, [], draw)


def thresholds_exhibit(located: LocatedNeurons) -> Exhibit:
    """Show how many neurons other thresholds and shares choose, from all examples."""
    swept = {task: each.sweep(located.rule) for task, each in located.found.items()}
    columns = [f"{level:g} sigma" for level in SIGMAS] + [f"{100 * level:g} %" for level in SHARES]
    rows: list[Row] = [
        (task, *(str(each.count) for each in found)) for task, found in swept.items()
    ]
    limits = [f"{located.grid.size * cantelli(sigma):.0f}" for sigma in SIGMAS]
    rows.append(("at most, whatever the scores", *limits, *[NOTHING] * len(SHARES)))
    title = "How many neurons a threshold chooses"
    return Exhibit("thresholds", title, ("task", *columns), rows, [])


def growth_exhibit(located: LocatedNeurons) -> Exhibit:
    """Show how alike two subsets' sets are by the number of examples in each."""
    points = {task: {step: rate for step, rate, _ in f.curve} for task, f in located.found.items()}
    steps = sorted({step for curve in points.values() for step in curve})
    rows: list[Row] = [
        (task, *(Value(curve[step]) if step in curve else NOTHING for step in steps))
        for task, curve in points.items()
    ]
    draw = partial(
        drawing.curves,
        {task: list(curve.items()) for task, curve in points.items()},
        across="examples in each subset",
        up="overlap by the larger set",
        logarithmic=True,
    )
    title = "Overlap within a task by examples in a subset"
    return Exhibit("growth", title, ("task", *map(str, steps)), rows, [], draw)


def overlap_exhibit(located: LocatedNeurons) -> Exhibit:
    """Show the overlap of every two tasks' neurons, on the diagonal within each task."""
    overlaps, summary = located.overlaps(), located.cohesion()
    notes = [
        f"Cohesion, the mean of the diagonal, is {as_text(summary.cohesion)}; separability, the "
        f"mean of the rest, {as_text(summary.separability)} (lower is further apart)."
    ]
    if summary.contrast is not None:
        notes.append(
            f"Tasks of one kind overlap by {as_text(summary.same_kind)}, of different kinds by "
            f"{as_text(summary.across_kinds)} (p {as_text(summary.p)}, kinds dealt at random)."
        )
    return _rate_exhibit("overlap", "Overlap of the tasks' neurons", overlaps, COMPARED, notes)


def _rate_exhibit(
    name: str, title: str, overlaps: Overlaps, rate: str, notes: list[str]
) -> Exhibit:
    tasks, values = overlaps.datasets, overlaps.rates[rate]
    rows: list[Row] = [
        (task, *(Value(float(value)) for value in row))
        for task, row in zip(tasks, values, strict=True)
    ]
    draw = partial(drawing.draw_matrix, tasks, tasks, values, label=f"overlap {TITLES[rate]}")
    return Exhibit(name, title, ("task", *tasks), rows, notes, draw if rate == COMPARED else None)


def overlap(
    folders: Sequence[Path], kinds: Mapping[str, str], out: Path, *, command: str = ""
) -> Reported:
    """Hold the neurons of every task of some `locate` runs against each other; no model is needed.

    Writes `overlap.json` into `out`.

    Raises:
        UserError: if a folder holds no such run, runs are of different models, one is named twice,
            there is a single task, or a kind is given to a task that no run has.
    """
    grid, located, splits, tasks = gather_runs(folders)
    if len(located) < 2:
        raise UserError("Overlap needs two tasks or more; name further runs.")
    check_kinds(kinds, tasks.values(), "the runs", "they have")
    overlaps = rates_between(located, splits)
    named = {name: kinds.get(task, name) for name, task in tasks.items()}
    summary = cohesion(overlaps.rates[COMPARED], overlaps.datasets, named)
    out.mkdir(parents=True, exist_ok=True)
    results = {**overlaps.as_dict(), "cohesion": summary.as_dict()}
    result = write_result(out / OVERLAP, results, command)
    diagonal = "On the diagonal, within the task: of the sets of its own subsets."
    told = (
        f"Cohesion {as_text(summary.cohesion)}, separability {as_text(summary.separability)}; of "
        f"one kind {as_text(summary.same_kind)}, of different kinds "
        f"{as_text(summary.across_kinds)}."
    )
    shown = []
    for rate in RATES:
        notes = [diagonal, told] if rate == COMPARED else [diagonal]
        title = f"Overlap of the tasks' neurons, {TITLES[rate]}"
        shown.append(_rate_exhibit(f"overlap-{rate}", title, overlaps, rate, notes))
    return result, [*shown, _pairs_exhibit(grid, located)]


def gather_runs(
    folders: Sequence[Path],
) -> tuple[NeuronGrid, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, str]]:
    """Read the grid, and by name each task's neurons, those of its subsets, and the task itself.

    A task of several runs (other seeds, other scores) goes by its name and its run's folder.
    """
    places = Counter(folder.resolve() for folder in folders)
    if twice := [folder for folder in folders if places[folder.resolve()] > 1]:
        raise UserError(f"{twice[0]} is named twice; name each run once.")
    results = [read_contents(folder / NEURONS) for folder in folders]
    models = {result["model"]["fingerprint"] for result in results}
    if len(models) > 1:
        names = ", ".join(dict.fromkeys(result["model"]["name"] for result in results))
        raise UserError(f"The runs are of different models ({names}); name runs of one.")
    often = Counter(task["task"] for result in results for task in result["tasks"])
    located: dict[str, np.ndarray] = {}
    splits: dict[str, np.ndarray] = {}
    tasks: dict[str, str] = {}
    for folder, result in zip(folders, results, strict=True):
        grid, found = read_sets(result)
        for task, (own, sets) in found.items():
            name = task if often[task] == 1 else f"{task} ({folder})"
            located[name], splits[name], tasks[name] = own, sets, task
    return grid, located, splits, tasks


def read_sets(result: Mapping[str, Any]) -> tuple[NeuronGrid, dict[str, tuple[Any, Any]]]:
    """Read the grid of a `neurons.json`, and each task's neurons and those of its subsets."""
    fields = result["grid"]
    grid = NeuronGrid(
        tuple(fields["neurons"]), tuple(fields["expert_widths"]), tuple(fields["expert_counts"])
    )
    found = {
        task["task"]: (
            grid.mask(row["neuron"] for row in task["neurons"]),
            np.stack([grid.mask(names) for names in task["subsets"]]),
        )
        for task in result["tasks"]
    }
    return grid, found


def _pairs_exhibit(grid: NeuronGrid, located: Mapping[str, np.ndarray]) -> Exhibit:
    """Show the neurons in common of every two tasks beside what chance gives."""
    rows: list[NamedRow] = []
    for first, second in combinations(located, 2):
        found = count_shared(located[first], located[second], grid)
        common = grid.named(located[first] & located[second])
        rows.append(
            {
                "tasks": f"{first}, {second}",
                "in common": str(found.count),
                "by chance": Value(found.expected, digits=2),
                "p": Value(found.p, digits=4),
                "by chance in layers": Value(found.expected_in_layers, digits=2),
                "p in layers": Value(found.p_in_layers, digits=4),
                "neurons": " ".join(map(str, common[:NAMED])) or NOTHING,
            }
        )
    return Exhibit.of("overlap-pairs", "Neurons in common", rows)
