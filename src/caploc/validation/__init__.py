"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?"""

from caploc.validation.check import Check
from caploc.validation.comparison import Comparison, change, check_limit, compare
from caploc.validation.failures import Failures, failures
from caploc.validation.held_out import held_out
from caploc.validation.subsets import judge

__all__ = [
    "Check",
    "Comparison",
    "Failures",
    "change",
    "check_limit",
    "compare",
    "failures",
    "held_out",
    "judge",
]
