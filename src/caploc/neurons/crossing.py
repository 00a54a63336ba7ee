"""Cross-data: neurons of one task, erased or tuned, and what that does to every other task.

The paper's claim is that a dataset's neurons serve other datasets of the same capability. Ours is
the summary: means within a kind of task and across kinds, and whether tasks whose neurons overlap
share effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caploc.commonality import COMPARED, Agreement, Cohesion, agreement, cohesion
from caploc.errors import BadOption
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.exhibits.page import write_exhibits
from caploc.folder import CROSSING, versions, write_json
from caploc.neurons.enhancing import Enhancing, enhanced
from caploc.neurons.erasing import ErasedTask, erase_tasks
from caploc.neurons.erasure import LAYERS, LOCATED, Erasing
from caploc.neurons.exhibits import enhanced as tuned_exhibits
from caploc.neurons.exhibits import erased as erased_exhibits
from caploc.neurons.exhibits.intervals import figure
from caploc.neurons.locating import found_in
from caploc.neurons.study import opened, read_study
from caploc.progress import Progress
from caploc.workbench import Allowed

ERASE, TUNE = "erase", "tune"
Row = tuple[str | Value, ...]


@dataclass(frozen=True)
class Crossed:
    """A square matrix of effects, row: whose neurons, column: judged on.

    Effects are in nats of log-probability a gold token: lost by erasing, gained by tuning.
    `located` and `random` (layer-matched draws) are summed up alike; `overlap` says how the located
    effects off the diagonal go with the overlap of the tasks' neurons.
    """

    how: str
    tasks: tuple[str, ...]
    located: np.ndarray
    random: np.ndarray
    kinds: Cohesion
    random_kinds: Cohesion
    overlap: Agreement | None

    @classmethod
    def of(
        cls,
        how: str,
        matrices: tuple[Sequence[str], Sequence[str], np.ndarray, np.ndarray],
        kinds: Mapping[str, str],
        overlaps: Mapping[tuple[str, str], float],
    ) -> "Crossed":
        """Sum up the part of the matrices that is square."""
        rows, columns, located, random = matrices
        tasks = [task for task in rows if task in columns]
        own = np.ix_([rows.index(t) for t in tasks], [list(columns).index(t) for t in tasks])
        named = {task: kinds.get(task, task) for task in tasks}
        shared = np.array([[overlaps.get((a, b), np.nan) for b in tasks] for a in tasks])
        return cls(
            how,
            tuple(tasks),
            located[own],
            random[own],
            cohesion(located[own], tasks, named),
            cohesion(random[own], tasks, named),
            agreement(located[own], shared) if len(tasks) > 2 else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """As `crossing.json` has it."""
        return {
            "how": self.how,
            "tasks": list(self.tasks),
            "located": listed(self.located),
            "random": listed(self.random),
            "kinds": self.kinds.as_dict(),
            "random_kinds": self.random_kinds.as_dict(),
            "overlap": None if self.overlap is None else self.overlap.as_dict(),
        }


def listed(table: np.ndarray) -> list[list[float | None]]:
    """A matrix as JSON has it."""
    return [[float(x) if np.isfinite(x) else None for x in row] for row in table]


@dataclass(frozen=True)
class Crossing:
    """How effects are crossed: the ways, each way's settings, and which tasks are of one kind."""

    ways: tuple[str, ...] = (ERASE,)
    erasing: Erasing = field(default_factory=Erasing)
    enhancing: Enhancing = field(default_factory=Enhancing)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def check(self, tasks: Sequence[str]) -> "Crossing":
        """Refuse what cannot be crossed.

        Raises:
            BadOption: for an unknown way, a single task, or a kind of a task that is not there.
        """
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
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Erase or tune every task's neurons and judge all tasks; write `crossing.json`.

    Raises:
        UserError: if the folder holds no run of two tasks or more, or nothing was located.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    study, first = read_study(folder, allowed)
    ways, kinds = asked.check(study.tasks).ways, asked.kinds
    with opened(study, folder, progress, first) as lab:
        overlaps = shared(found_in(lab, kinds).overlaps())
        crossed = []
        if ERASE in ways:
            erased = erase_tasks(lab, asked.erasing, study.tasks)
            crossed.append(Crossed.of(ERASE, of_erased(erased), kinds, overlaps))
        if TUNE in ways:
            tuned = enhanced(lab, asked.enhancing)
            crossed.append(Crossed.of(TUNE, of_tuned(tuned), kinds, overlaps))
        result = {
            "schema": 1,
            "model": study.model.name,
            "kinds": dict(kinds),
            "crossings": [each.as_dict() for each in crossed],
            "command": command,
            "versions": versions(),
        }
        write_json(folder / CROSSING, result)
    exhibits = [summary(crossed)]
    if ERASE in ways:
        exhibits.append(erased_exhibits.matrix(erased))
    if TUNE in ways:
        exhibits.append(tuned_exhibits.matrix(tuned))
    title = f"Neurons of one task, effects on others, in {study.model.name}"
    write_exhibits(folder / "crossing", title, headline(crossed), [], exhibits, command)
    return result, exhibits


