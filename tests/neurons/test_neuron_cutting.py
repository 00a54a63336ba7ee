"""Neurons cut: every mode against the same done by hand, through both engines."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import RequestEncoder, Span
from caploc.errors import BadOption
from caploc.models.proof import columns_zeroed, reads_first
from caploc.neurons.engine import Cutter, ErasureMode, NeuronEngine
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


def cutting(engine, neurons, mode="zero", reference=(), seed=0):
    return NeuronEngine(engine, Cutter.of(neurons, ErasureMode.parse(mode), reference, seed))


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


@pytest.mark.parametrize("mode", ["zero", "mean", "resample", "scale=0.5"])
def test_cutting_nothing_changes_nothing(engines, neurons, reference, mode):
    engine = cutting(engines["packed"], neurons, mode, reference)
    assert alike(responses(engine, [some(neurons, 0)]), intact(engines["packed"]))


def test_a_scale_of_one_changes_nothing_and_of_zero_is_zero(engines, neurons):
    masks = [some(neurons, 0.2)]
    one = responses(cutting(engines["packed"], neurons, "scale=1"), masks)
    assert alike(one, intact(engines["packed"]))
    none = responses(cutting(engines["packed"], neurons, "scale=0"), masks)
    assert alike(none, responses(cutting(engines["packed"], neurons), masks))


def test_a_scale_multiplies_the_weights_that_read_the_neurons(engines, neurons):
    mask = some(neurons, 0.2)
    before = [site.weight.clone() for site in neurons.projections]
    try:
        for site, columns in zip(neurons.projections, neurons.grid.layer_slices, strict=True):
            reads_first(site)[torch.from_numpy(mask[columns])] *= 1.7
        truth = intact(engines["plain"])
    finally:
        for site, weight in zip(neurons.projections, before, strict=True):
            site.weight.copy_(weight)
    found = responses(cutting(engines["packed"], neurons, "scale=1.7"), [mask])
    assert alike(found, truth) and found != intact(engines["packed"])


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


def values(neurons, mask, reference, seed):
    """What the cut neurons hand on under `resample`, seen by a hook behind the cut."""
    cutter = Cutter.of(neurons, ErasureMode("resample"), reference, seed)
    with cutter.cut(mask):
        return handed_on(neurons, [Span((5, 6, 7), (8,))])[0]


def test_a_resampled_value_is_one_that_the_neuron_had_in_the_reference(neurons, reference):
    mask = some(neurons, 0.2)
    seen = torch.cat(handed_on(neurons, reference))
    first = values(neurons, mask, reference, 0)
    assert torch.equal(first, values(neurons, mask, reference, 0))
    cut = torch.from_numpy(mask)
    assert torch.equal(first[:1, cut].expand(3, -1), first[:, cut])  # one draw for all positions
    assert (seen[:, cut] == first[0, cut]).any(0).all()
    other = values(neurons, mask, reference, 1)
    assert (other[0, cut] != first[0, cut]).float().mean() > 0.5
    drawn = torch.stack([values(neurons, mask, reference, seed)[0, cut] for seed in range(30)])
    rows = rounded_alike(seen[:, None, cut], drawn).float().argmax(0)
    # every position of every text is drawn somewhere; all texts begin alike
    every = {int(rounded_alike(seen, row).all(1).float().argmax()) for row in seen}
    assert set(rows.flatten().tolist()) == every and len(every) == len(seen) - 2
    # the layers draw each for themselves
    layers = drawn_columns(neurons, rows, cut)
    assert not torch.equal(layers[0], layers[1])


def rounded_alike(ones, others):
    """Equal but for rounding, which depends on how long a text is."""
    return torch.isclose(ones, others, rtol=1e-5, atol=1e-5)


def drawn_columns(neurons, rows, cut):
    """Which rows the first few cut neurons of the first two layers drew."""
    numbers = cut.nonzero()[:, 0]
    slices = neurons.grid.layer_slices
    return [
        rows[:, (numbers >= columns.start) & (numbers < columns.stop)][:, :20]
        for columns in slices[:2]
    ]


def test_nothing_is_left_on_the_model_by_an_answer_that_is_not_finished(engines, neurons, demo):
    def hooks():
        return [len(module._forward_pre_hooks) for module in demo.model.modules()]

    engine, before = cutting(engines["packed"], neurons), hooks()
    answering = engine.answer(asks([some(neurons, 0.1)]))
    next(answering)
    assert hooks() != before
    answering.close()
    assert hooks() == before


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("zero", ErasureMode(), "zero"),
        ("mean", ErasureMode("mean"), "mean"),
        ("resample", ErasureMode("resample"), "resample"),
        ("scale=0.5", ErasureMode("scale", 0.5), "scale=0.5"),
        ("scale=-2", ErasureMode("scale", -2.0), "scale=-2"),
    ],
)
def test_a_mode_is_read(text, mode, told):
    assert ErasureMode.parse(text) == mode
    assert str(mode) == told


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_two_factors_are_written_alike(factor):
    assert ErasureMode.parse(str(ErasureMode("scale", factor))) == ErasureMode("scale", factor)


@pytest.mark.parametrize(
    "text", ["", "none", "zero=1", "scale", "scale=", "scale=half", "mean=0", "scale=nan",
             "scale=inf"],
)  # fmt: skip
def test_a_mode_that_is_none_is_refused(text):
    with pytest.raises(BadOption) as refused:
        ErasureMode.parse(text)
    assert str(refused.value) == (
        f"A neuron is cut by zero, mean, resample or scale=FACTOR; got {text!r}."
    )


def test_other_ways_of_cutting_never_share_rows(engines, neurons, reference, tmp_path):
    task = load_task("demo/addition")
    with Store(tmp_path / "rows.sqlite") as store:
        bench = NeuronBench.of(engines["packed"], store, tmp_path)
        shorter = [replace(reference[0], inputs=reference[0].inputs[:-1]), *reference[1:]]
        ways = [
            (None, (), 0),
            (ErasureMode("scale", 0.5), (), 0),
            (ErasureMode("scale", 0.5000001), (), 0),
            (ErasureMode("mean"), reference, 0),
            (ErasureMode("mean"), shorter, 0),
            (ErasureMode("resample"), reference, 0),
            (ErasureMode("resample"), reference, 1),
            (ErasureMode("resample"), shorter, 1),
        ]
        meters = [bench.meter(task, *way) for way in ways]
        assert len({meter.question for meter in meters}) == len(ways)
        assert bench.meter(task, ErasureMode("mean"), reference) is meters[3]
        assert bench.meter(task) is bench.meter(task, ErasureMode()) is meters[0]


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
                bench.meter(load_task(f"demo/{name}"), ErasureMode("mean"), reference)
    assert len(calls) == 1
