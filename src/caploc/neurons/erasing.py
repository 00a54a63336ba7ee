"""Erase every task's located neurons, and see what it loses and what others lose."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caploc.errors import UserError
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.folder import ERASURE
from caploc.neurons.cells import YES_NO, Matrix, Row, bounds, effects_exhibit, ranged, spread
from caploc.neurons.erasure import BOTTOM, LAYERS, LOCATED, UNIFORM, Erased, Eraser, Erasing
from caploc.neurons.study import Finding, NeuronLab, Reported, reopen_study, run_command
from caploc.progress import Progress
from caploc.workbench import Allowed

ARMS = (LOCATED, LAYERS, UNIFORM, BOTTOM)


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
) -> Reported:
    """Erase the neurons of every task of a finished `locate`; write `erasure.json`.

    `others` are tasks that are judged too, of which no neurons are located.
    """
    asked.check()

    def find(lab: NeuronLab) -> Finding:
        model = lab.study.model.name
        erased = erase_tasks(lab, asked, [*lab.study.tasks, *others])
        results = {
            "model": model,
            "mode": str(asked.mode),
            "tasks": [each.as_dict() for each in erased],
            "cost": lab.bench.cost.as_dict(),
        }
        lines = [
            f"Located neurons are erased ({asked.mode}); losses are on examples that no neuron was "
            "found on, in the task's own score and in nats of log-probability for each gold token."
        ]
        shown = [arms_exhibit(erased), doses_exhibit(erased), matrix_exhibit(erased)]
        title = f"Erasing neurons of {model}"
        return Finding(ERASURE, results, title, headline(erased), shown, lines, "erasure")

    return run_command(reopen_study(folder, progress, allowed), find, folder, command)


def erase_tasks(lab: NeuronLab, asked: Erasing, judged: Sequence[str]) -> list[ErasedTask]:
    """Measure what every located task, and every judged one, loses.

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


def headline(erased: Sequence[ErasedTask]) -> str:
    """Say the answer in a sentence."""
    beaten = sum(each.own.beats() is True for each in erased)
    return (
        f"For {beaten} of {len(erased)} tasks erasing its located neurons costs more than every "
        "draw of as many random neurons of the same layers"
    )


def arms_exhibit(erased: Sequence[ErasedTask]) -> Exhibit:
    """Show each task's own loss under every arm."""
    rows: list[Row] = []
    for each in erased:
        own = each.own
        gain = own.logprob.pooled_gain
        rows.append(
            (
                each.task,
                str(each.neurons),
                Value(own.intact.score, own.intact.stderr),
                *(_scores(own, arm) for arm in ARMS),
                ranged(own.located.logprob),
                Value(own.mean(LAYERS)),
                YES_NO[own.beats() is True],
                NOTHING if gain is None else Value(gain, digits=1),
            )
        )
    columns = (
        "task, neurons, intact, located erased, random in layers, random, lowest scores, "
        "log-probability lost, by random in layers, beats every draw, gain in sd of draws"
    )
    return Exhibit(
        "erasure",
        "Located neurons erased, against others as many",
        tuple(columns.split(", ")),
        rows,
        [
            "Of draws the mean score, and in brackets the lowest and the highest. Log-probability "
            "is in nats for each gold token, with a 95 % interval over examples; the gain is the "
            "located loss less the mean of the draws in the same layers, in their standard "
            "deviations."
        ],
        partial(
            drawing.points,
            [each.task for each in erased],
            {arm: [_drawn(each.own, arm) for each in erased] for arm in ARMS},
            label="log-probability lost, nats a token",
        ),
    )


def _scores(erased: Erased, arm: str) -> str:
    """Write the scores of an arm's draws: their mean, and the lowest and highest."""
    known = [lost.score for lost in erased.of_arm(arm) if lost.score is not None]
    if not known:
        return NOTHING
    ends = f" ({min(known):.3f} to {max(known):.3f})" if len(known) > 1 else ""
    return f"{np.mean(known):.3f}{ends}"


def _drawn(erased: Erased, arm: str) -> drawing.Interval:
    """Draw a single loss with its interval over examples, of several the mean and the ends."""
    draws = [lost.logprob for lost in erased.of_arm(arm)]
    return bounds(draws[0]) if len(draws) == 1 else spread([lost.mean for lost in draws])


def doses_exhibit(erased: Sequence[ErasedTask]) -> Exhibit:
    """Show the loss as more of the located neurons are erased."""
    rows: list[Row] = [
        (
            each.task,
            *(
                f"{point['logprob']['mean']:z.3f} ({point['neurons']})"
                if point["logprob"]["mean"] is not None
                else NOTHING
                for point in each.doses
            ),
        )
        for each in erased
    ]
    return Exhibit(
        "doses",
        "Log-probability lost by the share of located neurons erased",
        ("task", *(f"{100 * point['dose']:g} %" for point in erased[0].doses)),
        rows,
        ["The highest scores go first; in brackets the number of neurons."],
        partial(
            drawing.curves,
            {
                each.task: [(100 * p["dose"], p["logprob"]["mean"]) for p in each.doses]
                for each in erased
            },
            across="located neurons erased, %",
            up="log-probability lost, nats a token",
        ),
    )


def loss_matrix(
    erased: Sequence[ErasedTask], arm: str = LOCATED
) -> tuple[list[str], list[str], Matrix]:
    """List tasks erased, tasks judged, and the log-probability that each judged one loses."""
    judged = dict.fromkeys(
        name for each in erased for name in (each.task, *(other.judged for other in each.others))
    )
    columns = {name: place for place, name in enumerate(judged)}
    table = np.full((len(erased), len(columns)), np.nan)
    for row, each in enumerate(erased):
        for one in (each.own, *each.others):
            value = one.mean(arm)
            table[row, columns[one.judged]] = np.nan if value is None else value
    return [each.task for each in erased], list(columns), table


def matrix_exhibit(erased: Sequence[ErasedTask]) -> Exhibit:
    """Show what every task loses when a task's neurons are erased, random neurons beside."""
    tasks, judged, located = loss_matrix(erased)
    return effects_exhibit(
        "erasure-matrix",
        "Log-probability that each task (column) loses without the neurons of another (row)",
        (tasks, judged),
        (located, loss_matrix(erased, LAYERS)[2]),
        ("erased", "In brackets the mean loss of random neurons of the same layers."),
    )
