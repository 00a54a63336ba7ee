"""Erase every task's located neurons, and see what it loses and what others lose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caploc.errors import UserError
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.folder import ERASURE, versions, write_json
from caploc.neurons.erasure import LAYERS, LOCATED, Erased, Eraser, Erasing
from caploc.neurons.exhibits.erased import headline, shown
from caploc.neurons.study import NeuronLab, opened, read_study
from caploc.progress import Progress
from caploc.workbench import Allowed


@dataclass(frozen=True)
class ErasedTask:
    """What is lost without one task's neurons: by the task itself, and by others.

    `doses` is the task's loss as more of its neurons go.
    """

    task: str
    neurons: int
    own: Erased
    doses: list[dict[str, Any]]
    others: list[Erased] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As `erasure.json` has it."""
        return {
            "task": self.task,
            "neurons": self.neurons,
            "own": self.own.as_dict(),
            "doses": self.doses,
            "others": [each.as_dict() for each in self.others],
        }


def erase(
    folder: Path,
    asked: Erasing,
    others: Sequence[str] = (),
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Erase the neurons of every task of a finished `locate`; write `erasure.json`.

    `others` are tasks that are judged too, of which no neurons are located.

    Raises:
        UserError: if the folder holds no run, or nothing was located in it.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    asked.check()
    study, first = read_study(folder, allowed)
    with opened(study, folder, progress, first) as lab:
        erased = erase_tasks(lab, asked, [*study.tasks, *others])
        result = {
            "schema": 1,
            "model": study.model.name,
            "mode": str(asked.mode),
            "tasks": [each.as_dict() for each in erased],
            "cost": lab.bench.cost.as_dict(),
            "command": command,
            "versions": versions(),
        }
        write_json(folder / ERASURE, result)
    exhibits = shown(erased)
    title = f"Erasing neurons of {study.model.name}"
    lines = [
        f"Located neurons are erased ({asked.mode}); losses are on examples that no neuron was "
        "found on, in the task's own score and in nats of log-probability for each gold token."
    ]
    write_exhibits(folder / "erasure", title, headline(erased), lines, exhibits, command)
    return result, exhibits


def erase_tasks(lab: NeuronLab, asked: Erasing, judged: Sequence[str]) -> list[ErasedTask]:
    """What every located task, and every judged one, loses.

    Raises:
        UserError: if no neuron is located for any task.
    """
    for task in judged:
        lab.source(task)  # a mistake in a name shows before anything is measured
    done = []
    for task in lab.study.tasks:
        found = lab.found(task)
        if not found.located.any():
            continue
        eraser = Eraser(lab.bench, asked, found, lab.progress)
        own = eraser.erase(lab.source(task))
        beside = [
            eraser.erase(lab.source(other), (LOCATED, LAYERS))
            for other in dict.fromkeys(judged)
            if other != task
        ]
        doses = eraser.doses(lab.source(task))
        done.append(ErasedTask(task, int(found.located.sum()), own, doses, beside))
    if not done:
        raise UserError(
            f"No neuron is located for {', '.join(lab.study.tasks)}, so there is none to erase; "
            "locate again with a lower --sigma, a --share, or more examples."
        )
    return done
