"""Erasure for a reader: located against random neurons, the dose, and what else breaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.neurons.erasure import BOTTOM, LAYERS, LOCATED, UNIFORM, Erased, Lost
from caploc.neurons.exhibits.intervals import bounds, cell, ranged

if TYPE_CHECKING:
    from caploc.neurons.erasing import ErasedTask

Row = tuple[str | Value, ...]


def headline(erased: Sequence[ErasedTask]) -> str:
    """The answer in a sentence."""
    beaten = sum(each.own.beats() is True for each in erased)
    return (
        f"For {beaten} of {len(erased)} tasks erasing its located neurons costs more than every "
        "draw of as many random neurons of the same layers"
    )


def shown(erased: Sequence[ErasedTask]) -> list[Exhibit]:
    """The exhibits of an erasure."""
    return [arms(erased), doses(erased), matrix(erased)]


def of_arm(erased: Erased, arm: str) -> list[Lost]:
    """An arm's draws."""
    return [lost for lost in erased.arms if lost.arm == arm]


def mean(draws: Sequence[Lost]) -> float | None:
    """The mean loss of log-probability over draws."""
    known = [lost.logprob.mean for lost in draws if np.isfinite(lost.logprob.mean)]
    return float(np.mean(known)) if known else None


def scores(draws: Sequence[Lost]) -> str:
    """The scores of an arm's draws: their mean, and the lowest and highest."""
    known = [lost.score for lost in draws if lost.score is not None]
    if not known:
        return NOTHING
    ends = f" ({min(known):.3f} to {max(known):.3f})" if len(known) > 1 else ""
    return f"{np.mean(known):.3f}{ends}"


def arms(erased: Sequence[ErasedTask]) -> Exhibit:
    """Each task's own loss under every arm."""
    rows: list[Row] = []
    for each in erased:
        own = each.own
        gain = own.logprob.pooled_gain
        rows.append(
            (
                each.task,
                str(each.neurons),
                Value(own.intact.score, own.intact.stderr),
                *(scores(of_arm(own, arm)) for arm in (LOCATED, LAYERS, UNIFORM, BOTTOM)),
                ranged(own.located.logprob),
                Value(mean(of_arm(own, LAYERS))),
                "yes" if own.beats() else "no",
                Value(gain, digits=1) if gain is not None else NOTHING,
            )
        )
    columns = (
        "task, neurons, intact, located erased, random in layers, random, lowest scores, "
        "log-probability lost, by random in layers, beats every draw, gain in sd of draws"
    )
    names = [each.task for each in erased]
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
            names,
            {
                arm: [averaged(of_arm(each.own, arm)) for each in erased]
                for arm in (LOCATED, LAYERS, UNIFORM, BOTTOM)
            },
            label="log-probability lost, nats a token",
        ),
    )


def averaged(draws: Sequence[Lost]) -> drawing.Interval:
    """One draw with its interval over examples; of several the mean, the least and the most."""
    if len(draws) == 1:
        return bounds(draws[0].logprob)
    known = [lost.logprob.mean for lost in draws]
    return mean(draws), min(known), max(known)


def doses(erased: Sequence[ErasedTask]) -> Exhibit:
    """The loss as more of the located neurons are erased."""
    steps = [point["dose"] for point in erased[0].doses]
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
        ("task", *(f"{100 * step:g} %" for step in steps)),
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
) -> tuple[list[str], list[str], np.ndarray]:
    """Tasks erased, tasks judged, and the log-probability that each judged one loses."""
    judged = list(
        dict.fromkeys(name for each in erased for name in [each.task, *map(name_of, each.others)])
    )
    table = np.full((len(erased), len(judged)), np.nan)
    for row, each in enumerate(erased):
        for one in (each.own, *each.others):
            value = mean(of_arm(one, arm))
            table[row, judged.index(one.judged)] = np.nan if value is None else value
    return [each.task for each in erased], judged, table


def name_of(erased: Erased) -> str:
    """The judging task."""
    return erased.judged


def matrix(erased: Sequence[ErasedTask]) -> Exhibit:
    """What every judged task loses when a task's neurons are erased, random neurons beside."""
    tasks, judged, located = loss_matrix(erased)
    _, _, random = loss_matrix(erased, LAYERS)
    rows: list[Row] = [
        (
            task,
            *(
                f"{cell(own)} ({cell(drawn)})"
                for own, drawn in zip(row, random[place], strict=True)
            ),
        )
        for place, (task, row) in enumerate(zip(tasks, located, strict=True))
    ]
    return Exhibit(
        "erasure-matrix",
        "Log-probability that each task (column) loses without the neurons of another (row)",
        ("erased", *judged),
        rows,
        ["In brackets the mean loss of random neurons of the same layers."],
        partial(
            drawing.matrix,
            tasks,
            judged,
            located,
            label="nats a token",
            diverging=True,
        ),
    )
