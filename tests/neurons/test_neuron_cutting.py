"""Neurons cut, against the same done by hand, through both engines."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.measurement import Meters
from caploc.models.proof import columns_zeroed
from caploc.neurons.engine import Erasure, NeuronEngine
from caploc.store import Store
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generate, LogLikelihood, options_json

SHORT = options_json({"until": ["\n"], "max_gen_toks": 12, "do_sample": False})
TEXTS = ["12+34=", "sort 3 1 2:", "the cat", "7+8="]
REQUESTS = [
    *(Generate(text, SHORT) for text in TEXTS),
    *(LogLikelihood(text, answer) for text in TEXTS for answer in ("46", "1 2 3")),
]


@pytest.fixture(scope="module")
def engines(demo):
    """One that packs rows, and one that shares nothing."""
    packed, plain = BatchEngine(demo), BatchEngine(demo, backend="plain")
    assert packed.packed is not None
    return {"packed": packed, "plain": plain}


def some(neurons, share, seed=0):
    """A random share of the neurons."""
    return np.random.default_rng(seed).random(neurons.grid.size) < share


def asks(masks):
    return [
        Ask((number, part), request, mask)
        for number, mask in enumerate(masks)
        for part, request in enumerate(REQUESTS)
    ]


def responses(engine, masks):
    asked = asks(masks)
    found = {answer.key: answer for batch in engine.answer(asked) for answer in batch}
    assert len(found) == len(masks) * len(REQUESTS)
    return [found[ask.key].response for ask in asked]


def alike(found, expected):
    """Equal texts, and log-probabilities to rounding."""
    for one, other in zip(found, expected, strict=True):
        if hasattr(other, "text"):
            assert one == other
        else:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.greedy == other.greedy
    return True


def intact(engine):
    return responses(engine, [np.zeros(engine.grid.size, dtype=bool)])


@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_zero_is_the_model_with_those_neurons_weights_zeroed(engines, neurons, kind):
    masks = [some(neurons, share, seed) for seed, share in enumerate((0.03, 0.3))]
    before = intact(engines[kind])
    found = responses(NeuronEngine(engines[kind], neurons), masks)
    for number, mask in enumerate(masks):
        with columns_zeroed(neurons.projections, neurons.grid, torch.from_numpy(mask)):
            truth = intact(engines["plain"])
        mine = found[number * len(REQUESTS) : (number + 1) * len(REQUESTS)]
        assert alike(mine, truth)
        assert mine != before
    # what the engine remembers of cut models, and of the intact one, changes neither
    assert alike(intact(engines[kind]), before)
    assert alike(responses(NeuronEngine(engines[kind], neurons), masks), found)


def test_cutting_nothing_changes_nothing(engines, neurons):
    engine = NeuronEngine(engines["packed"], neurons)
    assert alike(responses(engine, [some(neurons, 0)]), intact(engines["packed"]))


def test_nothing_is_left_on_the_model_by_an_answer_that_is_not_finished(engines, neurons, demo):
    def hooks():
        return [len(module._forward_pre_hooks) for module in demo.model.modules()]

    engine, before = NeuronEngine(engines["packed"], neurons), hooks()
    answering = engine.answer(asks([some(neurons, 0.1)]))
    next(answering)
    assert hooks() != before
    answering.close()
    assert hooks() == before


def test_rows_of_neurons_and_of_heads_are_kept_apart(engines, neurons, tmp_path):
    task, engine = load_task("demo/addition"), NeuronEngine(engines["packed"], neurons)
    with Store(tmp_path / "rows.sqlite") as store:
        meters = Meters(engine, store, intervention=Erasure())
        assert meters.meter(task) is meters.meter(task)
        assert [question.mode for question in meters.known] == ["neurons zero"]
