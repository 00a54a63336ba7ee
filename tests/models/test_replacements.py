"""Mean and resample knockouts against a hand computation, one token at a time."""

from itertools import product

import numpy as np
import pytest
import torch
from tiny import DISTURBED, FAMILIES, greedy, left_padded, random_masks, random_tokens, tiny

from caploc.errors import BadData, BadOption
from caploc.models.knockout import (
    Positions,
    knockout,
    mean_replacement,
    reference_outputs,
    resample_replacement,
)
from caploc.models.projections import find_projections

TEXTS = [[5, 9, 4], [7, 3, 8, 8, 6, 11, 12], [2, 2, 9, 30]]  # shorter than what is generated
SEED = 3

each_family = pytest.mark.parametrize("name", FAMILIES)


@torch.no_grad()
def run_by_hand(name, tokens, value=lambda *where: None):
    """Logits of one unpadded text, and what each head hands on: {(layer, head): (tokens, width)}.

    `value(layer, head, column, position)` gives what replaces a head's output, or None.
    """
    model, family, seen, handles = tiny(name), FAMILIES[name], {}, []
    first = np.cumsum([0, *family.heads])

    def listen(layer, heads):
        def hook(module, args):
            per_head = args[0].clone().unflatten(-1, (heads, -1))
            seen.update({(layer, head): per_head[0, :, head].clone() for head in range(heads)})
            for head, position in product(range(heads), range(len(tokens))):
                new = value(layer, head, first[layer] + head, position)
                if new is not None:
                    per_head[0, position, head] = new
            return (per_head.flatten(-2),)

        return hook

    for layer in np.flatnonzero(family.heads):
        module = model.get_submodule(family.naming.format(layer=layer))
        hook = listen(int(layer), family.heads[layer])
        handles.append(module.register_forward_pre_hook(hook))
    out = model(input_ids=torch.tensor([tokens])).logits[0]
    for handle in handles:
        handle.remove()
    return out, seen


def by_hand(name, mode, mask, row):
    """`value` for `run_by_hand` in one of the modes, from the texts alone."""
    texts = [run_by_hand(name, text)[1] for text in TEXTS]
    drawn = np.random.default_rng(SEED).integers(len(TEXTS), size=(4, len(mask)))

    def value(layer, head, column, position):
        if not mask[column]:
            return None
        outputs = [text[layer, head] for text in texts]
        if mode == "resample":
            chosen = outputs[drawn[row, column]]
            return chosen[min(position, len(chosen) - 1)]
        there = [output[position] for output in outputs if position < len(output)]
        if mode == "mean" or not there:
            return torch.cat(outputs).mean(0)
        return torch.stack(there).mean(0)

    return value


def options(model, mode):
    reference = reference_outputs(model, TEXTS, per_position=mode != "mean")
    return {"mode": mode.split()[0], "reference": reference, "seed": SEED}


MODES = ["mean", "mean at position", "resample"]


@pytest.mark.parametrize("mode", MODES)
@each_family
def test_generate_with_cache_and_left_padding_follows_the_hand_computation(name, mode):
    lengths = [6] * 4 if name in DISTURBED else [7, 3, 5, 6]
    model, masks, batch = tiny(name), random_masks(name, 4), left_padded(lengths)
    with knockout(model, masks, **options(model, mode)):
        together = greedy(model, batch)
    for row, mask in enumerate(masks):
        prompt = batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist()
        text = prompt + together[row].tolist()
        logits, _ = run_by_hand(name, text[:-1], by_hand(name, mode, mask, row))
        assert logits.argmax(-1)[len(prompt) - 1 :].tolist() == together[row].tolist()
    assert not torch.equal(together[1:], greedy(model, batch)[1:])


@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_logits_equal_the_hand_computation(mode):
    model, masks = tiny("llama"), random_masks("llama", 4)
    tokens = random_tokens(4, 12)  # past the longest text
    with knockout(model, masks, **options(model, mode)):
        together = model(input_ids=tokens).logits
    for row, mask in enumerate(masks):
        alone, _ = run_by_hand("llama", tokens[row].tolist(), by_hand("llama", mode, mask, row))
        assert torch.allclose(together[row], alone, atol=1e-4)


@torch.no_grad()
def cached_step(model, tokens, **last):
    """Logits of the last token, the others having gone before it into the cache."""
    cache = model(input_ids=tokens[:, :-1], use_cache=True).past_key_values
    return model(input_ids=tokens[:, -1:], past_key_values=cache, **last).logits[:, -1]


@pytest.mark.parametrize(
    "last",
    [
        {},
        {"position_ids": torch.tensor([[5]])},
        {"attention_mask": torch.ones(1, 6, dtype=torch.long)},
        {"attention_mask": torch.ones(1, 1, 1, 6, dtype=torch.bool)},
        {
            "attention_mask": torch.ones(1, 1, 1, 6, dtype=torch.bool),
            "position_ids": torch.tensor([[5]]),
        },
    ],
    ids=["cache alone", "position ids", "2-d mask", "4-d mask", "4-d mask and position ids"],
)
def test_positions_are_known_from_whatever_the_caller_gives(last):
    model, mask, tokens = tiny("llama"), random_masks("llama", 2)[1], random_tokens(1, 6)
    with knockout(model, mask, **options(model, "mean at position")):
        got = cached_step(model, tokens, **last)
    value = by_hand("llama", "mean at position", mask, 0)
    expected, _ = run_by_hand("llama", tokens[0].tolist(), value)
    assert torch.allclose(got[0], expected[-1], atol=1e-4)


