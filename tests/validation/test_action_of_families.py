"""A head's attention is its model's own, and what it promotes is that of a computation by hand."""

import pytest
import torch

from caploc.components import Head
from caploc.validation.action import promote_words, read_attention
from worlds.alone import around
from worlds.tiny import FAMILIES, random_tokens, tiny

TOKENS = random_tokens(1, 9)[0].tolist()
# Made with other attention, they cannot change it: two then let a token see what follows.
BLIND = frozenset({"falcon, one key-value head", "falcon, grouped", "falcon, alibi"})


def test_every_head_has_its_own_weights_though_pairs_share_keys(demo):
    tokens = demo.tokenizer.encode("47+38=85")
    before = demo.model.config._attn_implementation
    demo.model.set_attn_implementation("eager")
    with torch.inference_mode():
        truth = demo.model(torch.tensor([tokens]), output_attentions=True).attentions
    demo.model.set_attn_implementation(before)
    seen = []
    for head in (Head(0, 0), Head(0, 1), Head(2, 7), Head(5, 15)):
        seen.append(read_attention(demo, tokens, head))
        assert torch.equal(seen[-1], truth[head.layer][0, head.index, -1])
    assert not torch.allclose(seen[0], seen[1])


def test_the_model_is_as_before_even_after_a_failure(demo):
    before = demo.model.config._attn_implementation
    ids = torch.tensor([[0, 21, 24]])
    logits = demo.model(ids).logits
    read_attention(demo, [0, 21, 24], Head(1, 1))
    with pytest.raises(IndexError):
        read_attention(demo, [10**6], Head(1, 1))
    assert demo.model.config._attn_implementation == before
    assert torch.equal(demo.model(ids).logits, logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_in_every_family_attention_is_read_and_heads_of_a_layer_promote_other_words(name):
    loaded = around(tiny(name))
    heads = loaded.grid.components[:2]
    found = read_attention(loaded, TOKENS, heads[0])
    if name in BLIND:
        assert found is None
    else:
        # some families have a sink beside the tokens, so that weights may sum to less than one
        assert len(found) == len(TOKENS) and 0 < found.sum() <= 1 + 1e-5 and found.min() >= 0
    one, other = (promote_words(loaded, TOKENS, head)[0] for head in heads)
    assert heads[0].layer == heads[1].layer
    assert bool(torch.isfinite(one).all()) and not torch.allclose(one, other)


@torch.inference_mode()
def by_hand(model, head):
    """A llama's head from its weights: attention to values, output projection, norm, unembedding.

    Without the norm's scale, which is the same for all words.
    """
    weights = read_attention(around(model), TOKENS, head)
    hidden = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states[head.layer][0]
    layer = model.model.layers[head.layer]
    value_head = head.index // 2  # two heads read the same keys and values
    values = layer.self_attn.v_proj(layer.input_layernorm(hidden)).unflatten(-1, (2, 8))
    mixed = weights @ values[:, value_head]
    columns = slice(8 * head.index, 8 * head.index + 8)
    written = layer.self_attn.o_proj.weight[:, columns] @ mixed
    return model.lm_head(model.model.norm.weight * written)


@pytest.mark.parametrize("head", [Head(0, 1), Head(1, 2)], ids=str)
def test_they_are_those_of_the_weights(head):
    model = tiny("llama")
    promoted, logits = promote_words(around(model), TOKENS, head)
    truth = by_hand(model, head)
    assert torch.allclose(promoted / promoted.norm(), truth / truth.norm(), atol=1e-5)
    with torch.inference_mode():
        assert torch.equal(logits, model(torch.tensor([TOKENS])).logits[0, -1])


def test_logits_that_are_made_otherwise_are_refused():
    model = tiny("llama")
    last = model.model.norm.register_forward_hook(
        lambda module, args, output: -output if output.shape[1] > 1 else output
    )
    assert promote_words(around(model), TOKENS, Head(0, 1)) is None
    last.remove()
