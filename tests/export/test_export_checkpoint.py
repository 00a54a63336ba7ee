"""The exported checkpoint is the knocked-out model: weights, logits, files."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, left_padded, random_tokens, tiny, zeroed
from transformers import AutoModelForCausalLM

import caploc
from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.errors import BadOption, ModelRefused
from caploc.export import Export
from caploc.export import weights as export_weights
from caploc.models.loading import load_model

QUICK = {"gpt2", "llama"}
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


def test_of_a_sharded_checkpoint_only_the_files_with_cut_columns_change(written, tmp_path):
    base = written("llama", shard="8KB")
    weights = sorted(path.name for path in base.glob("*.safetensors"))
    assert len(weights) > 3
    done = export(base, tmp_path / "cut", [Head(1, 0)])
    kept = {path.name for path in (tmp_path / "cut").glob("*.safetensors*")}
    assert kept == {*weights, "model.safetensors.index.json"}
    index = json.loads((base / "model.safetensors.index.json").read_text())
    changed = [n for n in weights if (base / n).read_bytes() != (tmp_path / "cut" / n).read_bytes()]
    assert changed == [index["weight_map"]["model.layers.1.self_attn.o_proj.weight"]]
    assert list(done.rewritten) == changed


def test_no_byte_but_those_of_the_columns_changes(written, tmp_path):
    base = written("gpt2")
    export(base, tmp_path / "cut", [Head(1, 3)])
    before, after = (folder / "model.safetensors" for folder in (base, tmp_path / "cut"))
    old, new = load_file(before), load_file(after)
    name = "transformer.h.1.attn.c_proj.weight"
    differing = [key for key in old if not torch.equal(old[key], new[key])]
    assert differing == [name]
    assert torch.equal(old[name][:24], new[name][:24]) and not new[name][24:].any()
    with safe_open(before, "pt") as one, safe_open(after, "pt") as other:
        assert one.metadata() == other.metadata()
    differences = sum(a != b for a, b in zip(before.read_bytes(), after.read_bytes(), strict=True))
    assert 0 < differences <= 8 * 32 * 4  # head width x hidden x bytes


def test_tensors_may_lack_the_models_own_prefix(written, tmp_path):
    base = written("gpt2")  # as the first GPT-2 checkpoints do
    old = load_file(base / "model.safetensors")
    renamed = {key.removeprefix("transformer."): value for key, value in old.items()}
    save_file(renamed, base / "model.safetensors", metadata={"format": "pt"})
    done = export(base, tmp_path / "cut", [Head(0, 2)])
    assert done.agreement.exact
    assert set(load_file(tmp_path / "cut" / "model.safetensors")) == set(renamed)


def test_a_tensor_of_like_name_and_other_values_is_left_alone(written, tmp_path):
    base = written("llama")
    tensors = load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors["vision.layers.0.self_attn.o_proj.weight"] = tensors[name] + 1
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    export(base, tmp_path / "cut", [Head(0, 0)])
    after = load_file(tmp_path / "cut" / "model.safetensors")
    assert torch.equal(after["vision.layers.0.self_attn.o_proj.weight"], tensors[name] + 1)
    assert not after[name][:, :8].any() and after[name][:, 8:].all()


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
    monkeypatch.setattr(export_weights, "_zero", lambda *_: None)  # nothing is cut
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


def test_an_adapter_beside_the_weights_is_refused(written, tmp_path):
    base = written("llama")
    (base / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelRefused, match="holds an adapter beside its weights"):
        export(base, tmp_path / "cut", [Head(0, 0)])


@pytest.mark.parametrize("file", ["../outside.safetensors", "missing.safetensors"])
def test_an_index_that_names_other_files_is_refused(file, written, tmp_path):
    base = written("llama", shard="8KB")
    first = sorted(base.glob("*.safetensors"))[0]
    shutil.copy(first, tmp_path / "outside.safetensors")
    path = base / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["extra"] = file
    path.write_text(json.dumps(index))
    with pytest.raises(ModelRefused):
        export(base, tmp_path / "cut", [Head(0, 0)])
    assert not (tmp_path / "cut").exists()


def test_a_place_that_holds_something_is_refused_before_the_model_is_looked_at(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(BadOption, match="exists and is not empty"):
            export("no such model", place, [Head(0, 0)])
    assert (tmp_path / "mine.txt").read_text() == "mine"
