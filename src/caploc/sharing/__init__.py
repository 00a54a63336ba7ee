"""What the heads found for several tasks, or in several models, have in common. No model is run.

Heads and key-value groups that tasks share beside what chance gives; heads that many kinds of tasks
need; and whether larger models localize more.
"""

from caploc.sharing.chance import Chance
from caploc.sharing.overlap import JointOverlap, Overlap, Shared, overlaps, shared, together
from caploc.sharing.strength import Scores, Strength, Trend, averaged, localization, trend
from caploc.sharing.universality import Candidate, HeadCost, Intact, Trial, Universality, universal

__all__ = [
    "Candidate",
    "Chance",
    "HeadCost",
    "Intact",
    "Overlap",
    "Scores",
    "Shared",
    "Strength",
    "JointOverlap",
    "Trend",
    "Trial",
    "Universality",
    "averaged",
    "localization",
    "overlaps",
    "shared",
    "together",
    "trend",
    "universal",
]
