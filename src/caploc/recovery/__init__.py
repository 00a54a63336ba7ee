"""From rows and outcomes to an estimate of every head's effect."""

from caploc.recovery.estimate import Estimate, Estimator, Measurements
from caploc.recovery.lasso import PaperLasso
from caploc.recovery.paired import PairedDifferences

ESTIMATORS: dict[str, type[Estimator]] = {
    "lasso": PaperLasso,
    "paired": PairedDifferences,
}

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "Estimator",
    "Measurements",
    "PairedDifferences",
    "PaperLasso",
]
