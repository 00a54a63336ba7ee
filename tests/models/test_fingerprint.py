"""A model's fingerprint changes with whatever changes what is loaded, and with nothing else."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from caploc.models.sources import DEMO_FOLDER, READ, folder_fingerprint

INDEX = "model.safetensors.index.json"


def former(folder):
    """The fingerprint as runs of earlier versions have it."""
    total = hashlib.blake2b(digest_size=20)
    for path in sorted({path for pattern in READ for path in folder.glob(pattern)}):
        content = hashlib.blake2b(path.read_bytes()).digest()
        total.update(path.name.encode() + b"\0" + content)
    return total.hexdigest()


@pytest.fixture
def model(tmp_path):
    """The demo model with its weights in two files and an index, as a large model has them."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
        files |= dict.fromkeys(part, file)
    write(folder, files)
    return folder


def write(folder, files):
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def shards(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


def test_runs_of_ordinary_models_go_on(model):
    assert folder_fingerprint(DEMO_FOLDER) == former(DEMO_FOLDER)
    assert folder_fingerprint(model) == former(model)


def test_special_tokens_that_the_config_has_too_change_nothing(model):
    words = json.loads((model / "tokenizer_config.json").read_text())
    tokens = {key: words[key] for key in words if key.endswith("_token") and words[key]}
    assert tokens
    spelt = {key: {"content": token, "lstrip": False} for key, token in tokens.items()}
    (model / "special_tokens_map.json").write_text(json.dumps(spelt))
    assert folder_fingerprint(model) == former(model)
    (model / "special_tokens_map.json").write_text(json.dumps({"eos_token": "other"}))
    assert folder_fingerprint(model) != former(model)


def test_weights_that_an_index_finds_in_a_subfolder_count(model):
    """As an attack did: the index leads elsewhere, and the resumed run kept its old scores."""
    before, files = folder_fingerprint(model), shards(model)
    (model / "sub").mkdir()
    weights = load_file(model / "model-0.safetensors")
    changed = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    save_file(changed, model / "sub" / "model-0.safetensors", {"format": "pt"})
    write(model, {k: f"sub/{v}" if v == "model-0.safetensors" else v for k, v in files.items()})
    led = folder_fingerprint(model)
    assert led != before
    save_file(weights, model / "sub" / "model-0.safetensors", {"format": "pt"})
    assert folder_fingerprint(model) not in (before, led)


def test_an_index_that_chooses_between_two_files_counts(model):
    """Both lie there all the time; only the index says which is loaded."""
    weights = load_file(model / "model-0.safetensors")
    changed = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    save_file(changed, model / "other.safetensors", {"format": "pt"})
    files, before = shards(model), folder_fingerprint(model)
    write(
        model,
        {k: "other.safetensors" if v == "model-0.safetensors" else v for k, v in files.items()},
    )
    assert folder_fingerprint(model) != before


def test_a_weights_file_that_the_config_names_counts(model):
    config = json.loads((model / "config.json").read_text())
    config["transformers_weights"] = "sub/w.safetensors"
    (model / "config.json").write_text(json.dumps(config))
    (model / "sub").mkdir()
    found = []
    for content in (b"one", b"two"):
        (model / "sub" / "w.safetensors").write_bytes(content)
        found.append(folder_fingerprint(model))
    assert found[0] != found[1]


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_is_none_is_read_as_such(model, content):
    before = folder_fingerprint(model)
    (model / INDEX).write_text(content)
    assert folder_fingerprint(model) != before
