"""Find every task's neurons: the command from end to end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caploc.commonality import cantelli
from caploc.errors import BadOption
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.folder import NEURONS, versions, write_json
from caploc.neurons.exhibits.sets import shown
from caploc.neurons.located import Located
from caploc.neurons.study import NeuronLab, NeuronStudy, opened
from caploc.progress import Progress


def locate(
    study: NeuronStudy,
    folder: Path,
    progress: Progress | None = None,
    *,
    kinds: Mapping[str, str] | None = None,
    command: str = "",
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Find the neurons of every task; write `neurons.json` and `report.html`.

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; what was scored is kept.
    """
    if strange := [task for task in kinds or {} if task not in study.tasks]:
        raise BadOption(
            f"--kind names {strange[0]}, which is no task of the run; they are "
            f"{', '.join(study.tasks)}."
        )
    with opened(study, folder, progress, command) as lab:
        located = found_in(lab, kinds or {})
        result = {
            "schema": 1,
            "model": {"name": study.model.name, "fingerprint": lab.bench.neurons.fingerprint},
            "rule": str(study.rule),
            "attribution": study.attribution.method,
            **located.as_dict(),
            "command": command,
            "versions": versions(),
        }
        write_json(folder / NEURONS, result)
    exhibits = shown(located)
    name = f"Neurons of {study.model.name}"
    write_exhibits(folder, name, headline(located, study.least), method(study), exhibits, command)
    return result, exhibits


def found_in(lab: NeuronLab, kinds: Mapping[str, str]) -> Located:
    """What a study finds."""
    found = {task: lab.found(task) for task in lab.study.tasks}
    return Located(lab.bench.neurons.grid, lab.study.rule, found, kinds)


def headline(located: Located, least: float) -> str:
    """The answer in a sentence; neurons are chosen on a share `least` of the subsets."""
    where = subsets_of(least)
    counts = {task: int(each.located.sum()) for task, each in located.found.items()}
    total = located.grid.size
    if len(counts) == 1:
        ((task, count),) = counts.items()
        return f"{count} of {total:,} neurons are chosen for {task} on {where}"
    apart = sum(located.separate(task) is True for task in counts)
    return (
        f"{min(counts.values())} to {max(counts.values())} of {total:,} neurons are chosen for a "
        f"task on {where}; for {apart} of {len(counts)} tasks its own subsets agree beyond "
        "doubt more than those of different tasks"
    )


def subsets_of(least: float) -> str:
    """On which subsets a task's neurons are chosen."""
    return "every subset" if least == 1 else f"{100 * least:g} % of the subsets or more"


def method(study: NeuronStudy) -> list[str]:
    """What was done, in words."""
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
