"""Pretrained models as they are fetched: what they are, their words, and that heads can be cut."""

import json
import random

import pytest
import torch

from caploc.models.knockout import knockout
from caploc.models.sources import find_source
from caploc.naming import PRETRAINED

pytestmark = pytest.mark.real

SPECIAL = [
    "one", " one", "  one", "one ", "a  b", "a\tb", "a\n\nb", "\n\n1", "  1", "x  12\n\n 3", "123",
    "3.14 + 2 = 5.14", "Q: 12 + 30 = 42\n\nQ: 7", "don't I'll WE'RE", "    return x\n        y",
    "naïve café", "Ελλάδα", "日本語", "😀👍🏽", "ﬁ ½ ²", "\r\n", "a.b-c_d/e", "", " ", "\n",
]  # fmt: skip
KNOWN = {
    # As the vocabularies were published: "ĊĊ" before a digit and digits one by one, for instance.
    "smollm2": {"\n\n1": ["ĊĊ", "1"], "  1": ["ĠĠ", "1"], " Paris": ["ĠParis"], "12": ["1", "2"]},
    "gemma3-270m": {"\n\n1": ["<bos>", "\n\n", "1"], " Paris": ["<bos>", "▁Paris"]},
    "qwen2.5-coder-0.5b": {"\n\n1": ["ĊĊ", "1"], " Paris": ["ĠParis"], "12": ["1", "2"]},
    "qwen2.5-coder-1.5b": {"\n\n1": ["ĊĊ", "1"], " Paris": ["ĠParis"], "12": ["1", "2"]},
}
ENDS = {
    "smollm2": ["<|im_end|>"],
    "gemma3-270m": ["<eos>"],
    "qwen2.5-coder-0.5b": ["<|im_end|>", "<|endoftext|>"],
    "qwen2.5-coder-1.5b": ["<|im_end|>", "<|endoftext|>"],
}


def test_it_passes_the_proof_and_has_the_shape_of_the_table(name, loaded):
    """`load_model` raises where the proof fails."""
    model = PRETRAINED[name]
    (heads,), (shared,) = set(loaded.grid.heads_per_layer), set(loaded.grid.group_sizes)
    told = f"{loaded.grid.layers} layers x {heads} heads ({heads // shared} key-value)"
    assert told in model.shape
    weights = loaded.model.num_parameters() * loaded.model.dtype.itemsize
    assert weights == model.weight_bytes
    assert (loaded.dtype, loaded.fingerprint) == (model.dtype, model.fingerprint)


def texts():
    """Special cases, and some hundred words of every kind in all kinds of surroundings."""
    draw = random.Random(0)
    signs = "abcdefghij KLMNOPQ 0123456789 .,;:!?'\"()-_/\n\t éüñ ß"
    drawn = ["".join(draw.choices(signs, k=draw.randrange(1, 24))) for _ in range(400)]
    return SPECIAL + drawn


def test_every_text_survives_the_tokenizer(name, loaded):
    for text in texts():
        tokens = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.tokenizer.decode(tokens, clean_up_tokenization_spaces=False) == text


def test_words_are_split_as_the_model_learned_them(name, loaded):
    for text, words in KNOWN[name].items():
        assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer(text)["input_ids"]) == words


def test_it_stops_where_it_should(name, loaded):
    ends = loaded.model.generation_config.eos_token_id
    numbers = ends if isinstance(ends, list) else [ends]
    assert loaded.tokenizer.convert_ids_to_tokens(numbers) == ENDS[name]


def test_it_follows_examples_and_a_knockout_of_all_heads_ends_that(name, loaded):
    prompt = "Present: walk\nPast: walked\n\nPresent: call\nPast: called\n\nPresent: play\nPast:"
    tokens = loaded.tokenizer(prompt, return_tensors="pt")

    def answer():
        more = loaded.model.generate(**tokens, max_new_tokens=2, do_sample=False)
        return loaded.tokenizer.decode(more[0, tokens["input_ids"].shape[1] :])

    assert answer().startswith(" played")
    with knockout(loaded, torch.ones(loaded.grid.size, dtype=torch.bool).numpy()):
        assert not answer().startswith(" played")
    assert answer().startswith(" played")


def test_the_folder_is_one_that_plain_transformers_load(name, loaded):
    folder = find_source(name).place
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    assert "quantization_config" not in config
    assert config["dtype"] == PRETRAINED[name].dtype
