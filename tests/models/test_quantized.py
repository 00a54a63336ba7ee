"""Weights really quantized, on the CPU: proved, cut, and answered as one row at a time.

Needs the extra `quantized`; `make test-quantized`.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from test_loading import save
from tiny import GROUPED, build

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from alone import under

from caploc.engine import Ask, BatchEngine
from caploc.errors import ModelRefused
from caploc.models import proof
from caploc.models.loading import load_model
from caploc.models.placement import is_whole
from caploc.models.proof import (
    is_writable,
    logits_of,
    product_error,
    prove_heads,
    random_tokens,
)
from caploc.tasks.task import Generate, LogLikelihood, options_json

pytestmark = [
    pytest.mark.quantized,
    # what the packages' own code does on import, or in a forward pass
    pytest.mark.filterwarnings("ignore"),
]
SCHEMES = ["8bit", "4bit", "int8"]
DTYPES = ["float32", "bfloat16"]
OPTIONS = options_json({"until": ["\n"], "max_gen_toks": 8})
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@cache
def quantized(scheme, dtype="float32"):
    """The demo model; loading it proves it."""
    return load_model("demo", device="cpu", dtype=dtype, quantize=scheme)


@each_scheme
@each_dtype
def test_the_proof_passes_and_the_weights_are_not_plain(scheme, dtype):
    loaded = quantized(scheme, dtype)
    assert loaded.dtype == f"{scheme}/{dtype}"
    assert loaded.fingerprint == load_model("demo", device="cpu").fingerprint
    assert not is_whole(loaded.model)
    assert not any(map(is_writable, [each for each in loaded.projections if each is not None]))
    for seed in range(1, 4):
        prove_heads(loaded.model, loaded.projections, loaded.grid, seed=seed)


@each_scheme
@each_dtype
def test_an_empty_mask_is_bit_identical(scheme, dtype):
    loaded = quantized(scheme, dtype)
    tokens = random_tokens(loaded.model, 7)
    with torch.inference_mode(), under(loaded, np.zeros(loaded.grid.size, dtype=bool)):
        hooked = logits_of(loaded.model, tokens)
    with torch.inference_mode():
        assert torch.equal(hooked, logits_of(loaded.model, tokens))


@each_scheme
def test_a_cut_is_a_cut_of_the_dequantized_columns(scheme):
    """In full precision, with weights made from what the quantized modules hold."""
    loaded = quantized(scheme)
    plain = load_model("demo", device="cpu")
    with torch.no_grad():
        for name, module in plain.model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                other = loaded.model.get_submodule(name)
                module.weight.copy_(other(torch.eye(module.in_features)).T)
    drawn = np.random.default_rng(1).random((6, loaded.grid.size)) < 0.1
    tokens = random_tokens(loaded.model, 3)
    for mask in drawn:
        with torch.inference_mode(), under(loaded, mask):
            found = logits_of(loaded.model, tokens)
        with torch.inference_mode(), under(plain, mask):
            truth = logits_of(plain.model, tokens)
        error = (found - truth).square().mean().sqrt() / truth.std()
        # 8bit rounds what it multiplies as well; 4bit multiplies in a shorter type on a CPU
        assert error < (1e-4 if scheme == "int8" else 0.05)


@each_scheme
def test_rows_of_many_masks_answer_as_one_at_a_time(scheme):
    loaded = quantized(scheme)
    masks = np.random.default_rng(0).random((6, loaded.grid.size)) < 0.05
    requests = [Generate("12+7=", OPTIONS), LogLikelihood("12+7=", "19"), LogLikelihood("a", "b")]
    asks = [
        Ask((row * 3 + part, 0), request, mask)
        for row, mask in enumerate(masks)
        for part, request in enumerate(requests)
    ]
    engine = BatchEngine(loaded)
    assert engine.packed is not None
    together = {a.key: a.response for batch in engine.answer(asks) for a in batch}
    single = BatchEngine(loaded, batch_size=1, backend="plain")
    for ask in asks:
        ((alone,),) = single.answer([ask])
        found = together[ask.key]
        if isinstance(ask.request, Generate) and scheme != "8bit":
            assert found.text == alone.response.text
        elif not isinstance(ask.request, Generate):
            near = 0.2 if scheme == "8bit" else 0.02
            assert found.logprob == pytest.approx(alone.response.logprob, abs=near)


def test_a_module_that_is_called_and_not_used_is_refused(monkeypatch):
    loaded = load_model("demo", device="cpu", quantize="int8")
    module = loaded.projections[2]

    class Aside(type(module)):
        def __call__(self, mixed):
            super().__call__(mixed)
            return self.forward(mixed)

    module.__class__ = Aside
    with pytest.raises(ModelRefused, match="all heads of layer 2 leaves the logits"):
        prove_heads(loaded.model, loaded.projections, loaded.grid)


def test_a_checkpoint_that_was_quantized_before_is_loaded_and_proved(tmp_path):
    model = build("llama", {**GROUPED, "hidden_size": 64, "num_hidden_layers": 2})
    full = save(tmp_path / "full", model)
    first = load_model(str(full), device="cpu", quantize="8bit")
    first.model.save_pretrained(tmp_path / "small")
    first.tokenizer.save_pretrained(tmp_path / "small")
    again = load_model(str(tmp_path / "small"), device="cpu")
    assert again.dtype == "bitsandbytes/float32"
    tokens = random_tokens(again.model, 0)
    with torch.inference_mode():
        assert torch.equal(logits_of(first.model, tokens), logits_of(again.model, tokens))


@each_scheme
def test_the_tolerance_stated_has_room_over_what_is_found(scheme, monkeypatch):
    loaded = quantized(scheme, "bfloat16")
    errors = []

    def watched(*args):
        errors.append(product_error(*args))
        return errors[-1]

    monkeypatch.setattr(proof, "product_error", watched)
    prove_heads(loaded.model, loaded.projections, loaded.grid)
    assert max(errors) < proof.PRODUCT_TOLERANCE / 3