@torch.no_grad()
def test_position_ids_serve_where_the_padding_is_in_a_4d_mask():
    model, mask, tokens = tiny("llama"), random_masks("llama", 2)[1], random_tokens(1, 6)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], dim=1)
    real = (padded > 0).long()
    first = {"attention_mask": real[:, :-1], "position_ids": (real.cumsum(1) - 1)[:, :-1].clamp(0)}
    last = {"attention_mask": real[:, None, None].bool(), "position_ids": torch.tensor([[5]])}
    with knockout(model, mask, **options(model, "mean at position")):
        cache = model(input_ids=padded[:, :-1], use_cache=True, **first).past_key_values
        got = model(input_ids=padded[:, -1:], past_key_values=cache, **last).logits[0, -1]
    value = by_hand("llama", "mean at position", mask, 0)
    expected, _ = run_by_hand("llama", tokens[0].tolist(), value)
    assert torch.allclose(got, expected[-1], atol=1e-4)


@torch.no_grad()
def test_the_decoder_may_be_run_without_its_language_model_head():
    model, mask, tokens = tiny("llama"), random_masks("llama", 2)[1], random_tokens(1, 6)
    with knockout(model, mask, **options(model, "resample")):
        whole, decoder = model(input_ids=tokens).logits, model.model(input_ids=tokens)
    assert torch.allclose(model.lm_head(decoder.last_hidden_state), whole, atol=1e-5)


def test_a_layer_run_by_itself_has_no_positions_and_is_refused():
    model = tiny("llama")
    with (
        knockout(model, random_masks("llama", 2)[1], **options(model, "resample")),
        pytest.raises(BadOption, match="A layer was run by itself"),
    ):
        model.model.layers[0].self_attn.o_proj(torch.zeros(1, 2, 32))
        model.model.layers[1].self_attn.o_proj(torch.zeros(1, 2, 32))


@pytest.mark.parametrize("rows", [1, 2], ids=["positions for all rows", "for each row"])
@pytest.mark.parametrize("mode", ["mean at position", "resample"])
def test_flattened_inputs_are_replaced_like_the_rows_they_came_from(mode, rows):
    class Standing(Positions):
        def now(self, like):
            return torch.arange(3 * rows).reshape(rows, 3)

    reference = reference_outputs(tiny("llama"), TEXTS, per_position=True)
    if mode == "resample":
        replace = resample_replacement(reference, Standing(tiny("llama")), rows, SEED)
    else:
        replace = mean_replacement(reference, Standing(tiny("llama")))
    mixed = torch.randn(2, 3, 4, 8)
    expected = replace(1, mixed).expand_as(mixed)
    assert torch.equal(replace(1, mixed.flatten(0, 1)), expected.flatten(0, 1))


def test_another_seed_draws_other_texts_and_the_same_seed_the_same():
    model, mask, tokens = tiny("llama"), torch.ones(8, dtype=torch.bool), random_tokens(1, 6)
    reference = reference_outputs(model, TEXTS, per_position=True)

    @torch.no_grad()
    def logits(seed):
        with knockout(model, mask, mode="resample", reference=reference, seed=seed):
            return model(input_ids=tokens).logits

    assert torch.equal(logits(1), logits(1))
    assert not torch.allclose(logits(1), logits(2), atol=1e-3)


def test_more_masks_keep_the_first_ones_draws():
    model, tokens = tiny("llama"), random_tokens(3, 6)
    reference = reference_outputs(model, TEXTS, per_position=True)

    @torch.no_grad()
    def logits(rows):
        masks = torch.ones(rows, 8, dtype=torch.bool)
        with knockout(model, masks, mode="resample", reference=reference):
            return model(input_ids=tokens[:rows]).logits

    assert torch.allclose(logits(3)[:2], logits(2), atol=1e-5)


@each_family
def test_recorded_values_are_what_the_projections_read(name):
    model = tiny(name)
    reference = reference_outputs(model, TEXTS, per_position=True)
    texts = [run_by_hand(name, text)[1] for text in TEXTS]
    assert reference.lengths.tolist() == [len(text) for text in TEXTS]
    assert [mean is not None for mean in reference.means] == [bool(n) for n in FAMILIES[name].heads]
    for layer, head in texts[0]:
        values = [text[layer, head] for text in texts]
        assert torch.allclose(reference.means[layer][head], torch.cat(values).mean(0), atol=1e-5)
        for number, expected in enumerate(values):
            kept = reference.values[layer][number, :, head]
            assert torch.allclose(kept[: len(expected)], expected, atol=1e-5)
            assert not kept[len(expected) :].any()


def test_bfloat16_values_are_replaced_in_bfloat16():
    model, tokens = tiny("llama", torch.bfloat16), random_tokens(1, 6)
    mask = random_masks("llama", 2)[1]
    for mode in MODES:
        with knockout(model, mask, **options(model, mode)), torch.no_grad():
            assert model(input_ids=tokens).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("texts", [[], [[3], []]])
def test_a_reference_without_tokens_is_refused(texts):
    with pytest.raises(BadData, match="at least one text"):
        reference_outputs(tiny("llama"), texts)


def test_texts_need_a_tokenizer():
    with pytest.raises(BadOption, match="without its tokenizer"):
        reference_outputs(tiny("llama"), ["one", "two"])


def test_the_reference_grid_is_the_models():
    assert reference_outputs(tiny("llama"), TEXTS).grid == find_projections(tiny("llama"))[1]
