"""Neurons cut: every mode against the same done by hand, through both engines."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import RequestEncoder
from caploc.models.proof import columns_zeroed
from caploc.neurons.engine import Cutter, NeuronEngine
from caploc.neurons.study import NeuronBench
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


@pytest.fixture(scope="module")
def reference(demo):
    wording = RequestEncoder(demo.model, demo.tokenizer)
    texts = [("3+4=", "7"), ("11+25=", "36"), ("the dog", " barks at")]
    return [wording.spans(LogLikelihood(*text))[0] for text in texts]


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
    found = {answer.key: answer for batch in engine.answer(asks(masks)) for answer in batch}
    assert len(found) == len(masks) * len(REQUESTS)
    return [found[ask.key].response for ask in asks(masks)]


def alike(found, expected):
    """Equal texts, and log-probabilities to rounding."""
    for one, other in zip(found, expected, strict=True):
        if hasattr(other, "text"):
            assert one == other
        else:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.greedy == other.greedy
    return True


def cutting(engine, neurons, mode="zero", reference=()):
    return NeuronEngine(engine, Cutter.of(neurons, mode, reference))


def intact(engine):
    return responses(engine, [np.zeros(engine.grid.size, dtype=bool)])


@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_zero_is_the_model_with_those_neurons_weights_zeroed(engines, neurons, kind):
    masks = [some(neurons, share, seed) for seed, share in enumerate((0.03, 0.3))]
    before = intact(engines[kind])
    found = responses(cutting(engines[kind], neurons), masks)
    for number, mask in enumerate(masks):
        with columns_zeroed(neurons.projections, neurons.grid, torch.from_numpy(mask)):
            truth = intact(engines["plain"])
        mine = found[number * len(REQUESTS) : (number + 1) * len(REQUESTS)]
        assert alike(mine, truth)
        assert mine != before
    # what the engine remembers of cut models, and of the intact one, changes neither
    assert alike(intact(engines[kind]), before)
    assert alike(responses(cutting(engines[kind], neurons), masks), found)


def test_log_probabilities_are_those_of_a_plain_forward_pass(engines, neurons, demo):
    mask, request = some(neurons, 0.1), REQUESTS[-1]
    (span,) = engines["packed"].encoder.spans(request)
    with (
        torch.inference_mode(),
        columns_zeroed(neurons.projections, neurons.grid, torch.from_numpy(mask)),
    ):
        logprobs = demo.model(torch.tensor([span.inputs])).logits[0].log_softmax(-1)
    count = len(span.continuation)
    expected = sum(logprobs[place - count, gold] for place, gold in enumerate(span.continuation))
    asked = [Ask((0, 0), request, mask)]
    ((answer,),) = cutting(engines["packed"], neurons).answer(asked)
    assert answer.response.logprob == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_cutting_nothing_changes_nothing(engines, neurons, reference, mode):
    engine = cutting(engines["packed"], neurons, mode, reference)
    assert alike(responses(engine, [some(neurons, 0)]), intact(engines["packed"]))


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
def test_the_mean_is_over_all_positions_of_the_reference(engines, neurons, reference, kind):
    mask = some(neurons, 0.2)
    mean = torch.cat(handed_on(neurons, reference)).mean(0)
    with Instead(neurons, mask, mean):
        truth = intact(engines["plain"])
    found = responses(cutting(engines[kind], neurons, "mean", reference), [mask])
    assert alike(found, truth)
    assert found != responses(cutting(engines[kind], neurons), [mask])


def test_nothing_is_left_on_the_model_by_an_answer_that_is_not_finished(engines, neurons, demo):
    def hooks():
        return [len(module._forward_pre_hooks) for module in demo.model.modules()]

    engine, before = cutting(engines["packed"], neurons), hooks()
    answering = engine.answer(asks([some(neurons, 0.1)]))
    next(answering)
    assert hooks() != before
    answering.close()
    assert hooks() == before


def test_other_ways_of_cutting_never_share_rows(engines, neurons, reference, tmp_path):
    task = load_task("demo/addition")
    with Store(tmp_path / "rows.sqlite") as store:
        bench = NeuronBench.of(engines["packed"], store, tmp_path)
        shorter = [replace(reference[0], inputs=reference[0].inputs[:-1]), *reference[1:]]
        ways = [("zero", ()), ("mean", reference), ("mean", shorter)]
        meters = [bench.meter(task, *way) for way in ways]
        assert len({meter.question for meter in meters}) == len(ways)
        assert bench.meter(task, "mean", reference) is meters[1]
        assert bench.meter(task) is meters[0]


def test_reference_activations_are_recorded_once(engines, reference, tmp_path, monkeypatch):
    calls = []
    real = Cutter.of.__func__
    monkeypatch.setattr(
        Cutter, "of", classmethod(lambda cls, *told: calls.append(told) or real(cls, *told))
    )
    with Store(tmp_path / "rows.sqlite") as store:
        bench = NeuronBench.of(engines["packed"], store, tmp_path)
        for _ in range(2):
            for name in ("addition", "sorting"):
                bench.meter(load_task(f"demo/{name}"), "mean", reference)
    assert len(calls) == 1
