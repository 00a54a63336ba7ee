"""Scores of edges: against exact effects where they are exact, and against what they sum to."""

import numpy as np
import pytest
import torch
from edge_names import edge_names
from test_circuit_runs import NAMES, plain
from torch import nn

from papers.cnl.circuits import (
    attribute,
    outcomes_of,
    run_circuits,
    strongest,
)
from papers.cnl.edges import prune


def losses(logits, pair):
    return -(logits[..., pair.gold] - logits[..., pair.other])


def effects(model, pair):
    """How much the loss rises when one edge alone is patched, for every edge."""
    every = np.ones((1 + model.grid.size, model.grid.size), bool)
    every[1:] ^= np.eye(model.grid.size, dtype=bool)
    found = losses(run_circuits(model, pair, every, rows=64), pair)
    return (found[1:] - found[0]).numpy()


def make_linear(model):
    """Uniform attention, no norms, and an MLP without bends: logits linear in the input."""
    for block in model.transformer.h:
        block.ln_1, block.mlp.act = nn.Identity(), nn.Identity()
        block.attn.q_proj.weight.data[:] = 0
    model.transformer.ln_f = nn.Identity()


def plant_one_path(model):
    """Only the value of L0H1, read by the value of L1H2, reaches the logits.

    The residual stream is cut in four lanes: embeddings, nothing, L0H1's, and L1H2's, which alone
    the logits read.
    """
    model.model.norm = nn.Identity()
    model.model.embed_tokens.weight.data[:, 16:] = 0
    model.lm_head.weight.data[:, :24] = 0
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = nn.Identity(), nn.Identity()
        layer.self_attn.q_proj.weight.data[:] = 0
        layer.mlp.down_proj.weight.data[:] = 0
    first, second = (layer.self_attn for layer in model.model.layers)
    keep(first.o_proj.weight.data, rows=slice(16, 24), columns=slice(8, 16))
    keep(second.o_proj.weight.data, rows=slice(24, 32), columns=slice(16, 24))
    keep(second.v_proj.weight.data, rows=slice(8, 16), columns=slice(16, 24))


def keep(weight, rows, columns):
    kept = weight[rows, columns].clone()
    weight[:] = 0
    weight[rows, columns] = kept


def test_in_a_linear_model_scores_are_exact_effects(opened, pair):
    model = opened("gptj", make_linear)
    exact = effects(model, pair)
    assert np.abs(exact).max() > 0.1
    for steps in (1, 3):
        np.testing.assert_allclose(attribute(model, pair, steps=steps), exact, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_for_prompts_that_hardly_differ_scores_are_exact_effects(name, opened, pair):
    def bring_together(model):
        table = model.get_input_embeddings().weight.data
        away = torch.randn(table.shape[1], generator=torch.Generator().manual_seed(2))
        table[31] = table[17] + 1e-3 * away

    model = opened(name, bring_together)
    exact = effects(model, pair)
    scores = attribute(model, pair, steps=1)
    assert np.abs(exact).max() > 1e-3
    np.testing.assert_allclose(scores, exact, atol=0.01 * np.abs(exact).max())
    assert np.corrcoef(scores, exact)[0, 1] > 0.9999


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_scores_from_the_input_sum_to_the_change_of_loss(name, opened, pair):
    model = opened(name)
    scores = attribute(model, pair, steps=300, batch=50)
    change = losses(plain(model, pair.corrupted), pair) - losses(plain(model, pair.clean), pair)
    assert scores[model.grid.edge_sources == 0].sum() == pytest.approx(float(change), rel=1e-3)


def test_the_only_path_that_matters_is_found(opened, pair):
    model = opened("llama", plant_one_path)
    scores = attribute(model, pair, steps=4)
    path = {"input>L0KV0.v", "L0H1>L1KV1.v", "L1H2>logits"}
    assert set(edge_names(model.grid, np.abs(scores) > 1e-12)) == path
    located = strongest(scores, 3 / len(scores))
    assert set(edge_names(model.grid, located)) == path
    assert np.array_equal(prune(model.grid, located), located)
    every = np.ones(model.grid.size, bool)
    runs = run_circuits(model, pair, np.stack([every, ~every, located, ~located]))
    full, empty, kept, left = outcomes_of(runs, pair)["logit_difference"]
    assert abs(full - empty) > 0.05
    assert kept == pytest.approx(full) and left == pytest.approx(empty, abs=1e-9)
