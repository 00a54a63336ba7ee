"""Heads meet neurons: the command. One finished run of each, one model, one page with a figure."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from caploc.errors import BadOption
from caploc.exhibits.exhibit import NOTHING, Exhibit, Value
from caploc.exhibits.page import write_exhibits
from caploc.finished import FinishedRun
from caploc.folder import TOGETHER, versions, write_json
from caploc.neurons.conditions import Joining
from caploc.neurons.exhibits.intervals import ranged
from caploc.neurons.study import opened, read_study
from caploc.neurons.together import LocatedHeads, Together, join
from caploc.neurons.together_figure import together_figure
from caploc.progress import Progress
from caploc.report.figures import HOUSE_STYLE
from caploc.workbench import Allowed

Row = tuple[str | Value, ...]


def join_runs(
    folder: Path,
    heads: Sequence[Path],
    asked: Joining,
    progress: Progress | None = None,
    *,
    command: str = "",
    allowed: Allowed | None = None,
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Knock out the heads and the neurons of each task, alone and together; `together.json`.

    `heads` are folders of finished `caploc locate` runs, whose tasks are among those of the neuron
    run in `folder`.

    Raises:
        UserError: if a folder holds no run, models differ, or a task has no neurons.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    study, first = read_study(folder, allowed)
    asked.check()
    runs = [FinishedRun.read(each, allowed) for each in heads]
    if not runs:
        raise BadOption("--heads names the folder of a finished `caploc locate`; repeat it.")
    for run in runs:
        if run.study.task not in study.tasks:
            raise BadOption(
                f"The run in {run.folder} is of {run.study.task}, of which {folder} has no "
                f"neurons; it has those of {', '.join(study.tasks)}."
            )
    with opened(study, folder, progress, first) as lab:
        found = [
            join(
                lab.bench,
                lab.source(run.study.task),
                LocatedHeads.of(run, lab.bench.engine.loaded),
                lab.found(run.study.task),
                asked,
                lab.progress,
            )
            for run in runs
        ]
        result = {
            "schema": 1,
            "model": study.model.name,
            "tasks": [each.as_dict() for each in found],
            "command": command,
            "versions": versions(),
        }
        write_json(folder / TOGETHER, result)
    exhibits = [layers(found), losses(found), *map(pictured, found)]
    place = folder / "together"
    write_exhibits(
        place, f"Heads and neurons of {study.model.name}", headline(found), [], exhibits, command
    )
    return result, exhibits


def headline(found: Sequence[Together]) -> str:
    """The answer in a sentence."""
    words = {"more": "more than", "sum": "no more and no less than", "less": "less than"}
    parts = [f"{each.task}: {words[each.verdict.kind]} the sum" for each in found]
    return f"Heads and neurons knocked out together cost, for {'; '.join(parts)}"


def layers(found: Sequence[Together]) -> Exhibit:
    """Whether heads and neurons lie in the same layers."""
    rows: list[Row] = []
    for each in found:
        alike = each.alignment.located
        rows.append(
            (
                each.task,
                " ".join(each.heads),
                str(len(each.neurons)),
                Value(alike.overlap.value),
                Value(alike.overlap.expected),
                Value(alike.overlap.p),
                Value(each.alignment.distance.value, digits=1),
                Value(each.alignment.distance.expected, digits=1),
                Value(each.alignment.distance.p),
            )
        )
    columns = (
        "task; heads; neurons; overlap of layers; expected; p of overlap; "
        "layers above the heads; expected above; p of layers"
    )
    return Exhibit(
        "together-layers",
        "Do a capability's heads and neurons lie in the same layers?",
        tuple(columns.split("; ")),
        rows,
        [
            "Overlap: the share of heads and of neurons that lie in the same layers. Chance: as "
            "many heads drawn from the whole model, neurons as located."
        ],
    )


def losses(found: Sequence[Together]) -> Exhibit:
    """What each condition costs, and whether both cost more than the sum."""
    rows: list[Row] = []
    for each in found:
        joint, scores = each.located.logprob, each.located.scores
        gains = [outcomes["logprob"].p for outcomes in each.specificity.values()]
        rows.append(
            (
                each.task,
                Value(each.intact),
                *(Value(scores.get(name)) for name in ("heads", "neurons", "both")),
                *(ranged(getattr(joint, name)) for name in ("heads", "neurons", "both")),
                ranged(joint.interaction),
                ", ".join(NOTHING if p is None else f"{p:.3f}" for p in gains) or NOTHING,
            )
        )
    columns = (
        "task; score intact; score without heads; score without neurons; score without both; "
        "lost without heads; lost without neurons; lost without both; beyond the sum; p beside "
        "random neurons, heads"
    )
    return Exhibit(
        "together-losses",
        "Does knocking out both do more than the sum?",
        tuple(columns.split("; ")),
        rows,
        [
            "Losses in nats of log-probability a gold token, paired 95 % intervals over examples. "
            "An accuracy that is 0 cannot fall further, so the sum is judged by log-probability.",
            *(f"{each.task}: {each.verdict.sentence}" for each in found),
        ],
    )


def pictured(found: Together) -> Exhibit:
    """One task's figure, with the layers' shares as its table."""
    alike = found.alignment.located
    rows: list[Row] = [
        (f"L{layer}", Value(float(own), digits=2), Value(float(other), digits=2))
        for layer, (own, other) in enumerate(zip(alike.heads, alike.neurons, strict=True))
    ]
    return Exhibit(
        f"together-{found.task.replace('/', '-')}",
        f"Heads and neurons of {found.task}",
        ("layer", "share of heads", "share of neurons"),
        rows,
        [],
        partial(styled, found),
    )


def styled(found: Together) -> Any:
    """The figure in the house style."""
    with rc_context(HOUSE_STYLE):
        return together_figure(found)
