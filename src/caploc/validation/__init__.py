"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?"""

from caploc.validation.check import Check
from caploc.validation.comparison import Comparison, change, check_limit, compare
from caploc.validation.failures import Failures, failures
from caploc.validation.held_out import held_out
from caploc.validation.members import (
    describe_members,
    drop_idle_members,
    measure_members,
)
from caploc.validation.subsets import judge

__all__ = [
    "Check",
    "Comparison",
    "Failures",
    "change",
    "check_limit",
    "compare",
    "describe_members",
    "drop_idle_members",
    "failures",
    "held_out",
    "judge",
    "measure_members",
]
