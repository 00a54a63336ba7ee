"""Models that cannot be used."""

import json
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
from mistaking import Place, mistake
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from ggufs import write_gguf  # noqa: E402  (after the path is set)

GROUP = "The model"
LOOK = "models model --device cpu"


def changed(file: Path, **fields: object) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | fields))


def sound_gguf(place: Place, architecture: str = "llama") -> str:
    """A tiny GGUF file; its name."""
    return write_gguf(place.folder / "tiny.gguf", architecture=architecture).name


def spoiled(model: Path, weight: str, value: float) -> None:
    """Put a value in the first place of a weight."""
    weights = load_file(model / "model.safetensors")
    weights[weight].view(-1)[0] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


@mistake(GROUP, "its name is misspelt, and there is no network", slow=True)
def _(place: Place) -> str:
    return "locate Qwen/Qwen3-4BB --task demo/addition"


@mistake(GROUP, "its name is no folder and no name of the Hub")
def _(place: Place) -> str:
    return "locate ./no/such/folder --task demo/addition"


@mistake(GROUP, "a file instead of its folder")
def _(place: Place) -> str:
    place.model()
    return "models model/model.safetensors"


@mistake(GROUP, "a revision of a folder")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --revision main"


@mistake(GROUP, "an empty folder")
def _(place: Place) -> str:
    (place.folder / "model").mkdir()
    return LOOK


@mistake(GROUP, "a folder without config.json")
def _(place: Place) -> str:
    (place.model() / "config.json").unlink()
    return LOOK


@mistake(GROUP, "config.json is not JSON")
def _(place: Place) -> str:
    (place.model() / "config.json").write_text("{oops")
    return LOOK


@mistake(GROUP, "config.json is JSON, but no object")
def _(place: Place) -> str:
    (place.model() / "config.json").write_text("[1, 2]")
    return LOOK


@mistake(GROUP, "a web page in place of config.json")
def _(place: Place) -> str:
    (place.model() / "config.json").write_text("<!doctype html><title>Sign in</title>")
    return LOOK


@mistake(GROUP, "config.json names no model type")
def _(place: Place) -> str:
    (place.model() / "config.json").write_text("{}")
    return LOOK


@mistake(GROUP, "a model type that transformers does not know")
def _(place: Place) -> str:
    changed(place.model() / "config.json", model_type="llama9")
    return LOOK


@mistake(GROUP, "a model that does not continue text")
def _(place: Place) -> str:
    changed(place.model() / "config.json", model_type="clip", architectures=["CLIPModel"])
    return LOOK


@mistake(GROUP, "a number of heads that is a word")
def _(place: Place) -> str:
    changed(place.model() / "config.json", num_attention_heads="many")
    return LOOK


@mistake(GROUP, "no layers")
def _(place: Place) -> str:
    changed(place.model() / "config.json", num_hidden_layers=0)
    return LOOK


@mistake(GROUP, "a negative vocabulary")
def _(place: Place) -> str:
    changed(place.model() / "config.json", vocab_size=-5)
    return LOOK


@mistake(GROUP, "more weights than any memory", code=1, machine=True)
def _(place: Place) -> str:
    changed(place.model() / "config.json", hidden_size=2**20, intermediate_size=2**22)
    return LOOK


@mistake(GROUP, "no weights")
def _(place: Place) -> str:
    (place.model() / "model.safetensors").unlink()
    return LOOK


@mistake(GROUP, "safetensors cut off half-way (a download that broke)")
def _(place: Place) -> str:
    file = place.model() / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return LOOK


@mistake(GROUP, "an empty safetensors file")
def _(place: Place) -> str:
    (place.model() / "model.safetensors").write_bytes(b"")
    return LOOK


@mistake(GROUP, "safetensors whose header lies about its length")
def _(place: Place) -> str:
    file = place.model() / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    return LOOK


@mistake(GROUP, "a git-lfs pointer in place of the weights")
def _(place: Place) -> str:
    (place.model() / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 99\n"
    )
    return LOOK


@mistake(GROUP, "weights of another shape than the config says")
def _(place: Place) -> str:
    changed(place.model() / "config.json", intermediate_size=77)
    return LOOK


@mistake(GROUP, "weights of fewer layers than the config says")
def _(place: Place) -> str:
    changed(place.model() / "config.json", num_hidden_layers=3)
    return LOOK


@mistake(GROUP, "a shard that the index names is missing")
def _(place: Place) -> str:
    model = place.model()
    names = dict.fromkeys(
        load_file(model / "model.safetensors"), "model-00002-of-00002.safetensors"
    )
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
    return LOOK


