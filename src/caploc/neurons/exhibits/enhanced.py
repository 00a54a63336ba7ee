"""Enhancement for a reader, from what its file holds."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from caploc.exhibits import drawing
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.neurons.exhibits.intervals import cell, from_file, told
from caploc.neurons.tuning.enhancement import GOLD, METRIC

Row = tuple[str | Value, ...]
Found = Mapping[str, Any]
LOCATED, RANDOM = "located", "random-layer-matched"


def headline(found: Found) -> str:
    """The answer in a sentence; none where no random neurons were tuned to hold it against."""
    if not any(control_of(each, task, GOLD) for task, each in found.items()):
        return "Located neurons were not tuned beside random ones, so nothing is said of chance"
    beaten = sum(beats(each, task) for task, each in found.items())
    return (
        f"For {beaten} of {len(found)} tasks tuning its located neurons gains more log-probability "
        "than tuning any draw of as many random neurons of the same layers"
    )


def beats(result: Found, task: str) -> bool:
    """Whether the located arm gained more on its own task than every layer-matched draw."""
    control = control_of(result, task, GOLD)
    return bool(control) and all(control["located"] > each for each in control["changes"])


def control_of(result: Found, task: str, measure: str) -> Any:
    """The layer-matched draws' part, None if they were not tuned."""
    for control in result["controls"]:
        if (control["arm"], control["task"], control["measure"]) == (RANDOM, task, measure):
            return control
    return None


def changed(arm: Found, task: str, measure: str) -> Any:
    """An arm's change on a task, None if it was not measured."""
    for change in arm["changes"]:
        if (change["task"], change["measure"]) == (task, measure):
            return change
    return None


def shown(found: Found) -> list[Exhibit]:
    """The exhibits of an enhancement."""
    return [*(arms(task, each) for task, each in found.items()), matrix(found)]


def arms(task: str, result: Found) -> Exhibit:
    """One task's arms: what each gains on the task itself."""
    rows: list[Row] = []
    drawn: dict[str, list[Any]] = {}
    for arm in result["arms"]:
        drawn.setdefault(arm["arm"], []).append(arm)
    for name, each in drawn.items():
        first = each[0]
        fit = first["fit"]
        rows.append(
            (
                name if len(each) == 1 else f"{name}, {len(each)} draws",
                NOTHING if fit is None else f"{fit['parameters']:,}",
                rates(each),
                *(over(each, task, measure) for measure in (METRIC, GOLD)),
                before_after(first, task) if len(each) == 1 else NOTHING,
            )
        )
    control = control_of(result, task, GOLD)
    notes = [
        "Changes with 95 % intervals over examples, paired; of draws the mean, the least and the "
        f"most. Tuned on {result['trained_on']} examples."
    ]
    if control:
        notes.append(
            f"Located against the draws in the same layers, by log-probability: excess "
            f"{told(control['excess'])} nats a token, p {control['p']:.3f} with "
            f"{len(control['changes'])} draws."
        )
    return Exhibit(
        f"enhancement-{task.replace('/', '-')}",
        f"Tuning for {task}",
        (
            "tuned",
            "parameters",
            "best rate",
            "change of score",
            "change of log-probability",
            "log-probability",
        ),
        rows,
        notes,
        partial(
            drawing.points,
            list(drawn),
            {"log-probability": [spread(each, task) for each in drawn.values()]},
            label="change of log-probability, nats a token",
        ),
    )


def rates(draws: Sequence[Found]) -> str:
    """The learning rates chosen, with a mark where the best lies at the edge of those tried."""
    fits = [arm["fit"] for arm in draws if arm["fit"] is not None]
    told_ = [f"{fit['best']['rate']:g}{' (edge)' if fit['at_edge'] else ''}" for fit in fits]
    return ", ".join(dict.fromkeys(told_)) or NOTHING


def over(draws: Sequence[Found], task: str, measure: str) -> str:
    """The change of one arm, or of several draws."""
    changes = [each for each in (changed(arm, task, measure) for arm in draws) if each]
    if not changes:
        return NOTHING
    if len(changes) == 1:
        return told(changes[0]["change"])
    means = [each["change"]["mean"] for each in changes]
    return f"{np.mean(means):z.3f} ({min(means):z.3f} to {max(means):z.3f})"


def spread(draws: Sequence[Found], task: str) -> drawing.Interval:
    """The change as it is drawn."""
    changes = [each for each in (changed(arm, task, GOLD) for arm in draws) if each]
    if len(changes) == 1:
        return from_file(changes[0]["change"])
    means = [each["change"]["mean"] for each in changes]
    return (float(np.mean(means)), min(means), max(means)) if means else (None, None, None)


def before_after(arm: Found, task: str) -> str:
    """The log-probability before and after."""
    change = changed(arm, task, GOLD)
    return f"{change['before']:z.3f} to {change['after']:z.3f}" if change else NOTHING


def gain_matrix(found: Found, arm: str = LOCATED) -> tuple[list[str], list[str], np.ndarray]:
    """Tasks tuned, tasks judged, and each judged one's change of log-probability."""
    tuned = list(found)
    judged = [c["task"] for c in next(iter(found.values()))["arms"][0]["changes"]]
    judged = list(dict.fromkeys(judged))
    table = np.full((len(tuned), len(judged)), np.nan)
    for row, result in enumerate(found.values()):
        own = [each for each in result["arms"] if each["arm"] == arm]
        for column, task in enumerate(judged):
            changes = [each for each in (changed(a, task, GOLD) for a in own) if each]
            if changes:
                table[row, column] = np.mean([each["change"]["mean"] for each in changes])
    return tuned, judged, table


def matrix(found: Found) -> Exhibit:
    """What tuning one task's neurons changes on every task."""
    tuned, judged, located = gain_matrix(found)
    _, _, random = gain_matrix(found, RANDOM)
    rows: list[Row] = [
        (
            task,
            *(
                f"{cell(own)} ({cell(drawn)})" if np.isfinite(drawn) else cell(own)
                for own, drawn in zip(located[place], random[place], strict=True)
            ),
        )
        for place, task in enumerate(tuned)
    ]
    return Exhibit(
        "enhancement-matrix",
        "Log-probability that each task (column) gains when another's neurons (row) are tuned",
        ("tuned", *judged),
        rows,
        ["In brackets the mean of random neurons of the same layers. Nats a token."],
        partial(drawing.matrix, tuned, judged, located, label="nats a token", diverging=True),
    )
