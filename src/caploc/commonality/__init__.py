"""Which neurons a capability's data have in common: sets, their overlap, controls and contrasts.

Numbers in, numbers out; no model is run. In the order of a study: scores of many items
are gathered (`Moments`), a threshold makes a set of them (`above`, `best`), the
sets of a dataset's subsets are held against each other, against chance and against controls
(`within`, `chance`, `commonality_set`, `specific`), those of several datasets too (`across`,
`cohesion`, `agreement`), what a set does is held against random sets (`uniform`, `layer_matched`,
`specificity`), and contrasts tell capability from content (`arithmetic`, `sentiment`, `sums`,
`quizzes`, `decoupling`).

Commonality Neuron Localization is of Huang et al., "Capability Localization: Capabilities Can be
Localized rather than Individual Knowledge" (ICLR 2025, arXiv 2502.20992). Not all of its formulas
are known to us; each module says what is our choice.
"""

from caploc.commonality.agreement import Agreement, Cohesion, Correlation, agreement, cohesion
from caploc.commonality.contrasts import (
    ARMS,
    Balance,
    ContrastSet,
    Decoupling,
    Item,
    balance,
    decoupling,
    distinct,
    kept,
    matched,
)
from caploc.commonality.demonstration import quizzes, sums
from caploc.commonality.intervals import (
    Interval,
    MeanWithInterval,
    mean_interval,
    paired_interval,
    plain,
)
from caploc.commonality.moments import Moments
from caploc.commonality.operations import arithmetic
from caploc.commonality.overlap import (
    COMPARED,
    RATES,
    Group,
    OverlapRates,
    Vote,
    chance,
    group,
    jaccards,
    mean_defined,
    rate_matrices,
    rates,
)
from caploc.commonality.reviews import sentiment
from caploc.commonality.specificity import (
    FEWEST,
    Specificity,
    bottom,
    draw_in_blocks,
    layer_matched,
    specificity,
    uniform,
)
from caploc.commonality.stability import (
    Control,
    Overlaps,
    Specific,
    Within,
    across,
    between,
    commonality_set,
    specific,
    within,
)
from caploc.commonality.threshold import (
    SHARES,
    SIGMA,
    SIGMAS,
    Chosen,
    Located,
    Scores,
    Sets,
    ThresholdSweep,
    above,
    best,
    blocks,
    cantelli,
    gaussian,
    layer_counts,
    strengths,
    sweep,
)

__all__ = [
    "ARMS",
    "Agreement",
    "Balance",
    "COMPARED",
    "Chosen",
    "Cohesion",
    "ContrastSet",
    "Control",
    "Correlation",
    "Decoupling",
    "FEWEST",
    "Group",
    "Interval",
    "Item",
    "Located",
    "Moments",
    "Overlaps",
    "RATES",
    "OverlapRates",
    "MeanWithInterval",
    "SHARES",
    "SIGMA",
    "SIGMAS",
    "Scores",
    "Sets",
    "Specific",
    "Specificity",
    "ThresholdSweep",
    "Vote",
    "Within",
    "above",
    "across",
    "agreement",
    "arithmetic",
    "balance",
    "best",
    "between",
    "blocks",
    "bottom",
    "cantelli",
    "chance",
    "cohesion",
    "commonality_set",
    "decoupling",
    "distinct",
    "draw_in_blocks",
    "gaussian",
    "group",
    "jaccards",
    "kept",
    "layer_counts",
    "layer_matched",
    "matched",
    "mean_defined",
    "mean_interval",
    "paired_interval",
    "plain",
    "quizzes",
    "rate_matrices",
    "rates",
    "sentiment",
    "specific",
    "specificity",
    "strengths",
    "sums",
    "sweep",
    "uniform",
    "within",
]
