"""Cross-data: what erasing or tuning one task's neurons does to every other task, summed up.

The paper's claim is that a dataset's neurons serve other datasets of the same capability. Ours is
the summary: means within a kind of task and across kinds, and whether tasks whose neurons overlap
share effects.
"""

from typing import Any

import numpy as np

from caploc.neurons.erasure import LOCATED
from caploc.stats.sets import COMPARED, cohesion, correlate_matrices


def losses(erasure: dict[str, Any]) -> dict[tuple[str, str], float]:
    """List what each judged task loses of log-probability without each task's located neurons."""
    return {
        (task["task"], one["judged"]): arm["logprob"]["mean"]
        for task in erasure["tasks"]
        for one in (task["own"], *task["others"])
        for arm in one["arms"]
        if arm["arm"] == LOCATED
    }


def cross(
    how: str,
    effects: dict[tuple[str, str], float],
    overlaps: dict[str, Any],
    kinds: dict[str, str],
) -> dict[str, Any]:
    """Sum up effects of one task's neurons on others: within a kind, across, and by overlap.

    Effects are in nats of log-probability for each gold token, by the task whose neurons are cut or
    tuned and the task judged.
    """
    tasks = [task for task in overlaps["datasets"] if (task, task) in effects]
    table = np.array([[effects.get((a, b), np.nan) for b in tasks] for a in tasks], dtype=float)
    places = [overlaps["datasets"].index(task) for task in tasks]
    shared = np.array(overlaps["rates"][COMPARED], dtype=float)[np.ix_(places, places)]
    found = cohesion(table, tasks, {task: kinds.get(task, task) for task in tasks})
    together = correlate_matrices(table, shared).spearman if len(tasks) > 2 else None
    told = together.as_dict() if together else None
    return {"how": how, "tasks": tasks, "kinds": found.as_dict(), "overlap": told}
