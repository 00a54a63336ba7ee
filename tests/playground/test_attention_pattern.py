"""A head's pattern is what the model's own eager attention hands out."""

import pytest
import torch

from caploc.components import Head
from caploc.errors import BadOption, UnknownName
from caploc.models.attention import LONGEST, of_head, pattern
from caploc.models.knockout import knockout
from caploc.playground.setting import AttentionRequest, ExampleRequest, PageQuestion

HEADS = ["L0H13", "L0H14", "L3H12", "L5H1"]  # those of the fixture `zeroed`


def own(model, tokens):
    """What the model says of itself."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        found = model(torch.tensor([tokens]), output_attentions=True).attentions
    model.set_attn_implementation(before)
    return found


def test_every_head_has_its_own_pattern_though_pairs_share_keys(playground, whole):
    tokens = playground.engine.encoder.harness.tok_encode("47+38=85")
    truth = own(whole, tokens)
    seen = []
    for head in (Head(0, 0), Head(0, 1), Head(2, 7), Head(5, 15)):
        found = pattern(playground.loaded, tokens, head)
        assert torch.equal(found, truth[head.layer][0, head.index])
        assert torch.allclose(found.sum(dim=1), torch.ones(len(tokens)), atol=1e-5)
        assert torch.equal(found.triu(1), torch.zeros_like(found))
        seen.append(found)
    assert not torch.allclose(seen[0], seen[1])


def test_without_heads_it_is_the_pattern_of_the_model_without_them(playground, zeroed):
    tokens = playground.engine.encoder.harness.tok_encode("47+38=85")
    heads = playground.loaded.grid.named_in(HEADS)
    found = pattern(playground.loaded, tokens, Head(4, 3), heads)
    assert torch.allclose(found, own(zeroed, tokens)[4][0, 3], atol=1e-6)
    assert not torch.allclose(found, pattern(playground.loaded, tokens, Head(4, 3)), atol=1e-2)


def test_the_model_is_as_before_even_after_a_failure(playground):
    model = playground.loaded.model
    before = model.config._attn_implementation
    ids = torch.tensor([[0, 21, 24]])
    logits = model(ids).logits
    pattern(playground.loaded, [0, 21, 24], Head(1, 1))
    with pytest.raises(IndexError), knockout(playground.loaded, []):
        pattern(playground.loaded, [10**6], Head(1, 1))
    assert model.config._attn_implementation == before
    assert torch.equal(model(ids).logits, logits)


def test_what_cannot_be_shown_gets_a_sentence(playground):
    with pytest.raises(BadOption, match=rf"1 to {LONGEST} tokens; this one has {LONGEST + 1}"):
        pattern(playground.loaded, [5] * (LONGEST + 1), Head(0, 0))
    with pytest.raises(UnknownName, match="layer 0 has heads H0 to H15"):
        pattern(playground.loaded, [5], Head(0, 16))
    with pytest.raises(BadOption, match="hands no attention weights of layer 1 out"):
        of_head(playground.loaded, None, Head(1, 0), 3)


def test_the_page_sees_the_text_that_the_model_read(playground):
    question = PageQuestion(heads=HEADS, prompt="47+38=")
    said = playground.engine.encoder.harness.tok_encode("85", add_special_tokens=False)
    found = playground.attention(AttentionRequest(question=question, said=said, head="L1H2"))
    assert "".join(found["tokens"]) == "<|end|>47+38=85"
    assert found["weights"].shape == (9, 9)
    question = PageQuestion(heads=HEADS, example=ExampleRequest(task="demo/capitals", number=3))
    context = playground.task("demo/capitals").requests(3)[1].context
    found = playground.attention(
        AttentionRequest(question=question, said=[35], head="L1H2", knocked_out=True, choice=1)
    )
    assert "".join(found["tokens"]) == f"<|end|>{context}B"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"said": [258]}, "tokens are 0 to 257"),
        ({"said": [-1]}, "tokens are 0 to 257"),
        ({"said": [], "head": "L6H0"}, "L0 to L5"),
        ({"said": [], "question": {"heads": []}}, "The prompt is empty"),
    ],
)
def test_mistakes_about_attention_get_a_sentence(playground, fields, sentence):
    usual = {"question": {"heads": HEADS, "prompt": "1+1="}, "head": "L0H0"}
    with pytest.raises((BadOption, UnknownName), match=sentence):
        playground.attention(AttentionRequest(**usual | fields))
