"""Load a model, find and prove its heads, and say who it is."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import GatedRepoError, StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from caploc.errors import BadOption, CaplocError, ModelRefused, OutOfMemory
from caploc.grid import Grid
from caploc.heads import HeadGrid
from caploc.lookup import pick
from caploc.models.cutting import Projections
from caploc.models.projections import Naming, locate
from caploc.models.proof import prove
from caploc.models.sources import Source, check_files, find, gated

DTYPES: dict[str, str | torch.dtype] = {
    "auto": "auto",  # the checkpoint's own
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class CutModel:
    """A model that has passed a proof, with what is needed to ask it and to knock out its parts.

    `projections` has an entry for each layer: what reads the layer's parts, or None where it has
    none. `fingerprint` changes whenever the weights or the config do.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    grid: Grid
    projections: Projections
    name: str
    fingerprint: str
    dtype: str
    device: torch.device


@dataclass(frozen=True)
class LoadedModel(CutModel):
    """A model whose parts are its attention heads, read by the attention output projections."""

    grid: HeadGrid


def load_model(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    projections: Naming = None,
) -> LoadedModel:
    """Load a model from a folder, from the Hugging Face Hub, or the `demo` inside the package.

    `device` is auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:N or mps; `dtype` is auto (the
    checkpoint's own), float32, bfloat16 or float16. Weights are read from safetensors only.
    `projections` names the attention output projections by hand; see `projections.locate`.

    Raises:
        UnknownName: if there is no such model, revision or dtype.
        BadOption: if there is no such device here.
        ModelRefused: if it cannot be loaded, or its heads are not found or fail the proof.
        OutOfMemory: if the weights do not fit on the device.
    """
    where, weights_dtype = pick_device(device), pick(DTYPES, dtype, "dtype")
    source = find(name, revision)
    _check_source(source, trust_remote_code, projections)
    tokenizer = _tokenizer(source, trust_remote_code)
    model = _weights(source, weights_dtype, trust_remote_code)
    try:
        model.to(where)  # type: ignore[arg-type]  # the stub wants a module
    except torch.OutOfMemoryError:
        raise OutOfMemory(
            f"The weights of {name} do not fit on {where}; free its memory, choose another device, "
            "or load with dtype='bfloat16'."
        ) from None
    outputs, grid = locate(model, projections)
    prove(model, outputs, grid)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        grid=grid,
        projections=outputs,
        name=name,
        fingerprint=source.fingerprint(),
        dtype=str(model.dtype).removeprefix("torch."),
        device=model.device,
    )


def check_model(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    projections: Naming = None,
) -> HeadGrid:
    """Refuse whatever can be refused before weights are read; return the grid the model will have.

    The model is built without weights, so this costs little; what only weights can show (the
    proof) is left to `load_model`, which takes the same arguments.

    Raises:
        UnknownName: if there is no such model, revision or dtype.
        BadOption: if there is no such device here.
        ModelRefused: if files are missing, or the heads are not found.
    """
    pick_device(device)
    pick(DTYPES, dtype, "dtype")
    return _check_source(find(name, revision), trust_remote_code, projections)


def model_shape(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> tuple[HeadGrid, int]:
    """The heads and the number of parameters of a model of which only the config.json is needed.

    Raises:
        UnknownName: if there is no such model or revision.
        ModelRefused: if it has no configuration, or the heads are not found.
    """
    source = find(name, revision)
    if "config.json" not in source.files:
        raise ModelRefused(f"{source.name} has no config.json, so it is no transformers model.")
    empty = _empty(source, trust_remote_code)
    return locate(empty)[1], sum(parameter.numel() for parameter in empty.parameters())


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The model's tokenizer alone; one without a padding token pads with its end-of-text token.

    Raises:
        UnknownName: if there is no such model.
        ModelRefused: if it has no tokenizer that can be loaded.
    """
    source = find(name, revision)
    check_files(source)
    return _tokenizer(source, trust_remote_code)


def pick_device(name: str) -> torch.device:
    """The device of that name; auto is CUDA, else MPS, else CPU.

    Raises:
        BadOption: if the name is none, or the device is not here.
    """
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    present[:0] = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise BadOption(f"There is no device {name!r} here; choose auto or {', '.join(present)}.")
    return torch.device(wanted)


def _check_source(source: Source, trust_remote_code: bool, naming: Naming) -> HeadGrid:
    check_files(source)
    return locate(_empty(source, trust_remote_code), naming)[1]


def _empty(source: Source, trust_remote_code: bool) -> PreTrainedModel:
    """The model without values, from its configuration alone."""
    with _one_sentence(source.name):
        config = AutoConfig.from_pretrained(
            source.place, revision=source.revision, trust_remote_code=trust_remote_code
        )
        _refuse_other_models(source.name, config)
        # on the meta device a model has its modules and shapes, and no values
        with torch.device("meta"):
            empty: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=trust_remote_code
            )
    return empty


def _refuse_other_models(name: str, config: PretrainedConfig) -> None:
    own_code = getattr(config, "auto_map", None) or {}
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return
    if "AutoModelForCausalLM" not in own_code:
        raise ModelRefused(
            f"{name} is a {config.model_type} model, which does not continue text; give a causal "
            "language model."
        )


def _tokenizer(source: Source, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    with _one_sentence(f"The tokenizer of {source.name}"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.place, revision=source.revision, trust_remote_code=trust_remote_code
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _weights(source: Source, dtype: str | torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    with _one_sentence(source.name):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.place,
            revision=source.revision,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            output_loading_info=True,
        )
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if absent:  # transformers would fill them with random numbers and go on
        raise ModelRefused(
            f"{source.name} lacks {len(absent)} of its weights, {absent[0]!r} among them; the "
            "files are incomplete, or the config belongs to another model."
        )
    return model.eval().requires_grad_(False)


@contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Turn what the libraries raise for a model they cannot load into one sentence for the user."""
    try:
        yield
    except CaplocError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RuntimeError,
        ImportError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        raise _explained(what, error) from error


def _explained(what: str, error: Exception) -> ModelRefused:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return gated(what)
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    if "trust_remote_code" in text:
        return ModelRefused(
            f"{what} brings its own program code; if you trust it, pass trust_remote_code=True."
        )
    short = " ".join(text.split()).rstrip(".")[:200]
    if isinstance(error, json.JSONDecodeError) or "valid JSON" in text:
        return ModelRefused(f"{what} has a file that is not valid JSON ({short}).")
    return ModelRefused(
        f"{what} cannot be loaded with transformers {transformers.__version__} "
        f"({type(error).__name__}: {short})."
    )