def shared(overlaps: Any) -> dict[tuple[str, str], float]:
    """The overlap of every two tasks' neurons, by the larger set."""
    return {
        (first, second): float(overlaps.rates[COMPARED][row, column])
        for row, first in enumerate(overlaps.datasets)
        for column, second in enumerate(overlaps.datasets)
    }


def of_erased(
    erased: Sequence[ErasedTask],
) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """The matrices of an erasure."""
    rows, columns, located = erased_exhibits.loss_matrix(erased, LOCATED)
    return rows, columns, located, erased_exhibits.loss_matrix(erased, LAYERS)[2]


def of_tuned(
    tuned: Mapping[str, Any],
) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """The matrices of an enhancement."""
    rows, columns, located = tuned_exhibits.gain_matrix(tuned)
    return rows, columns, located, tuned_exhibits.gain_matrix(tuned, tuned_exhibits.RANDOM)[2]


def headline(crossed: Sequence[Crossed]) -> str:
    """The answer in a sentence."""
    parts: list[str] = []
    for each in crossed:
        verb = "Erasing" if each.how == ERASE else "tuning" if parts else "Tuning"
        does = "costs" if each.how == ERASE else "gains"
        parts.append(
            f"{verb} a task's neurons {does} the task {figure(each.kinds.cohesion)} nats a token "
            f"and other tasks {figure(each.kinds.separability)}"
        )
    return "; ".join(parts)


def summary(crossed: Sequence[Crossed]) -> Exhibit:
    """Means of the matrices, and how they go with the overlap of neurons."""
    rows: list[Row] = []
    for each in crossed:
        for name, kinds in (("located", each.kinds), ("random in layers", each.random_kinds)):
            related = each.overlap if name == "located" else None
            spearman = None if related is None else related.spearman
            rows.append(
                (
                    f"{each.how}, {name}",
                    Value(kinds.cohesion, digits=4),
                    Value(kinds.separability, digits=4),
                    Value(kinds.same_kind, digits=4),
                    Value(kinds.across_kinds, digits=4),
                    Value(kinds.p),
                    NOTHING if spearman is None else correlated(spearman),
                )
            )
    return Exhibit(
        "crossing",
        "Neurons of one task, effects on others",
        (
            "neurons",
            "the task itself",
            "other tasks",
            "others of its kind",
            "of other kinds",
            "p of kinds",
            "correlation with overlap",
        ),
        rows,
        [
            "Effects in nats of log-probability a gold token: lost when erased, gained when tuned. "
            "p: kinds dealt out to tasks at random. The correlation (Spearman) is over pairs of "
            "different tasks, with a 95 % interval from resampled tasks and Mantel's p."
        ],
    )


def correlated(found: Any) -> str:
    """A correlation, its interval and its p."""
    if found.value is None:
        return NOTHING
    bounds = "" if found.low is None else f" [{found.low:z.2f}, {found.high:z.2f}]"
    chance = "" if found.p is None else f", p {found.p:.3f}"
    return f"{found.value:z.2f}{bounds}{chance}"
