"""Models from GGUF files: what they become, and what is refused before a library reads it."""

import shutil
import struct
import subprocess
import sys

import gguf as package
import pytest
import torch
from ggufs import END, GROUPED, WORDS, logits, original, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.models import gguf
from caploc.models.gguf import check_gguf
from caploc.models.loading import check_model, load_model, load_tokenizer, model_shape
from caploc.models.sources import find_source


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


def test_it_is_named_by_its_path_or_by_folder_and_file(file):
    by_path, by_file = find_source(str(file)), find_source(str(file.parent), gguf="tiny.gguf")
    assert by_path.fingerprint() == by_file.fingerprint()
    assert check_model(str(file.parent), gguf="tiny.gguf") == check_model(str(file))


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
        ({"gguf": "tiny.gguf"}, "is a GGUF file itself; leave out --gguf"),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(file, changes, said):
    with pytest.raises(BadOption, match=said):
        check_model(str(file), **changes)


def test_a_file_that_is_not_in_the_folder_is_refused(file):
    with pytest.raises(UnknownName, match=r"'tiny2.gguf'. Did you mean 'tiny.gguf'"):
        find_source(str(file.parent), gguf="tiny2.gguf")
    outside = file.parent / "inside"
    outside.mkdir()
    with pytest.raises(UnknownName):
        find_source(str(outside), gguf="../tiny.gguf")


@pytest.mark.parametrize("gguf", ["../../etc", "a/../../b.gguf", "/etc/passwd"])
def test_a_file_outside_a_repository_is_refused_with_and_without_a_network(gguf):
    with pytest.raises(BadOption, match="outside the repository nowhere/at-all"):
        find_source("nowhere/at-all", gguf=gguf)


def test_a_folder_with_gguf_alone_says_how_to_name_the_file(file):
    with pytest.raises(ModelRefused, match=r"--gguf \(tiny.gguf\)"):
        check_model(str(file.parent))


def test_a_missing_package_is_named(file, monkeypatch):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"pip install 'caploc\[gguf\]'"):
        check_model(str(file))


def test_the_part_that_reads_pictures_and_unknown_families_are_refused(tmp_path):
    with pytest.raises(ModelRefused, match="reads pictures"):
        check_model(str(write_gguf(tmp_path / "mmproj.gguf", architecture="clip")))
    with pytest.raises(ModelRefused, match="architecture 'mamba9', which transformers does not"):
        check_model(str(write_gguf(tmp_path / "new.gguf", architecture="mamba9")))


def header(*, version=3, tensors=1, entries=1, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def entry(key, kind, value):
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def listed(kind, count):
    return entry(b"a", gguf.ARRAY, struct.pack("<IQ", kind, count))


def text_entry(key, value):
    return entry(key, gguf.STRING, struct.pack("<Q", len(value)) + value)


def llama(*entries, tensors=1):
    """A header of tensors of 1,024 numbers, each of which begins where the data begin."""
    about = [text_entry(b"general.architecture", b"llama"), *entries]
    rest = b"".join(about)
    for number in range(tensors):
        name = f"{number}".encode()
        rest += struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 1024, 0, 0)
    return header(tensors=tensors, entries=len(about), rest=rest + bytes(64 + 4096))


BAD = {
    "empty": (b"", "does not begin with GGUF"),
    "another magic": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "a page": (b"<!doctype html>" + bytes(60), "does not begin with GGUF"),
    "version 1": (header(version=1), "of version 1"),
    "tensors beyond count": (header(tensors=2**60), "counts 1,152,921,504,606,846,976 tensors"),
    "entries beyond count": (header(entries=2**60), "entries"),
    "no entries": (header(), "ends too early"),
    "a list without end": (header(rest=listed(0, 2**62)), "list of 4,611,686,018,427,387,904"),
    "a list beyond the file": (header(rest=listed(10, 2**20)), "cut off"),
    "a list of lists": (header(rest=listed(gguf.ARRAY, 9)), "list of values of the type 9"),
    "a text without end": (
        header(rest=entry(b"a", gguf.STRING, struct.pack("<Q", 2**63))),
        "text of 9,223",
    ),
    "a word as long as a book": (
        header(rest=listed(gguf.STRING, 1) + struct.pack("<Q", 2**20)),
        "word of 1,048,576 bytes",
    ),
    "an unknown type": (header(rest=entry(b"a", 99, b"")), "unknown type 99"),
    "a key that is no text": (header(rest=entry(b"\xff", 0, b"\1")), "too early"),
    "a text for a number of layers": (
        llama(text_entry(b"llama.block_count", b"abc")),
        "its llama.block_count is no number",
    ),
    "a text for an alignment": (
        llama(text_entry(b"general.alignment", b"abc")),
        "its general.alignment is no number",
    ),
    "a thousand tensors in one place": (
        llama(tensors=1000),
        "several of its tensors lie in one place",
    ),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_file_that_lies_about_itself_is_refused_at_once(tmp_path, content, said):
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelRefused, match=said) as refused:
        check_model(str(file))
    assert "is no sound GGUF file" in str(refused.value)


def test_more_layers_than_tensors_are_refused(sound, tmp_path):
    """Else the libraries would build a thousand million of them."""
    key = b"llama.block_count" + struct.pack("<I", 4)
    content = sound.read_bytes()
    place = content.index(key) + len(key)
    file = tmp_path / "deep.gguf"
    file.write_bytes(content[:place] + struct.pack("<I", 10**9) + content[place + 4 :])
    with pytest.raises(ModelRefused, match="more layers than tensors"):
        check_model(str(file))


@pytest.mark.slow
def test_python_without_assertions_checks_files_too(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(llama(tensors=1000))
    code = (
        "from caploc.models.sources import check_model_files, find_source\n"
        "assert False\n"
        f"check_model_files(find_source({str(tmp_path / 'bad.gguf')!r}))\n"
    )
    ended = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert "ModelRefused" in ended.stderr and "is no sound GGUF file" in ended.stderr


def test_no_way_to_the_libraries_leads_past_the_check(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(llama(tensors=1000))
    source = find_source(str(tmp_path / "bad.gguf"))
    for read in (lambda: model_shape(source.name, None), lambda: source.which):
        with pytest.raises(ModelRefused, match="is no sound GGUF file"):
            read()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.6, 0.999])
def test_a_file_that_is_cut_off_is_refused(sound, tmp_path, share):
    content = sound.read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelRefused, match="no sound GGUF file"):
        check_model(str(file))


@given(place=st.integers(0, 6000), value=st.integers(0, 255))
def test_a_header_with_any_byte_changed_is_read_or_refused(sound, place, value, tmp_path_factory):
    content = bytearray(sound.read_bytes())
    content[place] = value
    file = tmp_path_factory.getbasetemp() / "changed.gguf"
    file.write_bytes(content)
    try:
        check_gguf("changed.gguf", file)
    except ModelRefused as refused:
        assert "\n" not in str(refused)


def test_the_headers_end_is_found_as_the_package_finds_it(sound):
    """A second reader of the format agrees on what is there."""
    reader = package.GGUFReader(sound)
    found = check_gguf("tiny.gguf", sound)
    assert found.tensors == len(reader.tensors)
    assert found.architecture == reader.fields["general.architecture"].contents()
    assert found.values["tokenizer.ggml.pre"] == "smollm"
