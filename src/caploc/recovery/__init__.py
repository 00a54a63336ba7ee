"""From rows and outcomes to an estimate of every head's effect."""

from caploc.recovery.estimate import (
    Estimate,
    Estimator,
    Measurements,
    noise_ceiling,
)
from caploc.recovery.lasso import PaperLasso
from caploc.recovery.paired import (
    PairedDifferences,
    alone,
    falls,
    paired,
    right_or_wrong,
    standard_error,
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
    "alone",
    "falls",
    "noise_ceiling",
    "paired",
    "right_or_wrong",
    "standard_error",
]
