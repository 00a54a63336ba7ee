"""The public `knockout`: what it takes, what it refuses, and what nesting means."""

import gc
import sys

import numpy as np
import pytest
import torch

from caploc.components import Head
from caploc.errors import BadOption, ModelBusy, ModelRefused, UnknownName
from caploc.models.knockout import knockout
from caploc.models.projections import find_projections
from worlds.tiny import GROUPED, MAMBA, build, random_tokens, tiny, zeroed

MODULE = sys.modules[knockout.__module__]  # the package's attribute of that name is the function
TOKENS = random_tokens(2, 6)


@torch.no_grad()
def logits(model, tokens=TOKENS):
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits


def expected(*heads):
    _, grid = find_projections(tiny("llama"))
    return logits(zeroed("llama", torch.float32, torch.from_numpy(grid.mask(heads))))


HEADS = ["L0H1", "L1H3"]
MASK = np.isin(np.arange(8), [1, 7])


@pytest.mark.parametrize(
    "heads",
    [HEADS, [Head(0, 1), Head(1, 3)], MASK, torch.from_numpy(MASK), np.stack([MASK, MASK])],
    ids=["names", "heads", "numpy", "torch", "a row each"],
)
def test_heads_may_be_names_or_masks(heads):
    model = tiny("llama")
    with knockout(model, heads):
        assert torch.allclose(logits(model), expected(*HEADS), atol=1e-5)


@pytest.mark.parametrize("heads", [[], np.zeros(8, dtype=bool)])
def test_no_heads_change_nothing(heads):
    model = tiny("llama")
    intact = logits(model)
    with knockout(model, heads):
        assert torch.equal(logits(model), intact)


@pytest.mark.parametrize(
    ("heads", "error", "words"),
    [
        (["L2H0"], UnknownName, "There is no head L2H0: the model has layers L0 to L1"),
        (["2:0"], BadOption, "'2:0' is not a head"),
        ("L0H1", BadOption, "is one text; give a list"),
        (np.ones(8), BadOption, "A mask must be boolean"),
        (np.ones(9, dtype=bool), BadOption, "one column for each of the 8 heads"),
    ],
)
def test_heads_that_the_model_does_not_have_are_refused(heads, error, words):
    with pytest.raises(error, match=words), knockout(tiny("llama"), heads):
        pass


def test_a_model_is_proved_once_and_forgotten_with_the_model(monkeypatch):
    proofs = []
    monkeypatch.setattr(MODULE, "prove_heads", lambda *parts: proofs.append(parts[0].__class__))
    model = build("llama", GROUPED)
    for _ in range(2):
        with knockout(model, HEADS):
            pass
    assert len(proofs) == 1
    before = len(MODULE._proved)
    del model
    gc.collect()
    assert len(MODULE._proved) == before - 1


def test_a_model_without_heads_is_refused():
    model = build("mamba", MAMBA)
    with pytest.raises(ModelRefused), knockout(model, []):
        pass


def test_what_is_no_model_is_refused():
    compiled = torch.compile(tiny("llama"), backend="eager")
    with pytest.raises(BadOption, match="not compiled or wrapped"), knockout(compiled, HEADS):
        pass


def test_nested_knockouts_both_apply():
    model = tiny("llama")
    with knockout(model, ["L0H1"]):
        with knockout(model, ["L1H3", "L0H2"]):
            got = logits(model)
        outer = logits(model)
    assert torch.allclose(got, expected("L0H1", "L1H3", "L0H2"), atol=1e-5)
    assert torch.allclose(outer, expected("L0H1"), atol=1e-5)


def test_another_thread_is_refused_whatever_it_does(in_another_thread):
    model = tiny("llama")

    def knock_out_here():
        with knockout(model, ["L1H0"]):
            return logits(model)

    with knockout(model, ["L0H1"]):
        for call in (knock_out_here, lambda: logits(model)):
            with pytest.raises(ModelBusy, match="Another thread has knocked out heads"):
                in_another_thread(call)
        assert torch.allclose(logits(model), expected("L0H1"), atol=1e-5)
    assert torch.allclose(in_another_thread(knock_out_here), expected("L1H0"), atol=1e-5)
