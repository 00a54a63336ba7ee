"""Each head alone against the intact model, on the same examples."""

import warnings

import numpy as np
from scipy import stats

from caploc.recovery.estimate import Estimate, Measurements
from caploc.recovery.screening import false_discovery_rates

CONFIDENCE = 0.95


class PairedDifferences:
    """Mean over examples of (outcome without the head - intact outcome).

    Uses the masks that knock out a single head. The interval is Student's t over the examples'
    differences; `q` is the Benjamini-Hochberg value of the paired t-test over all heads measured.
    """

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Compare every single-head mask with the intact model."""
        heads = seen.masks.shape[1]
        effect, low, high, p = (np.full(heads, np.nan) for _ in range(4))
        single = seen.masks.sum(axis=1) == 1
        cut = np.where(single, seen.masks.argmax(axis=1), -1)[seen.mask]
        for head in np.flatnonzero(seen.masks[single].any(axis=0)):
            outcomes = seen.where(cut == head).by_example()
            differences = np.array([o - intact[e] for e, o in outcomes.items() if e in intact])
            if differences.size:
                effect[head], low[head], high[head], p[head] = paired(differences)
        return Estimate("paired", effect, low, high, false_discovery_rates(p))


def paired(differences: np.ndarray) -> tuple[float, float, float, float]:
    """Mean, interval and two-sided p of differences; the interval is NaN for a single one.

    Differences that are all equal have no spread to judge by: they count as a change for certain
    (p = 0) only if they are not 0.
    """
    mean = float(differences.mean())
    if differences.size < 2:
        return mean, np.nan, np.nan, np.nan
    if np.ptp(differences) == 0:
        return mean, mean, mean, 1.0 if mean == 0 else 0.0
    with warnings.catch_warnings():
        # Nearly equal differences: SciPy warns of lost precision, which does not matter here.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = stats.ttest_1samp(differences, 0.0)
        low, high = test.confidence_interval(CONFIDENCE)
    return mean, float(low), float(high), float(test.pvalue)
