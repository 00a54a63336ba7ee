"""From rows and outcomes to an estimate of every head's effect."""

from caploc.recovery.estimate import Estimate, Estimator, Measurements, noise_ceiling
from caploc.recovery.lasso import PaperLasso
from caploc.recovery.paired import (
    PairedDifferences,
    falls,
    falls_short,
    paired,
    paired_standard_error,
    right_or_wrong,
    single_head_differences,
)
from caploc.recovery.rowwise import ChosenLasso, DifferenceOfMeans, Logistic, SpikeAndSlab

ESTIMATORS: dict[str, type[Estimator]] = {
    "lasso": PaperLasso,
    "lasso-cv": ChosenLasso,
    "logistic": Logistic,
    "means": DifferenceOfMeans,
    "paired": PairedDifferences,
    "spike-slab": SpikeAndSlab,
}

__all__ = [
    "ESTIMATORS",
    "ChosenLasso",
    "DifferenceOfMeans",
    "Estimate",
    "Estimator",
    "Logistic",
    "Measurements",
    "PairedDifferences",
    "PaperLasso",
    "SpikeAndSlab",
    "single_head_differences",
    "falls",
    "falls_short",
    "noise_ceiling",
    "paired",
    "right_or_wrong",
    "paired_standard_error",
]
