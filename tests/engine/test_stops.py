"""The end of an answer against decoding everything after each token."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from caploc.engine.encoding import Stops
from caploc.models.loading import load_tokenizer
from worlds import DEMO
from worlds.alone import word_tokenizer, words

# Letters, spaces, ends of lines, and characters of two, three and four bytes.
ALPHABET = "ab \n.é\N{EURO SIGN}\N{RIGHT SINGLE QUOTATION MARK}\N{SNOWMAN}\N{WHITE SUN}𝄞"
CORPUS = ["ab ab\n\nba. aé é€ €’ ’☃ ☃☼ a𝄞 𝄞b\n", "a’ b’ a.\n b€\n\n", "ab. ab. é\n\n"]


def byte_pairs():
    """Tokens of one byte or more, some of which cut characters in two."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def pieces():
    """Tokens that bring the space before them; unknown characters are spelt in bytes."""
    plain = ["<unk>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256))]
    found = [*plain, "▁", "a", "b", ".", "▁a", "▁b", "ab", "▁ab", "é", "b."]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab"), ("b", ".")]
    vocabulary = {piece: number for number, piece in enumerate(found)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")


MAKERS = {
    "demo": lambda: load_tokenizer(DEMO),
    "byte pairs": byte_pairs,
    "pieces": pieces,
    "words": word_tokenizer,
}
each_tokenizer = pytest.mark.parametrize("name", MAKERS)


@cache
def tokenizer(name):
    return MAKERS[name]()


def brute(said, text_of, stops, ends, limit):
    """How many tokens are said, by looking at the whole text after each."""
    for count in range(1, len(said) + 1):
        text = text_of(said[:count])
        if said[count - 1] in ends or count >= limit or any(stop in text for stop in stops):
            return count
    return None


def watched(stops, said):
    """How many tokens are said until `over`."""
    return next((n for n in range(1, len(said) + 1) if stops.over(said[:n])), None)


@each_tokenizer
@given(data=st.data())
def test_an_answer_is_over_with_the_first_token_after_which_its_text_has_a_stop_string(name, data):
    reader = tokenizer(name)
    text = data.draw(st.text(ALPHABET, max_size=12))
    said = reader.encode(text, add_special_tokens=False) if name != "words" else []
    any_token = st.integers(0, len(reader) - 1)
    for place, token in data.draw(st.lists(st.tuples(st.integers(0, 20), any_token), max_size=4)):
        said.insert(place, token)
    whole = reader.decode(said)
    strings = data.draw(st.lists(st.text(ALPHABET, min_size=1, max_size=3), max_size=2))
    if whole:
        start, size = data.draw(st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 5)))
        strings.append(whole[start : start + size])
    ends = data.draw(st.sets(st.sampled_from(said) if said else any_token, max_size=1))
    limit = data.draw(st.integers(1, 30))
    stops = Stops(reader, strings, sorted(ends), limit)
    assert watched(stops, said) == brute(said, reader.decode, strings, ends, limit)


def test_a_space_that_comes_with_the_next_word_ends_an_answer():
    assert watched(Stops(word_tokenizer(), ["w05 "], [], 9), [4, 5, 6, 7]) == 3
    assert words([4, 5, 6]).startswith("w04 w05 ")


def test_a_vocabulary_without_letters_has_its_plain_tokens_too():
    """Its encoding of a letter is an unknown token, whose text must not count as the next one's."""
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"unk_token": "<unk>"})
    stops = Stops(tokenizer, ["<end>"], [1], 8)
    assert not stops.stopped([5]) and not stops.may_complete(5)
