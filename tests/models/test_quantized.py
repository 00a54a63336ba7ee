"""Weights quantized by bitsandbytes, on the CPU: proved, cut, and answered as one row at a time."""

import importlib.util
from functools import cache

import numpy as np
import pytest
import torch
from test_loading import edit_config

from caploc.declaration import ModelOptions
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.models import placement
from caploc.models.loading import choose_weights, load_model
from caploc.models.placement import dtype_label, is_whole, quantization
from caploc.models.proof import is_writable, logits_of, prove_heads, random_tokens
from caploc.neurons.model import as_neurons
from caploc.neurons.options import NeuronStudy
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import responses, save, under
from worlds.tiny import GROUPED, build

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
OPTIONS = options_json({"until": ["w07"], "max_gen_toks": 6})
really = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)
# what bitsandbytes does on import, or in a forward pass
quietly = pytest.mark.filterwarnings("ignore")
each_scheme = pytest.mark.parametrize("scheme", ["8bit", "4bit"])
# shapes that its kernels take
SHAPE = {**GROUPED, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = build("llama", {**SHAPE, "intermediate_size": 128})
    return str(save(tmp_path_factory.mktemp("tiny"), model))


@pytest.fixture(scope="module")
def quantized(folder):
    """Load a model by a scheme, which proves it."""
    return cache(lambda scheme: load_model(folder, device="cpu", quantize=scheme))


def test_what_cannot_be_quantized_is_refused_in_a_sentence(folder, tmp_path, monkeypatch):
    with pytest.raises(UnknownName, match="There is no quantization '3bit'.*4bit, 8bit"):
        choose_weights(folder, device="cpu", quantize="3bit").check()
    again = save(tmp_path / "model", build("llama", GROUPED))
    edit_config(again, quantization_config=GPTQ)
    with pytest.raises(BadOption, match=r"quantized already \(gptq\); leave out --quantize 8bit"):
        choose_weights(str(again), device="cpu", quantize="8bit").check()
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"needs bitsandbytes, .*'caploc\[quantized\]'"):
        choose_weights(folder, device="cpu", quantize="4bit").check()


def test_four_bits_on_a_cpu_score_no_neurons(folder):
    model = ModelOptions(folder, device="cpu", quantize="4bit")
    with pytest.raises(BadOption, match="4bit compute without gradients on a CPU"):
        NeuronStudy(model, ("words/past",)).check()


def test_quantized_models_are_told_apart_from_full_ones():
    assert quantization("4bit", torch.bfloat16).bnb_4bit_compute_dtype is torch.bfloat16
    model = build("llama", GROUPED).to(torch.bfloat16)
    assert dtype_label(model, None) == "bfloat16" and dtype_label(model, "8bit") == "8bit/bfloat16"
    model.config.quantization_config = GPTQ
    assert dtype_label(model, None) == "gptq/bfloat16"


@really
@quietly
@each_scheme
def test_the_proof_passes_and_an_empty_mask_changes_nothing(scheme, quantized, folder):
    loaded = quantized(scheme)
    assert loaded.dtype == f"{scheme}/float32" and not is_whole(loaded.model)
    assert loaded.fingerprint == load_model(folder, device="cpu").fingerprint
    assert not any(map(is_writable, loaded.projections))
    prove_heads(loaded.model, loaded.projections, loaded.grid, seed=1)
    tokens = random_tokens(loaded.model, 7)
    with torch.inference_mode():
        intact = logits_of(loaded.model, tokens)
        with under(loaded, np.zeros(loaded.grid.size, dtype=bool)):
            assert torch.equal(logits_of(loaded.model, tokens), intact)


@really
@quietly
@each_scheme
def test_rows_of_many_masks_answer_as_one_at_a_time(scheme, quantized):
    loaded = quantized(scheme)
    masks = np.random.default_rng(0).random((6, loaded.grid.size)) < 0.2
    text = "w05 w06 w07 w08"
    requests = [Generate(text, OPTIONS), LogLikelihood(text, " w19"), LogLikelihood(text, " w20")]
    asks = [
        Ask((row * 3 + part, 0), request, mask)
        for row, mask in enumerate(masks)
        for part, request in enumerate(requests)
    ]
    engine = BatchEngine(loaded)
    assert engine.packed is not None
    together = responses(engine, asks)
    single = BatchEngine(loaded, batch_size=1, backend="plain")
    for ask in asks:
        ((alone,),) = single.answer([ask])
        found = together[ask.key]
        if isinstance(ask.request, Generate) and scheme != "8bit":
            assert found.text == alone.response.text
        elif not isinstance(ask.request, Generate):
            # in 8 bits rows of a batch move each other's rounding
            near = 0.5 if scheme == "8bit" else 0.02
            assert found.logprob == pytest.approx(alone.response.logprob, abs=near)


@really
@quietly
def test_neurons_of_quantized_weights_are_proved(quantized):
    assert as_neurons(quantized("8bit"), whole=False).grid.size == 2 * 128
    with pytest.raises(ModelRefused, match="quantized or spread over devices"):
        as_neurons(quantized("8bit"))
