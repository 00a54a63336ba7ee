"""How plans of a search become rows; the rows themselves are tested with the engine and study."""

import numpy as np

from caploc.measurement import Meter, as_measurements, outcomes_by_example, search
from caploc.progress import Silent
from caploc.search import Plan
from caploc.store import Row


def row(number, outcome):
    return Row(b"", "", number, outcome, None, "", 1.0, 1, 0.5)


class Noted(Meter):
    """A meter without an engine, whose rows all have the same outcome."""

    def __init__(self, outcome):
        self.outcome, self.asked = outcome, []

    def measure(self, plan, progress, what):
        self.asked.append((plan, what))
        return [row(int(example), self.outcome) for example in plan.example]


def plan(task, what, examples):
    return Plan.crossed(np.eye(2, dtype=bool), examples, task=task, what=what)


def test_every_plan_goes_to_the_meter_of_its_task_and_its_rows_come_back():
    def asking():
        first = yield plan(0, "one", [3, 4])
        second = yield plan(1, "two", [7])
        return first, second

    meters = [Noted(1.0), Noted(0.0)]
    first, second = search(meters, asking(), Silent())
    assert [[what for _, what in meter.asked] for meter in meters] == [["one"], ["two"]]
    assert first.example.tolist() == [3, 4, 3, 4] and first.mask.tolist() == [0, 0, 1, 1]
    assert (first.outcome == 1).all() and (second.outcome == 0).all()
    assert (first.masks == np.eye(2, dtype=bool)).all()


def test_a_search_that_plans_nothing_returns_at_once():
    def knowing():
        return "found"
        yield

    assert search([], knowing(), Silent()) == "found"


def test_rows_without_a_score_are_missing_and_not_wrong():
    rows = [row(3, 1.0), row(4, float("nan"))]
    measured = as_measurements(Plan.crossed(np.eye(1, dtype=bool), [3, 4]), rows)
    assert measured.outcome[0] == 1 and np.isnan(measured.outcome[1])
    assert outcomes_by_example(rows) == {3: 1.0}
