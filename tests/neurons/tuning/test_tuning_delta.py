"""Tuned neurons survive a file, fit their model and no other, and merge into a plain checkpoint."""

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import FAMILIES, build, random_tokens, tiny
from transformers import AutoModelForCausalLM

import caploc
from caploc.errors import BadData, ModelRefused
from caploc.export.delta import apply_delta, delta_of, load_delta, save_delta
from caploc.models.neurons import find_sites
from caploc.models.sources import DEMO_FOLDER
from caploc.neurons.weights import TrainableRows

KINDS = ["llama", "phi3", "gpt2", "gpt_neox"]


def tuned(model, count=6, trains="all"):
    chosen = np.zeros(find_sites(model)[1].size, dtype=bool)
    chosen[np.random.default_rng(count).choice(len(chosen), count, replace=False)] = True
    rows = TrainableRows(model, chosen, trains)
    with torch.no_grad():
        for seed, change in enumerate(rows.parameters()):
            change += torch.randn(change.shape, generator=torch.Generator().manual_seed(seed))
    return rows


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


@pytest.mark.parametrize("trains", ["all", "output"])
@pytest.mark.parametrize("family", KINDS)
def test_a_delta_applied_to_a_fresh_model_is_the_merged_model(tmp_path, family, trains):
    model = copy.deepcopy(tiny(family))
    rows = tuned(model, trains=trains)
    save_delta(delta_of(model, rows, family), tmp_path / "delta.safetensors")
    rows.merge_()
    fresh = build(FAMILIES[family].model_type, FAMILIES[family].config)
    apply_delta(fresh, load_delta(tmp_path / "delta.safetensors"))
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert not torch.equal(
        logits(fresh, random_tokens(2, 6)), logits(tiny(family), random_tokens(2, 6))
    )


@pytest.mark.parametrize("family", KINDS)
def test_a_merged_model_saved_and_loaded_by_plain_transformers_says_the_same(tmp_path, family):
    model = copy.deepcopy(tiny(family))
    tuned(model).merge_()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = random_tokens(2, 8)
    assert torch.equal(logits(loaded, tokens), logits(model, tokens))


def test_a_demo_delta_is_small_and_fits_the_demo_as_transformers_loads_it(tmp_path):
    path = tmp_path / "delta.safetensors"
    model = caploc.load_model("demo").model
    rows = tuned(model, 14)
    save_delta(delta_of(model, rows, "demo"), path)
    rows.merge_()
    fresh = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER)
    apply_delta(fresh, load_delta(path))
    tokens = random_tokens(2, 8)
    assert torch.equal(logits(fresh, tokens), logits(model, tokens))
    values = 14 * 3 * 128 * 4
    assert values < path.stat().st_size < values + 8000


def test_a_delta_is_the_same_taken_before_merging_and_after():
    model = copy.deepcopy(tiny("gpt_neox"))
    rows = tuned(model)
    before = delta_of(model, rows)
    rows.merge_()
    after = delta_of(model, rows)
    assert before.fingerprint == after.fingerprint
    assert all(torch.equal(value, after.values[key]) for key, value in before.values.items())


@pytest.mark.parametrize(
    "other",
    [
        lambda: build("llama", FAMILIES["llama"].config, seed=1),  # other weights
        lambda: copy.deepcopy(tiny("qwen2")),  # the same blocks in another model
        lambda: copy.deepcopy(tiny("gpt2")),
        lambda: copy.deepcopy(tiny("mixtral")),
        lambda: copy.deepcopy(tiny("llama")).to(torch.bfloat16),
    ],
)
def test_another_model_is_refused_and_left_alone(other, unchanged):
    delta = delta_of(tiny("llama"), tuned(copy.deepcopy(tiny("llama"))), "tiny/llama")
    with pytest.raises(ModelRefused, match="belong to tiny/llama as loaded in float32"):
        apply_delta(unchanged(other()), delta)


def test_a_delta_is_not_applied_twice():
    model = copy.deepcopy(tiny("llama"))
    delta = delta_of(model, tuned(copy.deepcopy(model)))
    apply_delta(model, delta)
    with pytest.raises(ModelRefused, match="has been changed"):
        apply_delta(model, delta)


def test_a_model_changed_in_one_tuned_value_is_refused():
    model = copy.deepcopy(tiny("llama"))
    rows = tuned(copy.deepcopy(model))
    delta = delta_of(model, rows)
    share = rows.shares[0]
    model.get_submodule(share.name).weight[share.places[0], 7] += 1e-3
    with pytest.raises(ModelRefused, match="load the model anew"):
        apply_delta(model, delta)


def test_files_that_are_no_deltas_are_refused(tmp_path):
    path = tmp_path / "delta.safetensors"
    with pytest.raises(BadData, match="cannot be read as a delta"):
        load_delta(path)
    path.write_text("not safetensors")
    with pytest.raises(BadData, match="cannot be read as a delta"):
        load_delta(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(BadData, match="holds no neurons tuned"):
        load_delta(path)
    save_file({"weight": torch.zeros(2)}, path, metadata={"caploc": json.dumps({"schema": 99})})
    with pytest.raises(BadData, match="this version of caploc"):
        load_delta(path)