@mistake(GROUP, "NaN among the weights")
def _(place: Place) -> str:
    spoiled(place.model(), "model.layers.1.self_attn.o_proj.weight", float("nan"))
    return LOOK


@mistake(GROUP, "infinity among the weights")
def _(place: Place) -> str:
    spoiled(place.model(), "lm_head.weight", float("inf"))
    return LOOK


@mistake(GROUP, "weights only as a pickle (pytorch_model.bin)")
def _(place: Place) -> str:
    model = place.model()
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": np.zeros(3)}))
    return LOOK


@mistake(GROUP, "a folder of GGUF, and no file named")
def _(place: Place) -> str:
    model = place.model()
    (model / "model.safetensors").unlink()
    (model / "model-q4.gguf").write_bytes(b"GGUF" + bytes(60))
    return LOOK


@mistake(GROUP, "a GGUF file that the folder does not have")
def _(place: Place) -> str:
    (place.model() / "model-q4.gguf").write_bytes(b"GGUF" + bytes(60))
    return f"{LOOK} --gguf model-q8.gguf"


@mistake(GROUP, "a GGUF file of the safetensors' name")
def _(place: Place) -> str:
    place.model()
    return "models model/model.safetensors --gguf model-q8.gguf"


@mistake(GROUP, "a GGUF file that is a web page")
def _(place: Place) -> str:
    return f"models {place.file('model.gguf', '<!doctype html><title>Sign in</title>')}"


@mistake(GROUP, "a GGUF file that says it has more entries than any")
def _(place: Place) -> str:
    return f"models {place.file('model.gguf', b'GGUF' + struct.pack('<IQQ', 3, 2**60, 9))}"


@mistake(GROUP, "a GGUF file that is cut off")
def _(place: Place) -> str:
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, 5) + struct.pack("<Q", 20) + b"general"
    return f"models {place.file('model.gguf', content)}"


@mistake(GROUP, "GGUF to be quantized")
def _(place: Place) -> str:
    return f"models {sound_gguf(place)} --quantize 8bit --device cpu"


@mistake(GROUP, "a GGUF file of the part that reads pictures")
def _(place: Place) -> str:
    return f"models {sound_gguf(place, 'clip')} --device cpu"


@mistake(GROUP, "a GGUF file of an architecture that transformers does not know")
def _(place: Place) -> str:
    return f"models {sound_gguf(place, 'mamba9')} --device cpu"


@mistake(GROUP, "a pretrained model that was not fetched")
def _(place: Place) -> str:
    return "locate gemma3-270m --task demo/addition"


@mistake(GROUP, "a revision of a pretrained model")
def _(place: Place) -> str:
    return "locate gemma3-270m --task demo/addition --revision main"


@mistake(GROUP, "a pretrained model that is misspelt")
def _(place: Place) -> str:
    return "fetch smolm2"


@mistake(GROUP, "a pretrained model, and an index out of reach", code=1, slow=True, machine=True)
def _(place: Place) -> str:
    return "fetch smollm2 --quiet"


@mistake(GROUP, "no tokenizer")
def _(place: Place) -> str:
    for file in place.model().glob("*token*"):
        file.unlink()
    return LOOK


@mistake(GROUP, "tokenizer.json is not JSON")
def _(place: Place) -> str:
    (place.model() / "tokenizer.json").write_text("{")
    return LOOK


@mistake(GROUP, "the tokenizer of another model: more words than there are embeddings")
def _(place: Place) -> str:
    file = place.model() / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        word: number + 40 * (number > 2) for word, number in vocabulary.items()
    }
    file.write_text(json.dumps(content))
    return LOOK


@mistake(GROUP, "a model that brings its own Python code")
def _(place: Place) -> str:
    model = place.model()
    changed(
        model / "config.json",
        model_type="mine",
        auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    )
    (model / "mine.py").write_text("raise SystemExit('its code was run')\n")
    return LOOK


@mistake(GROUP, "a device that this machine does not have")
def _(place: Place) -> str:
    place.model()
    return "models model --device cuda:7"


@mistake(GROUP, "a device that there is not")
def _(place: Place) -> str:
    place.model()
    return "models model --device gpu"


@mistake(GROUP, "a dtype that there is not")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --dtype float31"


@mistake(GROUP, "a quantization that there is not")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --quantize 3bit"


@mistake(GROUP, "projections named by hand that match nothing")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --projections model.layers.{{layer}}.attn.out"


@mistake(GROUP, "projections named by hand that are no projections")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --projections model.layers.{{layer}}.mlp"


@mistake(GROUP, "projections named by hand without a layer")
def _(place: Place) -> str:
    place.model()
    return f"{LOOK} --projections model.layers.0.self_attn.o_proj"
