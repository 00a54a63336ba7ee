"""Does a task need its own neurons more than another capability's, in sets of equal size?

Each task's neurons of the highest scores, as many as the smallest located set has, are erased on
held-out examples of every task; beside a task's own stand random draws of the same layers. All is
done twice: with whole sets, and without *universal* neurons, those that more than half of the
capabilities have. Universal neurons are told from tasks that are not erased (twins, in other words)
where the run has some. The design is ours.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from caploc.neurons.chance import random_sets
from caploc.neurons.erasure import Eraser, Outcomes
from caploc.neurons.model import Chosen
from caploc.neurons.options import Erasing
from caploc.neurons.stats import mean_interval
from caploc.neurons.study import NeuronSession

WHOLE, STRUCK = "whole sets", "without universal neurons"
LEVEL = 0.05  # of all tasks together: an interval of one of n tasks leaves out LEVEL / n


def universal_neurons(found: Mapping[str, Chosen], kinds: Mapping[str, str]) -> Chosen:
    """Choose the neurons that more than half of three capabilities or more have.

    A capability has a neuron if one of its tasks does, a twin for example.
    """
    owned: dict[str, list[Chosen]] = defaultdict(list)
    for task, chosen in found.items():
        owned[kinds.get(task, task)].append(chosen)
    owners = np.sum([np.any(sets, axis=0) for sets in owned.values()], axis=0)
    return (2 * owners > len(owned)) & (len(owned) >= 3)


def erase_equal(session: NeuronSession, asked: Erasing, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Erase sets of equal size, each task's on every task; draws are of sets without universals."""
    tasks = session.with_neurons(asked.tasks, "erase")
    located = {task: session.found(task).located for task in session.study.tasks}
    apart = {task: chosen for task, chosen in located.items() if task not in tasks}
    universal = universal_neurons(apart or located, kinds)
    stages = {}
    for stage, struck, draws in ((WHOLE, universal & False, 0), (STRUCK, universal, asked.draws)):
        columns = {
            task: [c for c in session.found(task).ordered if not struck[c]] for task in tasks
        }
        count = min(map(len, columns.values()))
        sets = {task: np.isin(np.arange(struck.size), each[:count])
                for task, each in columns.items()}  # fmt: skip
        rows = [judge_task(session, asked, task, sets, draws, kinds) for task in tasks]
        stages[stage] = {"count": count, "tasks": rows}
    taken = {task: lose(session, asked, task, universal)["score"] for task in tasks}
    return {
        "universal": list(map(str, session.model.grid.named(universal))),
        "taken_by_universal": {task: mean_interval(lost).as_dict() for task, lost in taken.items()},
        "stages": stages,
    }


def lose(session: NeuronSession, asked: Erasing, task: str, chosen: Chosen) -> dict[str, Outcomes]:
    """Measure what each held-out example loses: of its score, and in nats a gold token."""
    eraser = Eraser(session.meters, asked, session.found(task), session.progress)
    source = session.sources[task]
    meters, examples = eraser.measures(source), source.judge_on[: asked.limit]
    intact, cut = (eraser.outcomes(meters, each, examples) for each in (chosen & False, chosen))
    return {
        "score": intact["metric"] - cut["metric"],
        "nats": intact["logprob"] - cut["logprob"],
    }


def judge_task(
    session: NeuronSession,
    asked: Erasing,
    task: str,
    sets: Mapping[str, Chosen],
    draws: int,
    kinds: Mapping[str, str],
) -> dict[str, Any]:
    """Hold what a task loses by its own set against draws, and against other capabilities' sets."""
    kind = kinds.get(task, task)
    lost = {other: lose(session, asked, task, chosen) for other, chosen in sets.items()}
    random = random_sets(sets[task], session.model.grid, draws, seed=asked.seed) if draws else ()
    drawn = [lose(session, asked, task, chosen) for chosen in random]
    own = lost[task]
    others = [other for other in sets if kinds.get(other, other) != kind]
    return {
        "task": task,
        "examples": len(own["nats"]),
        "lost": {
            measure: {
                "own": mean_interval(mine).as_dict(),
                "draws": [each[measure].mean() for each in drawn],
                "more_than": {
                    other: more(mine - lost[other][measure], LEVEL / len(sets)) for other in others
                },
            }
            for measure, mine in own.items()
        },
    }


def more(differences: Outcomes, level: float) -> dict[str, float]:
    """Tell by how much one set takes more than another of the same examples, on average."""
    ends = stats.ttest_1samp(differences, 0).confidence_interval(1 - level)
    return {"mean": differences.mean(), "low": ends.low, "high": ends.high}
