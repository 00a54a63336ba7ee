"""Neurons cut: every mode against the same done by hand, through both engines."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.measurement import Meters
from caploc.models.proof import columns_zeroed
from caploc.neurons.engine import Erasure, NeuronEngine
from caploc.options import Mode
from caploc.store import Store
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generate, LogLikelihood, options_json

SHORT = options_json({"until": ["\n"], "max_gen_toks": 12, "do_sample": False})
TEXTS = ["12+34=", "sort 3 1 2:", "the cat", "7+8="]
REQUESTS = [
    *(Generate(text, SHORT) for text in TEXTS),
    *(LogLikelihood(text, answer) for text in TEXTS for answer in ("46", "1 2 3")),
]
REFERENCE = [
    LogLikelihood(*text) for text in (("3+4=", "7"), ("11+25=", "36"), ("the dog", " barks at"))
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


def erasure(mode, texts=REFERENCE):
    return Erasure(Mode(mode), examples={"demo/addition": texts})


def asks(masks, mode="zero"):
    task = load_task("demo/addition")
    (source,) = erasure(mode).sources(task).of(0, [None])
    return [
        Ask((number, part), request, mask, source)
        for number, mask in enumerate(masks)
        for part, request in enumerate(REQUESTS)
    ]


def responses(engine, masks, mode="zero"):
    asked = asks(masks, mode)
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


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_cutting_nothing_changes_nothing(engines, neurons, mode):
    engine = NeuronEngine(engines["packed"], neurons)
    assert alike(responses(engine, [some(neurons, 0)], mode), intact(engines["packed"]))


def handed_on(neurons, spans):
    """What every neuron hands on at every position of some texts, text by text."""
    seen = []
    hooks = [
        site.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].clone()))
        for site in neurons.projections
    ]
    with torch.no_grad():
        for span in spans:
            neurons.model(torch.tensor([span.inputs]))
    for hook in hooks:
        hook.remove()
    layers = neurons.grid.layers
    return [torch.cat(seen[first : first + layers], 1) for first in range(0, len(seen), layers)]


class Instead:
    """By plain hooks, other values for some neurons, at every position."""

    def __init__(self, neurons, mask, values):
        self.neurons, self.mask, self.values = neurons, torch.from_numpy(mask), values

    def __enter__(self):
        self.handles = []
        slices = self.neurons.grid.layer_slices
        for site, columns in zip(self.neurons.projections, slices, strict=True):

            def hook(_, args, columns=columns):
                return (torch.where(self.mask[columns], self.values[columns], args[0]),)

            self.handles.append(site.register_forward_pre_hook(hook))

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_the_mean_is_over_all_positions_of_the_reference(engines, neurons, kind):
    mask = some(neurons, 0.2)
    spans = [span for text in REFERENCE for span in engines[kind].encoder.spans(text)]
    mean = torch.cat(handed_on(neurons, spans)).mean(0)
    with Instead(neurons, mask, mean):
        truth = intact(engines["plain"])
    found = responses(NeuronEngine(engines[kind], neurons), [mask], "mean")
    assert alike(found, truth)
    assert found != responses(NeuronEngine(engines[kind], neurons), [mask])


def test_nothing_is_left_on_the_model_by_an_answer_that_is_not_finished(engines, neurons, demo):
    def hooks():
        return [len(module._forward_pre_hooks) for module in demo.model.modules()]

    engine, before = NeuronEngine(engines["packed"], neurons), hooks()
    answering = engine.answer(asks([some(neurons, 0.1)]))
    next(answering)
    assert hooks() != before
    answering.close()
    assert hooks() == before


def test_other_ways_of_cutting_never_share_rows(engines, neurons, tmp_path):
    task = load_task("demo/addition")
    engine = NeuronEngine(engines["packed"], neurons)
    with Store(tmp_path / "rows.sqlite") as store:

        def question(mode, texts=()):
            meters = Meters(engine, store, intervention=erasure(mode, texts))
            assert meters.meter(task) is meters.meter(task)
            return next(iter(meters.known)).mode

        found = [question("zero"), question("mean", REFERENCE), question("mean", REFERENCE[1:])]
    assert found[0] == "neurons zero" and len(set(found)) == 3
    assert all(each.startswith("neurons mean of ") for each in found[1:])
