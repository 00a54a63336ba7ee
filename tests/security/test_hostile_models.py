"""A model repository made by an enemy: nothing in it is run."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.engine.encoding import chat_template
from caploc.errors import CaplocError, ModelRefused
from caploc.files import digest
from caploc.models.loading import choose_weights, load_model, load_tokenizer
from caploc.neurons.finding import score_cache
from worlds.planted import Planted, write_planted


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def folder(tmp_path):
    plan = Planted(layers=2, heads=4, needed=1, strengths=(0.2,), examples=100, seed=3)
    write_planted(tmp_path / "model", plan)
    return tmp_path / "model"


def test_the_canary_sings(tmp_path, canary):
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "training_args.bin", "weights.ckpt", "adapter_model.bin"],
)
def test_a_pickle_beside_the_weights_is_not_opened(folder, canary, name):
    (folder / name).write_bytes(pickle.dumps(Canary(canary)))
    load_model(str(folder), device="cpu")
    assert not canary.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "tokenizer.json"])
def test_a_pickle_in_place_of_a_file_is_not_opened(folder, canary, name):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    (folder / name).write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(ModelRefused):
        load_model(str(folder), device="cpu")
    assert not canary.exists()


def test_a_pickle_on_the_neurons_shelf_is_not_opened(tmp_path, canary):
    objects = np.empty(1, object)
    objects[0] = Canary(canary)
    (tmp_path / "scores").mkdir()
    np.savez(tmp_path / "scores" / f"{digest({'a': 1})}.npz", objects=objects)

    def measured():
        raise ModelRefused("measured anew")

    with pytest.raises(ModelRefused, match="anew"):
        score_cache(tmp_path).recall({"a": 1}, measured)
    assert not canary.exists()


def with_code(folder, canary, file="config.json"):
    """Let a file of the model name Python code that lies beside it."""
    content = json.loads((folder / file).read_text())
    named = {
        "AutoConfig": "mine.Config",
        "AutoModelForCausalLM": "mine.Model",
        "AutoTokenizer": ["mine.Words", None],
    }
    content |= {"auto_map": named, "model_type": "mine", "tokenizer_class": "Words"}
    (folder / file).write_text(json.dumps(content))
    (folder / "mine.py").write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")


def test_a_models_own_code_is_not_run(folder, canary):
    with_code(folder, canary)
    for read in (lambda name, **how: choose_weights(name, **how).check(), load_model):
        with pytest.raises(ModelRefused, match="brings its own program code"):
            read(str(folder), device="cpu")
    assert not canary.exists()


def test_a_tokenizers_own_code_is_not_run(folder, canary):
    with_code(folder, canary, "tokenizer_config.json")
    try:
        load_tokenizer(str(folder))
    except ModelRefused as error:
        assert "brings its own program code" in str(error)
    assert not canary.exists()


def test_trusting_a_models_code_is_off_and_loud(tmp_path):
    said = CliRunner().invoke(app, ["models", str(tmp_path / "nowhere"), "--trust-remote-code"])
    assert "run with your rights" in " ".join(said.output.split())
    quiet = CliRunner().invoke(app, ["models", str(tmp_path / "nowhere")])
    assert "run with your rights" not in " ".join(quiet.output.split())


def test_a_chat_template_reaches_nothing(folder, canary):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = "{{ cycler.__init__.__globals__.os.mknod('" + str(canary) + "') }}"
    render = chat_template(tokenizer)
    with pytest.raises(Exception, match="unsafe|undefined"):
        render([{"role": "user", "content": "hello"}])
    assert not canary.exists()


def test_a_config_that_asks_for_the_moon_is_refused_before_memory_is_taken(folder):
    file = folder / "config.json"
    file.write_text(
        json.dumps(
            json.loads(file.read_text()) | {"hidden_size": 2**20, "intermediate_size": 2**22}
        )
    )
    with pytest.raises(CaplocError, match="GiB"):
        choose_weights(str(folder), device="cpu").check()
