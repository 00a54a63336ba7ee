"""How plans of a search become rows; the rows themselves are tested with the engine and study."""

import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from caploc.components import Heads
from caploc.engine.api import Answer
from caploc.errors import RunFailed
from caploc.measurement import Cost, Meter, as_measurements, outcomes_by_example, search
from caploc.progress import Silent
from caploc.search import Plan
from caploc.store import Question, Row, Store
from caploc.tasks.task import Generated, Metric
from doubles import NumberTask


def row(number, outcome):
    return Row(b"", "", number, outcome, None, "", 1.0, 1, 0.5)


class Noted(Meter):
    """A meter whose rows all have the same outcome, whatever its engine."""

    engine = None

    def __init__(self, outcome, task="sums"):
        self.outcome, self.asked, self.task = outcome, [], SimpleNamespace(name=task)

    def measure(self, plan, progress, what):
        self.asked.append((plan, what))
        return [row(int(example), self.outcome) for example in plan.example]


def plan(probe, what, examples):
    return Plan.crossed(probe, np.eye(2, dtype=bool), examples, what)


def test_every_plan_goes_to_the_meter_of_its_probe_and_its_rows_come_back():
    def asking():
        first = yield plan("sums", "one", [3, 4])
        second = yield plan("other", "two", [7])
        return first, second

    meters = {"sums": Noted(1.0), "other": Noted(0.0)}
    first, second = search(meters, asking(), Silent())
    assert [[what for _, what in meter.asked] for meter in meters.values()] == [["one"], ["two"]]
    meters["other"] = Noted(0.0, "plurals")  # of several tasks a stage says which it asks
    assert search(meters, asking(), Silent())[1].example.tolist() == [7, 7]
    assert [what for _, what in meters["other"].asked] == ["two, plurals"]
    assert first.example.tolist() == [3, 4, 3, 4] and first.mask.tolist() == [0, 0, 1, 1]
    assert (first.outcome == 1).all() and (second.outcome == 0).all()
    assert (first.masks == np.eye(2, dtype=bool)).all()


def test_a_search_that_plans_nothing_returns_at_once():
    def knowing():
        return "found"
        yield

    assert search({}, knowing(), Silent()) == "found"


def test_rows_without_a_score_are_missing_and_not_wrong():
    rows = [row(3, 1.0), row(4, float("nan"))]
    measured = as_measurements(Plan.crossed("sums", np.eye(1, dtype=bool), [3, 4]), rows)
    assert measured.outcome[0] == 1 and np.isnan(measured.outcome[1])
    assert outcomes_by_example(rows) == {3: 1.0}


class Squares(NumberTask):
    """Squares of numbers, whose scoring can be watched: `scoring(example)` is called for each."""

    def __init__(self, runs_code, scoring):
        self.metric, self.scoring = Metric("acc", runs_code=runs_code), scoring

    def item(self, example, responses):
        self.scoring(example)
        return float(responses[0].text) ** 2


class Echo:
    """An engine that says its prompt back, in batches of four."""

    grid = Heads((2,))

    def answer(self, asks):
        asks = list(asks)
        for first in range(0, len(asks), 4):
            yield [
                Answer(ask.key, Generated(ask.request.prompt), seconds=0.0, forward_tokens=1.0,
                       plain_tokens=1)
                for ask in asks[first : first + 4]
            ]  # fmt: skip


@pytest.fixture
def meter_of(tmp_path):
    with Store(tmp_path / "rows.sqlite") as store:
        yield lambda task: Meter(
            Echo(), store, task, Question("m", "d", "t", "1", "metric"), Cost()
        )


def under_none(meter, examples):
    return meter.under(np.zeros(2, dtype=bool), examples, Silent(), "")


def test_programs_of_a_batch_are_scored_side_by_side(meter_of, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    together = threading.Barrier(4, timeout=20)  # breaks unless all four of a batch wait at once
    rows = under_none(meter_of(Squares(True, lambda _: together.wait())), range(8))
    assert [row.outcome for row in rows] == [n**2 for n in range(8)]


def test_other_tasks_are_scored_where_the_engine_runs(meter_of):
    threads = set()
    under_none(meter_of(Squares(False, lambda _: threads.add(threading.get_ident()))), range(8))
    assert threads == {threading.get_ident()}


def test_a_row_is_the_same_measured_and_read_again(meter_of):
    """A metric may hand on NumPy numbers, whose sums round otherwise than plain ones do."""
    task = Squares(False, lambda _: None)
    task.item = lambda example, responses: (np.float64(example) / 10, np.int64(example))
    task.outcome = lambda item: float(item[0])
    meter = meter_of(task)
    measured, known = under_none(meter, range(8)), under_none(meter, range(8))
    assert [row.item for row in measured] == [row.item for row in known]
    for row in (*measured, *known):
        assert [type(part) for part in row.item] == [float, int] and type(row.item) is list


def test_rows_scored_side_by_side_are_stored_in_order(meter_of, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    # The first of a batch is the last to be done.
    meter = meter_of(Squares(True, lambda example: time.sleep(0.02 * (3 - example % 4))))
    stored = []
    monkeypatch.setattr(meter.store, "add", lambda _, rows: stored.append(rows))
    under_none(meter, [5, 3, 8, 1, 0])
    assert [[row.number for row in batch] for batch in stored] == [[5, 3, 8, 1], [0]]


@pytest.mark.parametrize("executes_code", [True, False])
def test_a_failure_in_scoring_ends_the_run_and_keeps_the_batches_before(meter_of, executes_code):
    def scoring(example):
        if example in (5, 6):
            raise RunFailed(f"example {example}")

    meter = meter_of(Squares(executes_code, scoring))
    with pytest.raises(RunFailed, match="example 5"):
        under_none(meter, range(12))
    assert sorted(int(key) for _, key in meter.store.load(meter.question)) == [0, 1, 2, 3]
    meter.task.scoring = lambda _: None
    assert [row.outcome for row in under_none(meter, range(12))] == [n**2 for n in range(12)]
