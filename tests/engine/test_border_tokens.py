"""A token that spans prompt and answer is scored as what it is: the text read is the text asked."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import RequestEncoder
from caploc.models.loading import load_model
from caploc.tasks.task import Generate, LogLikelihood, options_json

MERGES = [("(", ")"), ("-", ">"), ("->", ">"), ("(", "("), (")", ")"), ("()", ";")]


@pytest.fixture(scope="module")
def encoder():
    """An encoder whose tokenizer joins brackets and arrows, also across prompt and answer."""
    signs = sorted({*"print(x)a ->b;ygo"})
    words = ["<pad>", "<s>", "</s>", *signs, *("".join(pair) for pair in MERGES)]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=MERGES))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(words), **sizes, **layers)
    torch.manual_seed(0)
    return RequestEncoder(LlamaForCausalLM(config).eval(), fast)


PAIRS = [("print(", ")"), ("a ->", "> b"), ("x(", "); y"), ("go (", ")"), ("((", "))"), ("a", "b")]


@pytest.mark.parametrize(("prompt", "answer"), PAIRS)
def test_the_whole_text_is_read_and_the_answer_is_in_what_is_scored(encoder, prompt, answer):
    context, scored = encoder.pair(LogLikelihood(prompt, answer))
    said = encoder.tokenizer.decode([*context, *scored]).replace("<s>", "")
    assert said == prompt + answer
    assert encoder.tokenizer.decode(scored).endswith(answer) and len(scored) >= 1


def test_what_does_not_fit_the_window_is_said(encoder):
    window = encoder.harness.max_length
    assert encoder.misfit(LogLikelihood("(" * 3, "a")) is None
    long = encoder.misfit(LogLikelihood("a" * (2 * window), "b"))
    assert f"window of {window}" in long
    options = options_json({"until": ["x"], "max_gen_toks": window - 4})
    assert "before the answer" in encoder.misfit(Generate("a" * 20, options))


def test_an_answer_says_what_ended_it(encoder):
    options = options_json({"until": [")"], "max_gen_toks": 5})
    prompt = encoder.prompt(Generate("a(", options))
    tokens = encoder.tokenizer("ab)", add_special_tokens=False)["input_ids"]
    assert encoder.ending(tokens, prompt) == ")"
    assert encoder.ending([encoder.tokenizer.eos_token_id], prompt) == encoder.tokenizer.eos_token
    many = encoder.tokenizer("ababababab", add_special_tokens=False)["input_ids"]
    assert encoder.ending((many * 5)[:5], prompt) is None


@pytest.mark.parametrize("name", ["packed", "plain"])
def test_what_a_model_wrote_is_the_likeliest_text_in_its_own_tokens(encoder, name, tmp_path):
    """Also where the tokenizer would spell prompt and answer otherwise than the model did."""
    encoder.model.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    engine = BatchEngine(load_model(str(tmp_path), device="cpu"), backend=name)
    options = options_json({"until": ["</s>"], "max_gen_toks": 6})
    prompts = [first + second for first in "(xab-" for second in "(yg-n"]

    def answers(requests):
        nothing = engine.grid.mask([])
        asks = [Ask((number, 0), request, nothing) for number, request in enumerate(requests)]
        found = {answer.key: answer.response for batch in engine.answer(asks) for answer in batch}
        return [found[number, 0] for number in range(len(requests))]

    written = answers([Generate(prompt, options) for prompt in prompts])
    texts = [each.text + (each.end or "") for each in written]
    pairs = list(zip(prompts, texts, written, strict=True))
    own = answers([LogLikelihood(prompt, text, each.said) for prompt, text, each in pairs])
    assert all(scored.greedy for scored in own)
    assert [scored.tokens for scored in own] == [len(each.said) for each in written]
    spelt = answers([LogLikelihood(prompt, text) for prompt, text, _ in pairs])
    assert not all(scored.greedy for scored in spelt)
