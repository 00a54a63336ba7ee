"""The cut under masks against models whose weights are zero, on every family."""

import pytest
import torch

from caploc.components import Heads
from caploc.errors import BadOption
from caploc.models.cutting import MaskTable, PackedCut, knocked_out
from caploc.models.hooks import temporary_hooks
from caploc.models.projections import find_projections
from worlds.tiny import (
    count_hooks,
    greedy,
    left_padded,
    random_masks,
    random_tokens,
    tiny,
    zeroed,
)

DTYPES = [torch.float32, torch.bfloat16]
# Largest difference of a logit, for logits of a few units to tens. Rows of a batch and rows by
# themselves round differently; bfloat16 keeps 8 bits, and each layer rounds anew.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}
ROWS = 4

# all others are held against zeroed weights in test_rows_of_families.py, and by the proof
each_family = pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "falcon, grouped"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])


@torch.no_grad()
def logits(model, tokens):
    return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float()


def close(got, expected, dtype):
    scale = expected.abs().max()
    return bool((got - expected).abs().max() <= TOLERANCE[dtype] * scale)


@each_family
def test_each_row_equals_the_model_with_those_weights_zeroed_run_by_itself(name):
    model, masks = tiny(name), random_masks(name, ROWS)
    projections, grid = find_projections(model)
    tokens = random_tokens(ROWS, 7)
    with knocked_out(projections, grid, masks):
        together = logits(model, tokens)
    for row, mask in enumerate(masks):
        alone = logits(zeroed(name, torch.float32, mask), tokens[row : row + 1])[0]
        assert close(together[row], alone, torch.float32)


@each_dtype
@each_family
def test_generate_with_cache_and_left_padding_gives_the_tokens_of_the_zeroed_models(name, dtype):
    model, masks = tiny(name, dtype), random_masks(name, ROWS)
    projections, grid = find_projections(model)
    batch = left_padded([7, 3, 5, 6])
    with knocked_out(projections, grid, masks):
        together = greedy(model, batch)
    for row, mask in enumerate(masks):
        assert together[row].tolist() == greedy(zeroed(name, dtype, mask), batch)[row].tolist()
    assert not torch.equal(together[1:], greedy(model, batch)[1:])


def test_one_mask_serves_a_batch_of_any_size():
    model, mask = tiny("llama"), random_masks("llama", 2)[1:]
    projections, grid = find_projections(model)
    tokens = random_tokens(3, 5)
    expected = logits(zeroed("llama", torch.float32, mask[0]), tokens)
    with knocked_out(projections, grid, mask):
        assert close(logits(model, tokens), expected, torch.float32)
        assert close(logits(model, tokens[:1]), expected[:1], torch.float32)


def test_flattened_inputs_are_cut_like_the_rows_they_came_from():
    projection, mixed = torch.nn.Linear(8, 3), torch.randn(2, 5, 8)
    grid = Heads((4,))
    masks = torch.tensor([[True, False, False, True], [False, True, False, False]])
    with knocked_out([projection], grid, masks):
        expected, got = projection(mixed), projection(mixed.flatten(0, 1))
    assert torch.allclose(got.unflatten(0, (2, 5)), expected, atol=1e-6)


def test_layers_that_no_row_cuts_carry_no_hook():
    projections, grid = find_projections(tiny("llama"))
    first, second = map(count_hooks, projections)
    with knocked_out(projections, grid, torch.from_numpy(grid.mask(["L1H0"]))[None]):
        assert count_hooks(projections[0]) == first
        assert count_hooks(projections[1]) == [second[0] + 1]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_batch_with_another_number_of_rows_than_masks_is_refused(rows):
    model = tiny("llama")
    projections, grid = find_projections(model)
    masks = torch.ones(rows, grid.size, dtype=torch.bool)
    with (
        knocked_out(projections, grid, masks),
        pytest.raises(BadOption, match=f"There are {rows} masks for a batch of 3 rows"),
    ):
        logits(model, random_tokens(3, 4))


@pytest.mark.parametrize("shape", [(8,), (1, 7), (2, 1, 8)])
def test_masks_that_do_not_fit_the_grid_are_refused(shape):
    projections, grid = find_projections(tiny("llama"))
    with (
        pytest.raises(BadOption, match="one column for each of the 8 heads"),
        knocked_out(projections, grid, torch.zeros(shape, dtype=torch.bool)),
    ):
        pass


def test_hooks_are_gone_after_an_exception():
    model = tiny("llama")
    projections, grid = find_projections(model)
    tokens = random_tokens(1, 5)
    before, hooks = logits(model, tokens), count_hooks(model)
    with (
        pytest.raises(KeyError),
        knocked_out(projections, grid, torch.ones(1, grid.size, dtype=torch.bool)),
    ):
        raise KeyError
    assert count_hooks(model) == hooks
    assert torch.equal(logits(model, tokens), before)


@pytest.mark.slow
def test_a_graph_compiled_before_is_cut_too():
    model = tiny("llama")
    projections, grid = find_projections(model)
    tokens, mask = random_tokens(1, 5), random_masks("llama", 2)[1:]
    compiled = torch.compile(model.__call__, backend="eager")
    intact = logits(compiled, tokens)
    with knocked_out(projections, grid, mask):
        cut = logits(compiled, tokens)
    assert close(cut, logits(zeroed("llama", torch.float32, mask[0]), tokens), torch.float32)
    assert close(logits(compiled, tokens), intact, torch.float32)


def test_what_a_cut_head_hands_on_is_exactly_zero_be_it_infinite():
    grid, projection = Heads((3,)), torch.nn.Linear(6, 6, bias=False)
    mask = torch.tensor([[True, False, False]])
    mixed = torch.tensor([[[torch.inf, -torch.inf, 1.0, 2.0, torch.inf, 3.0]]])
    read = []

    def noting():
        yield projection.register_forward_pre_hook(lambda _, args: read.append(args[0]))

    with knocked_out([projection], grid, mask), temporary_hooks(noting()):
        projection(mixed)
    cut, token = PackedCut([projection], grid), torch.zeros(1, dtype=torch.long)
    with cut.cutting(MaskTable(~mask), token, token, 1), temporary_hooks(noting()):
        projection(mixed)
    expected = torch.tensor([0.0, 0.0, 1.0, 2.0, torch.inf, 3.0])
    assert torch.equal(read[0].flatten(), expected)
    assert torch.equal(read[-1].flatten(), expected)
