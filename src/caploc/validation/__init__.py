"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?"""

from caploc.validation.comparison import Check, Comparison, check_limit, measure_change, score_both
from caploc.validation.failures import answer_pair, categorize_failures
from caploc.validation.frontier import (
    Promise,
    check_sides,
    frontier_note,
    judge_frontier,
    offer_part,
    split_examples,
)
from caploc.validation.held_out import held_out
from caploc.validation.members import drop_idle_members, judge, measure_members
from caploc.validation.wording import left_out

__all__ = [
    "Check",
    "Comparison",
    "Promise",
    "check_sides",
    "frontier_note",
    "judge_frontier",
    "left_out",
    "offer_part",
    "split_examples",
    "answer_pair",
    "check_limit",
    "score_both",
    "drop_idle_members",
    "categorize_failures",
    "held_out",
    "judge",
    "measure_change",
    "measure_members",
]
