"""A model's fingerprint changes with whatever changes what is loaded."""

import shutil

import pytest

from caploc.models.sources import folder_fingerprint
from worlds.tiny import GROUPED, build


@pytest.fixture
def model(tmp_path):
    build("llama", GROUPED).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "name",
    [
        "config.json", "generation_config.json", "model.safetensors", "sub/model.safetensors",
        "model.safetensors.index.json", "tokenizer.json", "special_tokens_map.json", "mine.py",
    ],
)  # fmt: skip
def test_it_follows_every_file_that_is_loaded(model, name):
    """An index may lead to weights in a folder below."""
    found = [folder_fingerprint(model)]
    (model / name).parent.mkdir(exist_ok=True)
    for content in (b"one", b"two"):
        (model / name).write_bytes(content)
        found.append(folder_fingerprint(model))
    assert len(set(found)) == 3


@pytest.mark.parametrize("name", ["README.md", "chat_template.jinja", "digest.txt"])
def test_it_does_not_follow_what_is_not_loaded_or_is_in_the_prompt(model, name):
    before = folder_fingerprint(model)
    assert folder_fingerprint(shutil.copytree(model, model.with_name("elsewhere"))) == before
    (model / name).write_text("other")
    assert folder_fingerprint(model) == before
