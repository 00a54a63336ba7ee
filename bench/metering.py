"""Searches on a real model: every plan goes through a meter, so no row is measured twice."""

from collections.abc import Mapping
from dataclasses import replace

from caploc.cost import Cost
from caploc.measurement import Meter, as_measurements
from caploc.progress import Silent
from caploc.recovery import Measurements
from caploc.search import Plan, Search
from driving import Done, drive


def metered(search: Search, meters: Mapping[str, Meter]) -> Done:
    """Drive a search; `meters` are those of the probes that it may ask.

    Its seconds are those of its rows when they were first measured, whoever asked for them.
    """
    cost = Cost()
    for meter in meters.values():
        meter.cost, meter.counted = cost, set()

    def answer(plan: Plan) -> Measurements:
        return as_measurements(plan, meters[plan.probe].measure(plan, Silent(), plan.what))

    done = drive(search, answer)
    return replace(done, measuring=cost.seconds)
