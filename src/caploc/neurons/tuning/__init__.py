"""Tune chosen neurons alone, and find out what that does that tuning others does not."""

from caploc.neurons.tuning.arms import ARMS, Arm, arms
from caploc.neurons.tuning.degradation import degraded
from caploc.neurons.tuning.delta import Delta, apply_delta, delta_of, load_delta, save_delta
from caploc.neurons.tuning.enhancement import Enhancement, Evaluation, enhance
from caploc.neurons.tuning.rows import TrainableRows, attach
from caploc.neurons.tuning.training import Recipe

__all__ = [
    "ARMS",
    "Arm",
    "Delta",
    "Enhancement",
    "Evaluation",
    "Recipe",
    "TrainableRows",
    "apply_delta",
    "arms",
    "attach",
    "degraded",
    "delta_of",
    "enhance",
    "load_delta",
    "save_delta",
]
