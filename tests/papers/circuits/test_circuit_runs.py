"""Running circuits: against plain runs, hooks written anew, and knocked-out heads."""

import copy

import numpy as np
import pytest
import torch
from edge_names import edge_names

from caploc.errors import ModelRefused
from papers.cnl.circuits import PromptPair, outcomes_of, run_circuits
from papers.cnl.edges import FAMILIES as OPENED
from papers.cnl.edges import open_model, prune
from worlds.tiny import FAMILIES, tiny

NAMES = [name for name, family in FAMILIES.items() if family.model_type in OPENED]


def plain(opened, prompt):
    with torch.no_grad():
        return opened.model(torch.tensor([prompt])).logits[0, -1]


def all_but(grid, leaves_out):
    """Every edge but those for whose source and target names the condition holds."""
    names = edge_names(grid, np.ones(grid.size, bool))
    return np.array([not leaves_out(*name.split(">")) for name in names])


@pytest.mark.parametrize("name", NAMES)
def test_all_edges_are_the_clean_run_and_none_the_corrupted(name, opened, pair):
    model = opened(name)
    ends = np.stack([np.ones(model.grid.size, bool), np.zeros(model.grid.size, bool)])
    full, empty = run_circuits(model, pair, ends, rows=1)
    clean, corrupted = plain(model, pair.clean), plain(model, pair.corrupted)
    torch.testing.assert_close(full, clean, rtol=0, atol=1e-9)
    torch.testing.assert_close(empty, corrupted, rtol=0, atol=1e-9)
    assert (clean - corrupted).abs().max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_without_edges_into_an_mlp_it_writes_as_for_the_corrupted_prompt(name, opened, pair):
    model = opened(name)
    mlp, seen = model.decoder[0].mlp, []
    handle = mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    plain(model, pair.corrupted)
    handle.remove()
    handle = mlp.register_forward_hook(lambda module, args, output: seen[0])
    expected = plain(model, pair.clean)
    handle.remove()
    kept = all_but(model.grid, lambda source, target: target == "L0M")
    found = run_circuits(model, pair, kept[None])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (found - plain(model, pair.clean)).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_without_edges_from_a_head_it_is_the_corrupted_head(name, opened, pair):
    model = opened(name)
    output, seen = model.decoder[0].output, []
    width = model.model.config.hidden_size // model.grid.heads
    if name == "qwen3, wide heads":
        width = 16
    handle = output.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    plain(model, pair.corrupted)
    handle.remove()

    def swap(module, args):
        mixed = args[0].clone()
        mixed[..., 2 * width : 3 * width] = seen[0][..., 2 * width : 3 * width]
        return (mixed,)

    handle = output.register_forward_pre_hook(swap)
    expected = plain(model, pair.clean)
    handle.remove()
    kept = all_but(model.grid, lambda source, target: source == "L0H2")
    found = run_circuits(model, pair, kept[None])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (found - plain(model, pair.clean)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_pruned_edges_change_nothing(name, opened, pair):
    model = opened(name)
    random = np.random.default_rng(0).random((6, model.grid.size)) < 0.3
    pruned = np.stack([prune(model.grid, each) for each in random])
    assert pruned.sum() < random.sum()
    found = (run_circuits(model, pair, circuits) for circuits in (random, pruned))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_the_model_is_left_as_it_was(opened, pair):
    model = opened("gptj")
    modules = list(model.model.modules())

    def hooks():
        return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]

    before, hooked = plain(model, pair.clean), hooks()
    run_circuits(model, pair, np.ones((1, model.grid.size), bool))
    assert torch.equal(before, plain(model, pair.clean))
    assert hooks() == hooked


def test_a_family_not_known_is_refused(loaded):
    with pytest.raises(ModelRefused, match="edges of a gemma2 model are not known"):
        open_model(loaded(tiny("gemma2")))


def test_a_model_that_writes_more_than_its_parts_is_refused(loaded):
    model = copy.deepcopy(tiny("llama"))
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1.01)
    with pytest.raises(ModelRefused, match="more than its heads and feed-forward blocks"):
        open_model(loaded(model))


def test_outcomes_are_read_off_the_logits():
    pair = PromptPair((1,), (2,), gold=0, other=2)
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]))
    found = outcomes_of(logits, pair)
    assert found["logit_difference"][0] == pytest.approx(np.log(2.5), abs=1e-6)
    assert found["probability"][:2].tolist() == pytest.approx([0.5, 0.2])
    assert found["rank"].tolist() == [1, 3, 1]
