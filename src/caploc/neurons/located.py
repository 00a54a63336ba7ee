"""The neurons of several tasks of one model, held against each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caploc.commonality import (
    COMPARED,
    Cohesion,
    Interval,
    Overlaps,
    across,
    between,
    cohesion,
)
from caploc.neurons.finding import Found
from caploc.neurons.grid import NeuronGrid
from caploc.neurons.rule import Rule


@dataclass(frozen=True)
class Located:
    """The neurons of several tasks of one model, and what their subsets have in common.

    `kinds` says which tasks are of one kind (each its own if it is not named).
    """

    grid: NeuronGrid
    rule: Rule
    found: dict[str, Found]
    kinds: Mapping[str, str]

    def overlaps(self) -> Overlaps:
        """The five rates between every two tasks, on the diagonal within each."""
        return across(
            {task: each.located for task, each in self.found.items()},
            {task: each.subsets for task, each in self.found.items()},
        )

    def cohesion(self) -> Cohesion:
        """Alike within a task and a kind, unlike across?"""
        overlaps = self.overlaps()
        kinds = {task: self.kinds.get(task, task) for task in self.found}
        return cohesion(overlaps.rates[COMPARED], overlaps.datasets, kinds)

    def apart(self, task: str) -> Interval | None:
        """How alike a task's subsets are to those of the other tasks; None for a single task."""
        others = {name: each.subsets for name, each in self.found.items() if name != task}
        return between(self.found[task].subsets, others, COMPARED) if others else None

    def separate(self, task: str) -> bool | None:
        """Whether the interval within the task lies above that across tasks; None if unknown."""
        within, other = self.found[task].within().rates[COMPARED], self.apart(task)
        if other is None or np.isnan(within.low) or np.isnan(other.high):
            return None
        return within.low > other.high

    def as_dict(self) -> dict[str, Any]:
        """As `neurons.json` has it."""
        several = len(self.found) > 1
        return {
            "grid": {
                "layers": self.grid.layers,
                "neurons": list(self.grid.neurons_per_layer),
                "expert_widths": list(self.grid.expert_widths),
                "expert_counts": list(self.grid.expert_counts),
            },
            "tasks": [
                each.as_dict(self.grid, self.rule)
                | {"across": told(self.apart(task)), "separate": self.separate(task)}
                for task, each in self.found.items()
            ],
            "overlaps": self.overlaps().as_dict() if several else None,
            "cohesion": self.cohesion().as_dict() if several else None,
        }


def told(interval: Interval | None) -> dict[str, Any] | None:
    """An interval as files hold it."""
    return None if interval is None else interval.as_dict()


def restored(result: Mapping[str, Any]) -> tuple[NeuronGrid, dict[str, tuple[Any, Any]]]:
    """The grid of a `neurons.json`, and each task's neurons and those of its subsets."""
    fields = result["grid"]
    grid = NeuronGrid(
        tuple(fields["neurons"]), tuple(fields["expert_widths"]), tuple(fields["expert_counts"])
    )
    found = {
        task["task"]: (
            grid.mask(row["neuron"] for row in task["neurons"]),
            np.stack([grid.mask(names) for names in task["subsets"]]),
        )
        for task in result["tasks"]
    }
    return grid, found
