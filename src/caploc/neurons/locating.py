"""Find every task's neurons, and hold them against each other."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from caploc.contents import read_contents
from caploc.errors import BadOption, UserError
from caploc.folder import NEURONS, OVERLAP
from caploc.neurons.erasure import LAYERS, LOCATED, ErasedTask, Eraser, Erasing
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.model import NeuronGrid
from caploc.neurons.sets import COMPARED, Cohesion, Overlaps, between, cohesion, rates_between
from caploc.neurons.study import (
    Finding,
    NeuronLab,
    NeuronStudy,
    Reported,
    open_study,
    write_result,
)
from caploc.progress import Progress, tell_once
from caploc.report.exhibits import Exhibit
from caploc.report.tabulation import drop_empty, fill_tables, ranged
from caploc.stats import Interval, mean_interval
from caploc.stats.chance import count_shared
from caploc.stats.threshold import Rule, cantelli

NAMED = 8  # neurons that a table names


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
        judged = [task for task, each in found.items() if lab.study.judged and each.located.any()]
        erased = {task: erase_own(lab, task) for task in judged}
        return cls(lab.model.grid, lab.study.rule, found, kinds, erased)

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

    def by_chance(self, task: str) -> float | None:
        """Average the overlap of two subsets' sets if each kept only its numbers in the layers."""
        shares = [
            count_shared(one, other, self.grid).expected_in_layers / max(one.sum(), other.sum())
            for one, other in combinations(self.found[task].subsets, 2)
            if one.any() or other.any()
        ]
        return float(np.mean(shares)) if shares else None

    def as_dict(self) -> dict[str, Any]:
        several = len(self.found) > 1
        apart = {task: self.apart(task) for task in self.found}
        return {
            "grid": {
                "layers": self.grid.layers,
                "neurons": list(self.grid.neurons_per_layer),
            },
            "tasks": [
                each.as_dict(self.grid, self.rule)
                | {
                    "by_chance": self.by_chance(task),
                    "across": other.as_dict() if (other := apart[task]) else None,
                    "separate": self.separate(task),
                    "erased": self.erased[task].own.as_dict() if task in self.erased else None,
                }
                for task, each in self.found.items()
            ],
            "overlaps": self.overlaps().as_dict() if several else None,
            "cohesion": self.cohesion().as_dict() if several else None,
        }


def erase_own(lab: NeuronLab, task: str) -> ErasedTask:
    """Measure what a task loses without its neurons, and without others as many in each layer."""
    found, study = lab.found(task), lab.study
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
    with open_study(study, folder, progress, command) as lab:
        located = LocatedNeurons.by(lab, kinds or {})
        uncovered = lab.model.uncovered
        for part in uncovered:
            tell_once(lab.progress, f"Not covered: {part}, with weights that no neuron reads.")
        model: dict[str, Any] = {"name": study.model.name, "fingerprint": lab.model.fingerprint}
        model |= {"uncovered": [*uncovered]} if uncovered else {}
        results = {
            "model": model,
            "rule": str(study.rule),
            "attribution": study.attribution.method,
            **located.as_dict(),
        }
        title, headline = f"Neurons of {study.model.name}", locating_headline(located, study.least)
        lines = [*describe_locating(study), *warn_of_few(located)]
        finding = Finding(NEURONS, results, title, headline, located_exhibits(located), lines)
        return finding.write(folder, command)


def check_kinds(kinds: Mapping[str, str], tasks: Iterable[str], where: str, are: str) -> None:
    """Refuse kinds of tasks that are not there."""
    if strange := [task for task in kinds if task not in set(tasks)]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of {where}; {are} "
            f"{', '.join(dict.fromkeys(tasks))}."
        )


def locating_headline(located: LocatedNeurons, least: float) -> str:
    """Say the answer in a sentence; neurons are chosen on a share `least` of the subsets."""
    where, total = subsets_of(least), located.grid.size
    counts = {task: int(each.located.sum()) for task, each in located.found.items()}
    if len(counts) == 1:
        ((task, count),) = counts.items()
        return (
            f"{count} of {total:,} neurons are chosen for {task} on {where}{erasing_words(located)}"
        )
    each = [found.within().rates[COMPARED].mean for found in located.found.values()]
    within, across = mean_interval(np.array(each)).mean, located.cohesion().separability
    shared = (
        ""
        if np.isnan(within) or across is None
        else (f"; a task's own subsets share {within:.2f} of theirs, different tasks {across:.2f}")
    )
    return (
        f"{min(counts.values())} to {max(counts.values())} of {total:,} neurons are chosen for a "
        f"task{erasing_words(located)}{shared}"
    )


def erasing_words(located: LocatedNeurons) -> str:
    """Say what tasks lose without their neurons; nothing where that was not measured."""
    if not located.erased:
        return ""
    own = np.array([each.own.located.logprob.mean for each in located.erased.values()])
    drawn = np.array([each.own.mean(LAYERS) for each in located.erased.values()], dtype=float)
    return (
        f"; erasing them costs {ranged(mean_interval(own), 2)} nats a token, as many random ones "
        f"of the same layers {mean_interval(drawn).mean:z.2f}"
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
        for task, each in located.found.items()
        if each.carried_by_few
    ]


def located_exhibits(located: LocatedNeurons) -> list[Exhibit]:
    """Show how many neurons there are, and what they are needed for."""
    steps = sorted({step for each in located.found.values() for step, *_ in each.curve})
    beside = {"neurons_in_all": located.grid.size, "steps": steps}
    first, *others = fill_tables("neurons", located.as_dict() | beside)
    costs = fill_tables("erasure", {"tasks": [e.as_dict() for e in located.erased.values()]})
    return [first, *map(drop_empty, costs), *others]


def overlap(
    folders: Sequence[Path], kinds: Mapping[str, str], out: Path, *, command: str = ""
) -> Reported:
    """Hold the neurons of every task of some `locate` runs against each other; no model is needed.

    Writes `overlap.json` into `out`. Raises UserError if a folder holds no such run, runs are of
    different models, one is named twice, there is a single task, or a kind is given to a task that
    no run has.
    """
    grid, located, splits, tasks = gather_runs(folders)
    if len(located) < 2:
        raise UserError("Overlap needs two tasks or more; name further runs.")
    check_kinds(kinds, tasks.values(), "the runs", "they have")
    overlaps = rates_between(located, splits)
    named = {name: kinds.get(task, name) for name, task in tasks.items()}
    summary = cohesion(overlaps.rates[COMPARED], overlaps.datasets, named).as_dict()
    out.mkdir(parents=True, exist_ok=True)
    results = {**overlaps.as_dict(), "cohesion": summary, "pairs": pairs_of(grid, located)}
    result = write_result(out / OVERLAP, results, command)
    return result, fill_tables("overlap", results | {"overlaps": overlaps.as_dict()})


def pairs_of(grid: NeuronGrid, located: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Count the neurons in common of every two tasks beside what chance gives."""
    rows = []
    for first, second in combinations(located, 2):
        common = grid.named(located[first] & located[second])
        names = " ".join(map(str, common[:NAMED]))
        found = count_shared(located[first], located[second], grid).as_dict()
        rows.append({"tasks": f"{first}, {second}", "neurons": names, **found})
    return rows


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
    grid = NeuronGrid(tuple(fields["neurons"]))
    found = {
        task["task"]: (
            grid.mask(row["neuron"] for row in task["neurons"]),
            np.stack([grid.mask(names) for names in task["subsets"]]),
        )
        for task in result["tasks"]
    }
    return grid, found
