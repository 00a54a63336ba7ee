"""Neurons of quantized weights: proved, scored as the weights that they stand for, found again.

Needs the extra `quantized`; `make test-quantized`.
"""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from caploc.engine.encoding import RequestEncoder
from caploc.engine.neurons import Batch
from caploc.errors import BadOption, ModelRefused
from caploc.models.loading import load_model
from caploc.models.neurons import as_neurons, find_sites, prove
from caploc.neurons.attribution import INTEGRATED, Attribution
from caploc.neurons.enhancing import Enhancing, enhance_located
from caploc.neurons.locating import locate
from caploc.neurons.study import NeuronStudy
from caploc.stats.threshold import Rule
from caploc.tasks.demo import data
from caploc.tasks.task import LogLikelihood
from caploc.workbench import ModelOptions

pytestmark = [
    pytest.mark.quantized,
    # what the packages' own code does on import, or in a forward pass
    pytest.mark.filterwarnings("ignore"),
]
SCHEMES = ["8bit", "int8"]  # 4bit has no gradients on a CPU
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@cache
def quantized(scheme):
    """The demo model's neurons; taking them proves them."""
    return as_neurons(load_model("demo", device="cpu", quantize=scheme), whole=False)


@cache
def unpacked(scheme):
    """A plain model whose weights are those that the quantized modules show."""
    plain = load_model("demo", device="cpu")
    with torch.no_grad():
        for name, module in plain.model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                other = quantized(scheme).model.get_submodule(name)
                module.weight.copy_(other(torch.eye(module.in_features)).T)
    return as_neurons(plain)


@cache
def batch():
    demo = load_model("demo", device="cpu")
    wording = RequestEncoder(demo.model, demo.tokenizer)
    drawn = data.draw_distinct(data.addition, "train", 6)
    spans = [wording.spans(LogLikelihood(each.prompt, each.answer))[0] for each in drawn]
    return Batch.of(spans, torch.device("cpu"))


@each_scheme
def test_the_proof_passes_for_other_masks_too(scheme):
    neurons = quantized(scheme)
    for seed in (1, 2):
        prove(neurons.model, neurons.projections, neurons.grid, seed=seed)


@each_scheme
@pytest.mark.parametrize("method", ["gradient", *INTEGRATED, "activation"])
def test_scores_are_those_of_the_weights_that_are_stood_for(scheme, method):
    asked = Attribution(method, steps=2)
    found, truth = (
        asked.scores(neurons, batch()) for neurons in (quantized(scheme), unpacked(scheme))
    )
    error = float((found - truth).norm() / truth.norm())
    # 8bit rounds what it multiplies as well
    assert error < {"int8": 1e-3, "8bit": 0.3}[scheme]
    best = [set(each.mean(0).topk(20).indices.tolist()) for each in (found, truth)]
    assert len(best[0] & best[1]) >= {"int8": 19, "8bit": 12}[scheme]


def test_a_module_that_is_called_and_not_used_is_refused():
    loaded = load_model("demo", device="cpu", quantize="int8")
    module = find_sites(loaded.model)[0][2]

    class Aside(type(module)):
        def __call__(self, mixed):
            super().__call__(mixed)
            return self.forward(mixed)

    module.__class__ = Aside
    with pytest.raises(ModelRefused, match="all neurons of layer 2 leaves the logits"):
        as_neurons(loaded, whole=False)


def test_a_kernel_without_gradients_is_refused():
    """Its scores would be zero, or those of other layers alone."""
    loaded = load_model("demo", device="cpu", quantize="int8")
    module = find_sites(loaded.model)[0][4]
    inner = module.forward
    module.forward = lambda mixed: inner(mixed.detach())
    with pytest.raises(ModelRefused, match="compute without gradients here"):
        as_neurons(loaded, whole=False)


def test_four_bits_on_a_cpu_are_refused_before_weights_are_read():
    model = ModelOptions("demo", device="cpu", quantize="4bit")
    with pytest.raises(BadOption, match="4bit compute without gradients on a CPU"):
        NeuronStudy(model, ("demo/addition",)).check()


def test_a_study_on_quantized_weights_finds_and_erases_and_is_not_tuned(tmp_path):
    model = ModelOptions("demo", device="cpu", quantize="int8")
    study = NeuronStudy(
        model, ("demo/addition",), rule=Rule(share=0.01), examples=10, subsets=2, judged=4
    )
    locate(study, tmp_path)
    plain = replace(study, model=replace(model, quantize=None))
    locate(plain, tmp_path / "plain")
    chosen = []
    for folder in (tmp_path, tmp_path / "plain"):
        chosen.append(np.array([n["neuron"] for n in _neurons(folder)]))
    assert len(np.intersect1d(*chosen)) >= 0.8 * len(chosen[0])
    with pytest.raises(BadOption, match="Tuning changes the weights of demo, which are quantized"):
        enhance_located(tmp_path, Enhancing())


def _neurons(folder):
    (task,) = json.loads((folder / "neurons.json").read_text())["tasks"]
    return task["neurons"]
