"""What the scan reads: the model's own right answer with its stop, and whether it still stands."""

import math

import numpy as np
import pytest

from caploc.declaration import ModelOptions
from caploc.measurement import Meters, told_kept
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.session import add_signal
from caploc.store import Store
from caploc.tasks.catalog import load_task
from caploc.tasks.signal import Signal
from caploc.tasks.task import Generate, Generated, LogLikelihood, Scored, responses_from_json
from worlds import DEMO

EXAMPLES = range(12)
HEADS = range(0, 96, 7)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("signal") / "rows.sqlite") as store:
        yield Meters(ModelOptions(DEMO, device="cpu").engine(), store)


def opened(bench, name, options=None):
    """Meters of a task and its signal, the intact rows, and whether the signal is linear."""
    probes = {name: bench.meter(load_task(name, options or TaskOptions()))}
    intact = probes[name].under(np.zeros(96, dtype=bool), EXAMPLES, Silent(), "intact")
    signal = add_signal(bench, probes, name, intact)
    return [*probes.values()], intact, signal == name


def text_of(row):
    said = responses_from_json(row.responses)[0]
    return said.text, said.end


def under(meter, head, examples):
    mask = np.zeros(96, dtype=bool)
    mask[head] = True
    return meter.under(mask, examples, Silent(), "alone")


def test_a_written_answer_is_kept_where_decoding_writes_the_same(bench):
    """Greedy flags of one pass over the intact answer, its stop included, against generation."""
    (task, signal), intact, linear = opened(bench, "demo/addition")
    assert not linear
    checked = set()
    for head in HEADS:
        told = under(signal, head, EXAMPLES)
        written = under(task, head, EXAMPLES)
        for before, kept, after in zip(intact, told, written, strict=True):
            same = text_of(after) == text_of(before)
            checked.add(same)
            assert bool(told_kept(kept.item)) == same
    assert checked == {True, False}


def test_the_intact_model_keeps_all_its_answers(bench):
    for name in ("demo/addition", "demo/capitals"):
        (_, signal), intact, _ = opened(bench, name)
        nothing = np.zeros(96, dtype=bool)
        right = [row.number for row in intact if row.outcome == 1]
        rows = signal.under(nothing, right, Silent(), "intact signal")
        assert right and all(told_kept(row.item) == 1 for row in rows)
        assert all(row.outcome <= 0 for row in rows)


def test_a_choice_is_kept_where_it_is_still_taken(bench):
    (task, signal), intact, linear = opened(bench, "demo/capitals")
    assert not linear
    right = [row.number for row in intact if row.outcome == 1]
    for head in HEADS:
        told, taken = under(signal, head, right), under(task, head, right)
        assert [told_kept(row.item) for row in told] == [row.outcome for row in taken]
        assert all(0 < math.exp(row.outcome) < 1 for row in told)


@pytest.mark.parametrize(
    ("name", "options"),
    [("demo/prose", TaskOptions()), ("demo/addition", TaskOptions(outcome="logprob"))],
)
def test_any_other_outcome_is_its_own_signal(bench, name, options):
    meters, _, linear = opened(bench, name, options)
    assert linear and len(meters) == 1


def test_what_is_read_is_the_models_own_words_and_the_stop_that_ended_them():
    task = load_task("demo/addition")
    (asked,) = task.requests(0)
    assert isinstance(asked, Generate)
    signal = Signal(task, {0: (Generated(" 85", end="\n"),), 1: (Generated("no stop"),)})
    assert signal.requests(0) == (LogLikelihood(asked.prompt, " 85\n"),)
    assert signal.requests(1)[0].continuation == "no stop"
    spelt = Signal(task, {0: (Generated(" 85", said=(7, 9), end="\n"),)})
    assert spelt.requests(0) == (LogLikelihood(asked.prompt, " 85\n", (7, 9)),)
    assert spelt.key(0) != signal.key(0)
    assert signal.key(0) != Signal(task, {0: (Generated(" 86", end="\n"),)}).key(0)
    assert signal.item(0, [Scored(-0.5, True, 3)]) == [-0.5, True]


def test_of_choices_it_is_the_chance_against_the_likeliest_other_one():
    task = load_task("demo/capitals")
    signal = Signal(task, {0: ()})
    said = [Scored(nats, False, 3) for nats in (-5.0, -2.0, -1.5, -9.0)]
    outcome, kept = signal.item(0, said)
    assert kept is True and math.exp(outcome) == pytest.approx(1 / (1 + math.exp(-0.5)))
    said[2] = Scored(-900.0, False, 3)
    assert signal.item(0, said) == [-898.0, False]


def test_examples_left_out_leave_their_answers_out():
    task = load_task("demo/addition")
    answers = {n: (Generated(str(n)),) for n in range(4)}
    left = Signal(task, answers).without([0, 2])
    assert left.size == task.size - 2 and left.answers[0][0].text == "1"
    assert left.answers[1][0].text == "3"
