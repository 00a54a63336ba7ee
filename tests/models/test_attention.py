"""The words that a head promotes are those of a computation by hand, in every family of models."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # for `import alone`
from alone import around
from tiny import FAMILIES, random_tokens, tiny

from caploc.components import Head
from caploc.errors import BadOption
from caploc.models.attention import pattern, promoted_words

TOKENS = random_tokens(1, 9)[0].tolist()


@torch.inference_mode()
def by_hand(model, head):
    """A llama's head from its weights: attention to values, output projection, norm, unembedding.

    Without the norm's scale, which is the same for all words.
    """
    weights = pattern(around(model), TOKENS, head)[-1]
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
    promoted, logits = promoted_words(around(model), TOKENS, head)
    truth = by_hand(model, head)
    assert torch.allclose(promoted / promoted.norm(), truth / truth.norm(), atol=1e-5)
    with torch.inference_mode():
        assert torch.equal(logits, model(torch.tensor([TOKENS])).logits[0, -1])


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_of_a_layer_differ_in_every_family(name):
    loaded = around(tiny(name))
    heads = [
        each for each in loaded.grid.components if each.layer == loaded.grid.component(0).layer
    ]
    one, other = (promoted_words(loaded, TOKENS, head)[0] for head in heads[:2])
    assert bool(torch.isfinite(one).all()) and not torch.allclose(one, other)


def test_logits_that_are_made_otherwise_are_refused():
    model = tiny("llama")
    last = model.model.norm.register_forward_hook(
        lambda module, args, output: -output if output.shape[1] > 1 else output
    )
    with pytest.raises(BadOption, match="in another way"):
        promoted_words(around(model), TOKENS, Head(0, 1))
    last.remove()
