"""From rows and outcomes to an estimate of every head's effect."""

from caploc.recovery.estimate import Estimate, Estimator, Measurements
from caploc.recovery.paired import PairedDifferences
from caploc.recovery.regression import (
    ChosenLasso,
    DifferenceOfMeans,
    Logistic,
    PaperLasso,
    SpikeAndSlab,
)

ESTIMATORS: dict[str, type[Estimator]] = {
    "lasso": PaperLasso,
    "lasso-cv": ChosenLasso,
    "logistic": Logistic,
    "means": DifferenceOfMeans,
    "paired": PairedDifferences,
    "spike-slab": SpikeAndSlab,
}

__all__ = ["ESTIMATORS", "Estimate", "Estimator", "Measurements"]
