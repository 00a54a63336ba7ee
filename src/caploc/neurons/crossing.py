"""Cross-data: neurons of one task, erased or tuned, and what that does to every other task.

The paper's claim is that a dataset's neurons serve other datasets of the same capability. Ours is
the summary: means within a kind of task and across kinds, and whether tasks whose neurons overlap
share effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from caploc.errors import BadOption
from caploc.folder import CROSSING
from caploc.neurons import enhancing, erasure
from caploc.neurons.enhancing import Enhancing
from caploc.neurons.erasure import LAYERS, LOCATED, Erasing
from caploc.neurons.locating import LocatedNeurons
from caploc.neurons.study import (
    Finding,
    Matrix,
    NamedRow,
    NeuronLab,
    Reported,
    as_text,
    reopen_study,
    run_command,
)
from caploc.progress import Progress
from caploc.report.exhibits import NOTHING, Exhibit, Value
from caploc.stats.intervals import JsonRecord
from caploc.stats.sets import (
    COMPARED,
    Agreement,
    Cohesion,
    Correlation,
    cohesion,
    correlate_matrices,
)
from caploc.workbench import Allowed

ERASE, TUNE = "erase", "tune"


@dataclass(frozen=True)
class Crossed(JsonRecord):
    """A square matrix of effects, row: whose neurons, column: judged on.

    Effects are in nats of log-probability a gold token: lost by erasing, gained by tuning.
    `located` and `random` (layer-matched draws) are summed up alike; `overlap` says how the located
    effects off the diagonal go with the overlap of the tasks' neurons.
    """

    how: str
    tasks: tuple[str, ...]
    located: Matrix
    random: Matrix
    kinds: Cohesion
    random_kinds: Cohesion
    overlap: Agreement | None

    @classmethod
    def of(
        cls,
        how: str,
        located: tuple[Sequence[str], Sequence[str], Matrix],
        random: Matrix,
        kinds: Mapping[str, str],
        overlaps: Mapping[tuple[str, str], float],
    ) -> "Crossed":
        """Sum up the part of the matrices, of located and of random neurons, that is square."""
        rows, columns, effects = located
        both = [task for task in rows if task in columns]
        square = np.ix_([rows.index(t) for t in both], [columns.index(t) for t in both])
        own, drawn = effects[square], random[square]
        named = {task: kinds.get(task, task) for task in both}
        shared = np.array([[overlaps.get((a, b), np.nan) for b in both] for a in both])
        return cls(
            how,
            tuple(both),
            own,
            drawn,
            cohesion(own, both, named),
            cohesion(drawn, both, named),
            correlate_matrices(own, shared) if len(both) > 2 else None,
        )


@dataclass(frozen=True)
class Crossing:
    """How effects are crossed: the ways, each way's settings, and which tasks are of one kind."""

    ways: tuple[str, ...] = (ERASE,)
    erasing: Erasing = field(default_factory=Erasing)
    enhancing: Enhancing = field(default_factory=Enhancing)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def check(self, tasks: Sequence[str]) -> "Crossing":
        """Refuse what cannot be crossed."""
        if unknown := [way for way in self.ways if way not in (ERASE, TUNE)]:
            raise BadOption(f"--how must be {ERASE} or {TUNE}; got {unknown[0]!r}.")
        if len(tasks) < 2:
            raise BadOption(f"Crossing needs two tasks or more; the run has {', '.join(tasks)}.")
        if strange := [task for task in self.kinds if task not in tasks]:
            raise BadOption(f"--kind names {strange[0]}, which is no task of the run.")
        self.erasing.check()
        self.enhancing.check(tasks)
        return self


def cross(
    folder: Path,
    asked: Crossing,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> Reported:
    """Erase or tune every task's neurons and judge all tasks; write `crossing.json`."""

    def find(lab: NeuronLab) -> Finding:
        study, kinds = lab.study, asked.check(lab.study.tasks).kinds
        overlaps = LocatedNeurons.by(lab, kinds).overlaps()
        shared = {
            (first, second): float(overlaps.rates[COMPARED][row, column])
            for row, first in enumerate(overlaps.datasets)
            for column, second in enumerate(overlaps.datasets)
        }
        crossed, matrices = [], []
        if ERASE in asked.ways:
            erased = erasure.erase_tasks(lab, asked.erasing, study.tasks)
            matrices.append(erasure.losses_exhibit(erased))
            effects = erasure.loss_matrix(erased, LOCATED), erasure.loss_matrix(erased, LAYERS)[2]
            crossed.append(Crossed.of(ERASE, *effects, kinds, shared))
        if TUNE in asked.ways:
            tuned = enhancing.enhance_tasks(lab, asked.enhancing)
            matrices.append(enhancing.gains_matrix_exhibit(tuned))
            drawn = enhancing.gain_matrix(tuned, enhancing.RANDOM)[2]
            crossed.append(Crossed.of(TUNE, enhancing.gain_matrix(tuned), drawn, kinds, shared))
        results = {
            "model": study.model.name,
            "kinds": dict(kinds),
            "crossings": [each.as_dict() for each in crossed],
        }
        title = f"Neurons of one task, effects on others, in {study.model.name}"
        shown = [summary_exhibit(crossed), *matrices]
        return Finding(CROSSING, results, title, crossing_headline(crossed), shown, page="crossing")

    return run_command(reopen_study(folder, progress, allowed), find, folder, command)


def crossing_headline(crossed: Sequence[Crossed]) -> str:
    """Say the answer in a sentence."""
    parts: list[str] = []
    for each in crossed:
        verb = "Erasing" if each.how == ERASE else "tuning" if parts else "Tuning"
        does = "costs" if each.how == ERASE else "gains"
        parts.append(
            f"{verb} a task's neurons {does} the task {as_text(each.kinds.cohesion)} nats a token "
            f"and other tasks {as_text(each.kinds.separability)}"
        )
    return "; ".join(parts)


def summary_exhibit(crossed: Sequence[Crossed]) -> Exhibit:
    """Show the means of the matrices, and how they go with the overlap of neurons."""
    rows: list[NamedRow] = []
    for each in crossed:
        for name, kinds in ((LOCATED, each.kinds), (LAYERS, each.random_kinds)):
            related = each.overlap.spearman if each.overlap and name == LOCATED else None
            rows.append(
                {
                    "neurons": f"{each.how}, {name}",
                    "the task itself": Value(kinds.cohesion, digits=4),
                    "other tasks": Value(kinds.separability, digits=4),
                    "others of its kind": Value(kinds.same_kind, digits=4),
                    "of other kinds": Value(kinds.across_kinds, digits=4),
                    "p of kinds": Value(kinds.p),
                    "correlation with overlap": _correlated(related) if related else NOTHING,
                }
            )
    note = (
        "Effects in nats of log-probability a gold token: lost when erased, gained when tuned. p: "
        "kinds dealt out to tasks at random. The correlation (Spearman) is over pairs of different "
        "tasks, with a 95 % interval from resampled tasks and Mantel's p."
    )
    return Exhibit.of("crossing", "Neurons of one task, effects on others", rows, [note])


def _correlated(found: Correlation) -> str:
    """Write a correlation, its interval and its p."""
    if found.value is None:
        return NOTHING
    interval = "" if found.low is None else f" [{found.low:z.2f}, {found.high:z.2f}]"
    chance = "" if found.p is None else f", p {found.p:.3f}"
    return f"{found.value:z.2f}{interval}{chance}"
