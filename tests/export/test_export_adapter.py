"""The adapter is the knockout: in its numbers exactly, at work to the error that it states."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny import FAMILIES, random_tokens
from transformers import AutoModelForCausalLM

import caploc
from caploc.errors import BadOption
from caploc.export import Export
from caploc.export import weights as adapters
from caploc.heads import Head
from caploc.models.loading import load_model
from caploc.workbench import ModelOptions

peft = pytest.importorskip("peft")
# PEFT asks transformers by an old name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
QUICK = {"gpt2"}
each_family = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in FAMILIES]
)


def cut_heads(name):
    return [Head(layer, heads - 1) for layer, heads in enumerate(FAMILIES[name].heads) if heads]


def export(folder, target, heads, **options):
    return Export(ModelOptions(str(folder), **options), tuple(heads), "lora", target).write()


@torch.no_grad()
def logits(model, tokens):
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits


@each_family
def test_it_is_the_knockout(name, written, tmp_path):
    base, heads, tokens = written(name), cut_heads(name), random_tokens(3, 11)
    done = export(base, tmp_path / "cut", heads)
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    intact = logits(model, tokens)
    loaded = load_model(str(base))
    with caploc.knockout(loaded, heads):
        wanted = logits(loaded.model, tokens)
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "cut")
    effect = (wanted - intact).square().mean().sqrt()
    assert (logits(adapted, tokens) - wanted).square().mean().sqrt() < 1e-4 * effect
    merged = adapted.merge_and_unload()
    assert torch.equal(logits(merged, tokens), wanted)
    stated = {(each.way, each.dtype): each for each in done.agreements}
    assert stated["adapter merged", "float32"].exact
    assert 0 < stated["adapter on the base model", "bfloat16"].error < 0.5


def test_its_rank_is_the_columns_cut_in_each_layer(written, tmp_path):
    export(written("llama"), tmp_path / "cut", [Head(0, 0), Head(1, 1), Head(1, 3)])
    tensors = load_file(tmp_path / "cut" / "adapter_model.safetensors")
    shapes = {key.removeprefix("base_model.model.model.layers."): tuple(value.shape)
              for key, value in tensors.items()}  # fmt: skip
    assert shapes == {
        "0.self_attn.o_proj.lora_A.weight": (8, 32),
        "0.self_attn.o_proj.lora_B.weight": (32, 8),
        "1.self_attn.o_proj.lora_A.weight": (16, 32),
        "1.self_attn.o_proj.lora_B.weight": (32, 16),
    }
    config = json.loads((tmp_path / "cut" / "adapter_config.json").read_text())
    assert config["rank_pattern"]["model.layers.1.self_attn.o_proj"] == 16
    card = (tmp_path / "cut" / "README.md").read_text()
    assert "largest rank is 16" in card and "6,144 bytes, 75 % of the projections" in card


@pytest.mark.slow
def test_made_from_bfloat16_it_merges_exactly_there(written, tmp_path):
    done = export(written("llama"), tmp_path / "cut", [Head(0, 2)], dtype="bfloat16")
    stated = {(each.way, each.dtype): each for each in done.agreements}
    assert stated["adapter merged", "bfloat16"].exact
    assert not stated["adapter merged", "float32"].exact  # it cancels the rounded weights


def test_one_larger_than_what_it_changes_is_refused(written, tmp_path):
    with pytest.raises(BadOption, match="would be larger than the projections it changes"):
        export(written("llama"), tmp_path / "cut", [Head(0, 0), Head(0, 1), Head(0, 2)])
    assert not (tmp_path / "cut").exists()


def test_without_peft_it_is_refused_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(adapters, "peft", None)
    with pytest.raises(BadOption, match=r"pip install 'caploc\[peft\]'"):
        export("no such model", tmp_path / "cut", [Head(0, 0)])
