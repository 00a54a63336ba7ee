"""How sets hang on the points of the integral, and what one task's neurons do to other tasks.

The paper's claim is that a dataset's neurons serve other datasets of the same capability; the
summary of it is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from caploc.neurons.options import Attribution
from caploc.neurons.sets import COMPARED, cohesion, overlap_rates, rank_correlation
from caploc.neurons.study import NeuronLab
from caploc.stats.threshold import best

Effects = Mapping[tuple[str, str], float | None]  # by whose neurons, and the task judged
SHARE = 0.01  # of all neurons, at which scores are compared whatever their spread
POINTS = (5, 10, 19, 40)


def compare_points(lab: NeuronLab, tasks: Sequence[str], examples: int) -> list[dict[str, Any]]:
    """Hold scores by other numbers of points against those by most, and the last point alone."""
    rows = []
    for task in tasks:
        spans = lab.spans(task)[:examples]
        asked = {
            f"S = {steps}": replace(lab.study.attribution, method="integrated", steps=steps)
            for steps in POINTS
        } | {"gradient": Attribution("gradient")}
        scores = {name: lab.finder(each).stretch(task, spans).mean for name, each in asked.items()}
        most = scores[f"S = {max(POINTS)}"]
        for name, mean in scores.items():
            same = overlap_rates(best(most, SHARE), best(mean, SHARE)).largest
            correlation = rank_correlation(most, mean)
            rows.append({"task": task, "points": name, "shared": same, "correlation": correlation})
    return rows


def cross(effects: Effects, overlaps: Mapping[str, Any], kinds: Mapping[str, str]) -> Any:
    """Sum up effects of one task's neurons on others: within a kind, across, and by overlap.

    Effects are in nats of log-probability for each gold token, by the task whose neurons are cut or
    tuned and the task judged.
    """
    tasks = [task for task in overlaps["datasets"] if (task, task) in effects]
    table = np.array([[effects.get((a, b), np.nan) for b in tasks] for a in tasks], dtype=float)
    places = [overlaps["datasets"].index(task) for task in tasks]
    shared = np.array(overlaps["rates"][COMPARED], dtype=float)[np.ix_(places, places)]
    found = cohesion(table, tasks, {task: kinds.get(task, task) for task in tasks})
    apart = ~np.eye(len(tasks), dtype=bool)
    together = rank_correlation(table[apart], shared[apart])
    return {"tasks": tasks, "kinds": found, "overlap": together}
