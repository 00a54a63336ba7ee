"""Heads exported by an amount: the checkpoint and the file of heads carry it."""

import pytest
import torch
from tiny import random_tokens
from transformers import AutoModelForCausalLM

import caploc
from caploc.export import Export
from caploc.heads import Head
from caploc.models.loading import load_model
from caploc.workbench import ModelOptions

NAMES = ["L0H1:0.5", "L0H0:0.3", "L1H1"]


def export(folder, target, kind):
    heads = tuple(Head.parse(name) for name in NAMES)
    return Export(ModelOptions(str(folder)), heads, kind, target).write()


@torch.no_grad()
def logits(model):
    return model(input_ids=random_tokens(3, 11)).logits


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_checkpoint_has_the_logits_of_the_model_with_heads_in_part(name, written, tmp_path):
    done = export(written(name), tmp_path / "cut", "checkpoint")
    loaded = load_model(str(tmp_path / "base"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", dtype=torch.float32).eval()
    intact = logits(loaded.model)
    with caploc.knockout(loaded, caploc.read_heads(tmp_path / "cut" / "heads.json")):
        wanted = logits(loaded.model)
    with caploc.knockout(loaded, [name.partition(":")[0] for name in NAMES]):
        whole = logits(loaded.model)
    torch.testing.assert_close(logits(plain), wanted, atol=1e-5, rtol=1e-5)
    assert min((wanted - other).abs().max() for other in (intact, whole)) > 1e-3
    assert [str(head) for head in done.heads] == NAMES
    assert "three quarters are left" in (tmp_path / "cut" / "README.md").read_text()


def test_numbers_of_half_their_width_are_scaled_too(written, tmp_path):
    done = export(written("llama", dtype=torch.bfloat16), tmp_path / "cut", "checkpoint")
    agreement = done.agreement
    assert agreement.dtype == "bfloat16" and agreement.error < 0.1
