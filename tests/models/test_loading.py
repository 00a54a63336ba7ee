"""Loading from folders, and what is refused in one sentence before weights are read."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import errors as hub
from safetensors.torch import load_file, save_file

from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.models import loading, sources
from caploc.models.devices import pick_device
from caploc.models.knockout import knockout
from caploc.models.loading import choose_weights, load_model, load_tokenizer
from caploc.models.sources import folder_fingerprint
from worlds.alone import save
from worlds.tiny import GROUPED, LAYERS, MAMBA, build


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A saved model that tests copy before they change it."""
    return save(tmp_path_factory.mktemp("model"), build("llama", GROUPED), pad_token=None)


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "model"))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_loaded_proved_and_ready(folder):
    loaded = load_model(str(folder), device="cpu")
    assert loaded.grid.heads_per_layer == (4,) * LAYERS
    assert loaded.projections == [layer.self_attn.o_proj for layer in loaded.model.model.layers]
    assert (loaded.dtype, loaded.device, loaded.name) == (
        "float32",
        torch.device("cpu"),
        str(folder),
    )
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer("w05 w09")["input_ids"] == [5, 9]
    assert loaded.fingerprint == folder_fingerprint(folder)


@pytest.mark.parametrize(
    ("saved", "asked", "got"),
    [
        ("float32", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float32", "float16", "float16"),
    ],
)
def test_dtype_is_the_checkpoints_own_unless_asked(tmp_path, saved, asked, got):
    folder = save(tmp_path, build("llama", GROUPED).to(getattr(torch, saved)))
    loaded = load_model(str(folder), dtype=asked, device="cpu")
    assert loaded.dtype == got
    assert loaded.model.model.layers[0].self_attn.o_proj.weight.dtype == getattr(torch, got)


def test_a_loaded_model_can_be_knocked_out(folder):
    loaded, tokens = load_model(str(folder)), torch.tensor([[3, 5, 8]])
    intact = loaded.model(input_ids=tokens).logits
    with knockout(loaded, ["L0H1"]):
        assert not torch.allclose(loaded.model(input_ids=tokens).logits, intact, atol=1e-3)


def test_the_grid_is_known_without_weights(folder):
    (folder / "model.safetensors").write_bytes(b"never read")
    assert choose_weights(str(folder)).check().heads_per_layer == (4,) * LAYERS


def test_a_tokenizer_without_padding_pads_with_its_end(folder):
    assert load_tokenizer(str(folder)).pad_token == "w01"


def test_a_tokenizers_own_padding_and_side_are_kept(tmp_path):
    model = build("llama", GROUPED)
    folder = save(tmp_path, model, pad_token="w02", padding_side="right")
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("w02", "right")


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "a/b/c", "two words", ""])
def test_an_unknown_folder_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="There is no folder .* `caploc models` lists"):
        choose_weights(name).check()


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "has no config.json, so it is no transformers model"),
        ("model.safetensors", "has no weights"),
        ("tokenizer*", "has no tokenizer; save the one"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused(folder, missing, words):
    for path in folder.glob(missing):
        path.unlink()
    with pytest.raises(ModelRefused, match=words):
        choose_weights(str(folder)).check()


def test_pickled_weights_are_refused_with_how_to_convert(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="only pickled weights.*save_pretrained"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "t5"}, "is a t5 model, which does not continue text"),
        ({"model_type": "llamma"}, "cannot be loaded with transformers .*llamma"),
        ({"num_attention_heads": "four"}, "cannot be loaded with transformers .*four"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}},
            "brings its own program code; if you trust it, pass trust_remote_code=True",
        ),
        (
            {"model_type": "mamba", **MAMBA, "architectures": ["MambaForCausalLM"]},
            "has no attention output projections",
        ),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_before_weights(folder, changes, words):
    edit_config(folder, **changes)
    with pytest.raises(ModelRefused, match=words):
        choose_weights(str(folder)).check()


def test_a_config_that_is_no_json_is_refused(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelRefused, match="cannot be loaded .*JSON"):
        choose_weights(str(folder)).check()


def test_a_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelRefused, match="^The tokenizer of "):
        load_tokenizer(str(folder))


def test_cut_off_weights_are_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelRefused, match="cannot be loaded .*SafetensorError"):
        load_model(str(folder))


def test_missing_weights_are_refused_and_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.o_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match="lacks 1 of its weights, 'model.layers.1.self_attn"):
        load_model(str(folder))


def test_weights_of_another_shape_are_refused(folder):
    edit_config(folder, intermediate_size=40)
    with pytest.raises(ModelRefused):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (hub.GatedRepoError, ModelRefused, "is gated on the Hugging Face Hub; accept its terms"),
        (
            hub.RepositoryNotFoundError,
            UnknownName,
            "There is no model 'some/model': no such folder",
        ),
        (hub.RevisionNotFoundError, UnknownName, "There is no revision 'v9' of some/model"),
        (ConnectionError, ModelRefused, "could not be reached .ConnectionError.*local folder"),
        (hub.OfflineModeIsEnabled, ModelRefused, "could not be reached"),
    ],
)
def test_the_hub_says_no_in_one_sentence(monkeypatch, kind, error, words):
    def refuse(*args, **kwargs):
        raise kind.__new__(kind)

    monkeypatch.setattr(sources.HfApi, "model_info", refuse)
    with pytest.raises(error, match=words) as caught:
        choose_weights("some/model", revision="v9").check()
    assert caught.value.__cause__ is None


def test_a_model_on_the_hub_is_known_by_its_commit(monkeypatch):
    files = [SimpleNamespace(rfilename=name) for name in ("config.json", "a.safetensors")]
    info = SimpleNamespace(sha="c0ffee", siblings=files)
    monkeypatch.setattr(sources.HfApi, "model_info", lambda *args, **kwargs: info)
    source = sources.find_source("some/model", "main")
    assert (source.fingerprint(), source.revision) == ("c0ffee", "c0ffee")
    with pytest.raises(ModelRefused, match="has no tokenizer"):
        choose_weights("some/model").check()


def test_without_a_network_the_cache_serves(monkeypatch, folder, tmp_path):
    snapshot = shutil.copytree(folder, tmp_path / "c0ffee")
    found = str(snapshot / "config.json")
    monkeypatch.setattr(sources, "try_to_load_from_cache", lambda *args, **kwargs: found)
    loaded = load_model("some/model")
    assert (loaded.name, loaded.fingerprint) == ("some/model", "c0ffee")


def test_auto_takes_the_best_device_there_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(BadOption, match="choose auto, cuda:0, cuda:1, mps, cpu or spread"):
        pick_device("cuda:2")


def test_weights_that_do_not_fit_the_device_say_so(monkeypatch, folder):
    def too_small(self, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("transformers.PreTrainedModel.to", too_small)
    with pytest.raises(loading.OutOfMemory, match="do not fit on cpu"):
        load_model(str(folder))
