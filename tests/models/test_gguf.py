"""Models from GGUF files: what they become, and what is refused."""

import shutil

import pytest
import torch

from caploc.errors import BadOption, ModelRefused
from caploc.models import gguf
from caploc.models.loading import choose_weights, load_model, load_tokenizer
from caploc.models.sources import find_source
from worlds.ggufs import END, GROUPED, WORDS, logits, original, write_gguf


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def file(sound, tmp_path):
    return shutil.copy(sound, tmp_path / "tiny.gguf")


@pytest.fixture(scope="module")
def loaded(sound):
    return load_model(str(sound), device="cpu")


def test_a_gguf_file_is_the_model_that_it_was_made_from(loaded):
    assert loaded.grid.heads_per_layer == (4,) * GROUPED["num_hidden_layers"]
    assert loaded.dtype == "float32" and not hasattr(loaded.model.config, "quantization_config")
    assert torch.allclose(logits(loaded.model), logits(original()), atol=1e-5)


def test_quantized_weights_become_plain_numbers_near_the_original(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", quantized=True)
    assert file.stat().st_size < 0.6 * write_gguf(tmp_path / "large.gguf").stat().st_size
    model = load_model(str(file), device="cpu", dtype="bfloat16")
    assert model.dtype == "bfloat16"
    weight = model.model.model.layers[0].mlp.down_proj.weight.float()
    exact = original().model.layers[0].mlp.up_proj.weight
    near = model.model.model.layers[0].mlp.up_proj.weight.float()
    assert weight.isfinite().all() and 0 < (near - exact).abs().max() < 0.02


def test_the_fingerprint_follows_the_content_and_not_the_name(file):
    first = find_source(str(file)).fingerprint()
    renamed = file.rename(file.with_name("other.gguf"))
    assert find_source(str(renamed)).fingerprint() == first
    content = bytearray(renamed.read_bytes())
    content[-1] ^= 1
    renamed.write_bytes(content)
    assert find_source(str(renamed)).fingerprint() != first


def test_nothing_beside_the_file_is_read(file, loaded):
    (file.parent / "tokenizer.json").write_text("{ this is no tokenizer")
    (file.parent / "tokenizer_config.json").write_text('{"eos_token": "z"}')
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.eos_token == "<end>" == tokenizer.pad_token
    assert tokenizer("one")["input_ids"] == loaded.tokenizer("one")["input_ids"]


@pytest.mark.parametrize(
    "text", ["one", " one  1", "\n\n7 ones\n", "  12\n\n 3", "é 日本 😀", "\t9"]
)
def test_text_survives_the_tokenizer(loaded, text):
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text


def test_blanks_before_a_digit_stay_together_where_the_vocabulary_learned_them_so(loaded, tmp_path):
    """transformers splits this vocabulary as GPT-2's, in which the last blank goes with a digit."""
    word = WORDS.index
    assert loaded.tokenizer("\n\n1")["input_ids"] == [word("ĊĊ"), word("1")]
    assert loaded.tokenizer("\n\none")["input_ids"] == [word("Ċ"), word("Ċ"), word("one")]
    plain = load_tokenizer(str(write_gguf(tmp_path / "gpt2.gguf", splitting="gpt-2")))
    assert plain("\n\n1")["input_ids"] == [word("Ċ"), word("Ċ"), word("1")]


def test_an_end_of_text_is_known(loaded):
    assert loaded.model.generation_config.eos_token_id == END


def test_weights_spread_over_devices_are_the_same(file, loaded):
    spread = load_model(str(file), device="spread")
    assert torch.equal(logits(spread.model), logits(loaded.model))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantize": "8bit"}, "dequantized as they are read; leave out --quantize 8bit"),
        ({"revision": "main"}, "is a file, which has no revisions"),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(file, changes, said):
    with pytest.raises(BadOption, match=said):
        choose_weights(str(file), **changes).check()


def test_a_folder_with_gguf_alone_says_how_to_name_the_file(file):
    with pytest.raises(
        ModelRefused, match=r"name one file of it, downloaded, as the model \(tiny.gguf\)"
    ):
        choose_weights(str(file.parent)).check()


def test_a_missing_package_is_named(file, monkeypatch):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"pip install 'caploc\[gguf\]'"):
        choose_weights(str(file)).check()


@pytest.mark.parametrize("architecture", ["clip", "mamba9"])
def test_what_transformers_does_not_read_is_refused(tmp_path, architecture):
    file = write_gguf(tmp_path / "new.gguf", architecture=architecture)
    with pytest.raises(ModelRefused, match=f"architecture {architecture} is not supported yet"):
        choose_weights(str(file)).check()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.999])
def test_a_file_that_is_cut_off_is_refused_in_one_sentence(sound, tmp_path, share):
    content = sound.read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelRefused, match="cut.gguf cannot be loaded") as refused:
        choose_weights(str(file)).check()
    assert "\n" not in str(refused.value)


def test_what_is_no_gguf_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "page.gguf").write_bytes(b"<!doctype html>" + bytes(60))
    with pytest.raises(ModelRefused, match="it is not a GGUF file"):
        choose_weights(str(tmp_path / "page.gguf")).check()
