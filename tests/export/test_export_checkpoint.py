"""The exported checkpoint is the knocked-out model: weights, logits, files."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import caploc
from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.errors import BadOption, ModelRefused
from caploc.export import Export
from caploc.models.loading import load_model
from caploc.models.projections import find_projections
from worlds.alone import save
from worlds.tiny import (
    FAMILIES,
    GROUPED,
    OLD,
    SHAPE,
    build,
    left_padded,
    random_tokens,
    tiny,
    zeroed,
)

QUICK = {"gpt2", "llama"}
WITH_BIAS = {"gpt2": OLD, "gpt_neox": SHAPE, "starcoder2": GROUPED | {"use_bias": True}}
each_family = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in FAMILIES]
)


def cut_heads(name):
    """The last head of each layer that has some, and the first of the last of these."""
    layers = [layer for layer, heads in enumerate(FAMILIES[name].heads) if heads]
    heads = [Head(layer, FAMILIES[name].heads[layer] - 1) for layer in layers]
    return [*heads, Head(layers[-1], 0)]


def export(folder, target, heads, **options):
    wanted = Export(ModelOptions(str(folder), **options), tuple(heads), "checkpoint", target)
    return wanted.write()


@torch.no_grad()
def logits(model, tokens):
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits


@each_family
def test_it_is_the_knocked_out_model(name, written, tmp_path):
    heads = cut_heads(name)
    done = export(written(name), tmp_path / "cut", heads)
    loaded = load_model(str(tmp_path / "base"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "cut", dtype=torch.float32).eval()
    tokens = random_tokens(3, 11)
    with caploc.knockout(loaded, heads):
        wanted = logits(loaded.model, tokens)
    assert torch.equal(logits(plain, tokens), wanted)
    assert done.agreement.exact
    mask = torch.from_numpy(loaded.grid.mask(heads))
    expected = zeroed(name, torch.float32, mask).state_dict()  # by hand, from the family's row
    state = plain.state_dict()
    assert set(state) == set(expected)
    assert all(torch.equal(state[key], expected[key]) for key in state)


def test_it_says_what_the_knocked_out_model_says(written, tmp_path):
    export(written("llama"), tmp_path / "cut", [Head(0, 1)])
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "cut")
    batch = left_padded([5, 9])
    options = {"max_new_tokens": 8, "do_sample": False}
    with caploc.knockout(tiny("llama"), ["L0H1"]):
        wanted = tiny("llama").generate(**batch, **options)
    assert torch.equal(plain.generate(**batch, **options), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_stays(dtype, written, tmp_path):
    done = export(written("llama", dtype=dtype), tmp_path / "cut", [Head(1, 2)])
    tensors = load_file(tmp_path / "cut" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    assert done.agreement.exact and f"torch.{done.agreement.dtype}" == str(dtype)


def test_nothing_but_the_columns_changes(written, tmp_path):
    base = written("gpt2")
    export(base, tmp_path / "cut", [Head(1, 3)])
    old, new = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "cut"))
    name = "transformer.h.1.attn.c_proj.weight"
    assert [key for key in old if not torch.equal(old[key], new[key])] == [name]
    assert torch.equal(old[name][:24], new[name][:24]) and not new[name][24:].any()


@pytest.mark.parametrize("name", WITH_BIAS)
def test_every_bias_is_kept(name, tmp_path):
    """Elsewhere it goes with the heads: ArthurConmy/Automatic-Circuit-Discovery 52."""
    model = build(name, WITH_BIAS[name])
    for projection in find_projections(model)[0]:
        torch.nn.init.normal_(projection.bias)
    base = save(tmp_path / "base", model)
    export(base, tmp_path / "cut", [Head(0, n) for n in range(4)])
    old, new = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "cut"))
    (changed,) = (key for key in old if not torch.equal(old[key], new[key]))
    assert changed.endswith("weight") and not new[changed].any()


@torch.no_grad()
def test_an_output_matrix_that_is_the_embedding_stays_it(tmp_path):
    """Elsewhere one overwrites the other: huggingface/transformers 45127, LLaMA-Factory 10832."""
    model, tokens = build("qwen2", GROUPED | {"tie_word_embeddings": True}), random_tokens(2, 9)
    export(save(tmp_path / "base", model), tmp_path / "cut", [Head(0, 1)])
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "cut").eval()
    with caploc.knockout(model, ["L0H1"]):
        assert torch.equal(logits(plain, tokens), logits(model, tokens))


def test_what_belongs_to_the_model_goes_with_it_and_nothing_else(written, tmp_path):
    base = written("llama")
    wanted = ["chat_template.jinja", "generation_config.json", "LICENSE", "vocab.json"]
    unwanted = ["consolidated.safetensors", "pytorch_model.bin", "own_code.py", "optimizer.pt"]
    for name in [*wanted, *unwanted]:
        (base / name).write_text("{}")
    (base / "README.md").write_text("---\nlicense: llama3\n---\nthe base model's own words")
    export(base, tmp_path / "cut", [Head(0, 0)])
    held = {path.name for path in (tmp_path / "cut").iterdir()}
    assert {*wanted, "config.json", "tokenizer.json", "heads.json", "README.md"} <= held
    assert not held & set(unwanted)
    card = (tmp_path / "cut" / "README.md").read_text()
    assert "license: llama3" in card and "own words" not in card


def test_what_does_not_answer_as_the_knockout_is_refused(written, tmp_path, monkeypatch):
    monkeypatch.setattr("caploc.export.zero_columns", lambda *_: None)  # nothing is cut
    with pytest.raises(ModelRefused, match="does not answer as the knocked-out model does"):
        export(written("llama"), tmp_path / "cut", [Head(0, 0)])
    assert not (tmp_path / "cut").exists()


def test_the_source_is_left_as_it_was(written, tmp_path):
    base = written("llama")
    before = {path.name: path.read_bytes() for path in base.iterdir()}
    export(base, tmp_path / "cut", [Head(0, 0)])
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")  # no link leads back
    assert {path.name: path.read_bytes() for path in base.iterdir()} == before


def test_quantized_weights_are_refused(written, tmp_path):
    base = written("llama")
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    (base / "config.json").write_text(json.dumps(config))
    wanted = Export(ModelOptions(str(base)), (Head(0, 0),), "checkpoint", tmp_path / "cut")
    with pytest.raises(ModelRefused, match="quantized"):
        wanted.write()
    assert not (tmp_path / "cut").exists()


def test_a_place_that_holds_something_is_refused_before_the_model_is_looked_at(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(BadOption, match="exists and is not empty"):
            export("no such model", place, [Head(0, 0)])
    assert (tmp_path / "mine.txt").read_text() == "mine"
