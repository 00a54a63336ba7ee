"""Searches on a real model: every plan goes through a meter, so no row is measured twice."""

from collections.abc import Sequence
from dataclasses import replace

from caploc.cost import Cost
from caploc.measurement import Meter, as_measurements
from caploc.progress import Silent
from caploc.recovery import Measurements
from caploc.search import Plan, Search
from driving import Done, drive


def metered(search: Search, meters: Sequence[Meter]) -> Done:
    """Drive a search; `meters` are those of the task and of the tasks beside it.

    Its seconds are those of its rows when they were first measured, whoever asked for them.
    """
    cost = Cost()
    for meter in meters:
        meter.cost, meter.counted = cost, set()

    def answer(plan: Plan) -> Measurements:
        return as_measurements(plan, meters[plan.task].measure(plan, Silent(), plan.what))

    done = drive(search, answer)
    return replace(done, measuring=cost.seconds)
