"""Load a model, find and prove its heads, and say who it is."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import GatedRepoError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from caploc.components import Grid, Heads
from caploc.errors import BadOption, CaplocError, ModelRefused, OutOfMemory, pick
from caploc.models.cutting import Projections
from caploc.models.devices import SPREAD, pick_device
from caploc.models.gguf import mend_tokenizer, unmark_quantized
from caploc.models.guard import check_pair, not_causal
from caploc.models.placement import (
    check_fit,
    check_quantization,
    computing_dtype,
    dtype_label,
    input_device,
    is_quantized,
    memory_limits,
    quantization,
)
from caploc.models.projections import find_projections
from caploc.models.proof import prove_heads
from caploc.models.sources import ModelSource, check_model_files, find_source, gated_error

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
    none. `fingerprint` changes whenever the weights or the config do; `dtype` also says how weights
    are quantized. `device` takes the model's input.
    `uncovered` names what no mask cuts though it does the same work as the parts.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    grid: Grid
    projections: Projections
    name: str
    fingerprint: str
    dtype: str
    device: torch.device
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedModel(CutModel):
    """A model whose parts are its attention heads, read by the attention output projections."""

    grid: Heads


def load_model(  # noqa: PLR0913  (what a command can say of a model)
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model.

    `name` is a folder, a model on the Hugging Face Hub, a GGUF file, or one that `caploc models
    fetch` got (`smollm2`). The weights of a GGUF file are dequantized, and tokenizer and config are
    those inside it.

    `device` is auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:N, mps or spread (layers over all
    devices, then main memory, then disk); `dtype` is auto (the checkpoint's own), float32, bfloat16
    or float16. `quantize` is 8bit or 4bit: see docs/models.md. Other weights are read from
    safetensors only.

    Raises:
        UnknownName: if there is no such model, revision, dtype or quantization.
        BadOption: if there is no such device here, or a package is missing.
        ModelRefused: if it cannot be loaded, or its heads are not found or fail the proof.
        OutOfMemory: if the weights do not fit on the device.
    """
    weights = choose_weights(name, device, dtype, quantize, revision, trust_remote_code)
    weights.check()
    source = weights.source
    tokenizer = _read_tokenizer(source, trust_remote_code)
    check_pair(source.name, weights.empty, tokenizer)  # before weights are read
    return prove_model(
        name,
        weights.load(),
        tokenizer,
        fingerprint=source.fingerprint,
        quantize=quantize,
    )


def prove_model(  # noqa: PLR0913  (what the two ways in know of a model)
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    fingerprint: Callable[[], str],
    quantize: str | None = None,
) -> LoadedModel:
    """Take a model with its tokenizer, whoever loaded them: both checked, its heads proved.

    The tokenizer is made ready; see `check_pair`. Raises ModelRefused.
    """
    check_pair(name, model, tokenizer)
    sites, grid = find_projections(model)
    uncovered = prove_heads(model, sites, grid)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        grid=grid,
        projections=sites,
        name=name,
        fingerprint=fingerprint(),
        dtype=dtype_label(model, quantize),
        device=input_device(model),
        uncovered=uncovered,
    )


def choose_weights(  # noqa: PLR0913  (what a command can say of a model)
    name: str,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> "Weights":
    """Find the weights that `load_model` would read for the same arguments."""
    spread, weights_dtype = device == SPREAD, pick(DTYPES, dtype, "dtype")
    where, source = pick_device("auto" if spread else device), find_source(name, revision)
    return Weights(source, where, spread, weights_dtype, quantize, trust_remote_code)


@dataclass(frozen=True)
class Weights:
    """Which weights are to be loaded, and how.

    They go to one `device`, or `spread`: layer by layer over all, then main memory, then disk.
    """

    source: ModelSource
    device: torch.device
    spread: bool
    dtype: str | torch.dtype
    quantize: str | None
    trust_remote_code: bool

    @cached_property
    def empty(self) -> PreTrainedModel:
        return _empty_model(self.source, self.trust_remote_code)

    @property
    def quantized(self) -> bool:
        """Whether weights will be quantized; such a model cannot be moved once it is loaded."""
        return self.quantize is not None or is_quantized(self.empty.config)

    def check(self) -> Heads:
        """Refuse what can be refused before weights are read; return the heads the model will have.

        The model is built without weights, so this costs little; the proof needs them.
        """
        check_model_files(self.source)
        name, config = self.source.name, self.empty.config
        _, grid = find_projections(self.empty)
        if self.source.gguf is not None and self.quantize is not None:
            raise BadOption(
                f"The weights of {name} are dequantized as they are read; leave out --quantize "
                f"{self.quantize}, or load with --dtype bfloat16."
            )
        check_quantization(name, config, self.quantize)
        if not (self.spread or self.quantized):
            size = computing_dtype(config, self.dtype).itemsize
            check_fit(name, self.empty, size, self.device)
        return grid

    def load(self) -> PreTrainedModel:
        try:
            model = _read_weights(self.source, self.arguments())
            if not (self.spread or self.quantized):
                model.to(self.device)  # type: ignore[arg-type]  # the stub wants a module
        except torch.OutOfMemoryError:
            raise OutOfMemory(
                f"The weights of {self.source.name} do not fit on {self.device}; free its "
                "memory, spread them (--device spread), quantize them (--quantize 8bit), or load "
                "with dtype='bfloat16'."
            ) from None
        return model

    def arguments(self) -> dict[str, Any]:
        """Return what `from_pretrained` takes beside the model's name."""
        own = self.dtype == "auto" and self.source.gguf is not None
        arguments: dict[str, Any] = {
            "dtype": torch.float32 if own else self.dtype,  # a GGUF names none
            "trust_remote_code": self.trust_remote_code,
        }
        if self.quantize is not None:
            products = computing_dtype(self.empty.config, self.dtype)
            arguments["quantization_config"] = quantization(self.quantize, products)
        if self.spread:
            folder = tempfile.mkdtemp(prefix="caploc-weights-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            spread = {"device_map": "auto", "offload_folder": folder}
            return arguments | spread | {"max_memory": memory_limits()}
        if self.quantized:
            arguments["device_map"] = {"": self.device}
        return arguments


def convert(source: ModelSource, target: Path, dtype: str, ends: Sequence[str] = ()) -> None:
    """Write a model as safetensors with its config and tokenizer, as transformers loads it.

    At any token of `ends` it will stop; at its own if there are none.
    """
    cpu, own = torch.device("cpu"), pick(DTYPES, dtype, "dtype")
    weights = Weights(source, cpu, False, own, quantize=None, trust_remote_code=False)
    weights.check()
    tokenizer, model = _read_tokenizer(source, False), weights.load()
    if ends:
        numbers: Any = tokenizer.convert_tokens_to_ids(list(ends))
        model.generation_config.eos_token_id = numbers if len(numbers) > 1 else numbers[0]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def load_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer alone; one without a padding token pads with its end-of-text token.

    Raises UnknownName if there is no such model; ModelRefused if it has no tokenizer that can be
    loaded.
    """
    source = find_source(name, revision)
    check_model_files(source)
    return _read_tokenizer(source, trust_remote_code)


def _empty_model(source: ModelSource, trust_remote_code: bool) -> PreTrainedModel:
    """Build the model without values, from its configuration alone."""
    with _one_sentence(source.name):
        config = AutoConfig.from_pretrained(
            source.place, trust_remote_code=trust_remote_code, **source.which
        )
        own_code = getattr(config, "auto_map", None) or {}
        if (
            config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            and "AutoModelForCausalLM" not in own_code
        ):
            raise not_causal(source.name, config.model_type)
        # on the meta device a model has its modules and shapes, and no values
        with torch.device("meta"):
            empty: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=trust_remote_code
            )
    return empty


def _read_tokenizer(source: ModelSource, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load the tokenizer; one without a padding token pads with its end-of-text token."""
    with _one_sentence(f"The tokenizer of {source.name}"):
        tokenizer = AutoTokenizer.from_pretrained(
            source.place, trust_remote_code=trust_remote_code, **source.which
        )
    if source.gguf is not None:
        mend_tokenizer(tokenizer, source.gguf)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # What tokenizers 0.23 remembers of words it never gives back, not even with the tokenizer;
    # whoever runs many studies in a process loads many. `RequestEncoder` remembers texts.
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if hasattr(model, "_resize_cache"):
        model._resize_cache(0)
    return tokenizer


def _read_weights(source: ModelSource, arguments: dict[str, Any]) -> PreTrainedModel:
    """Load the model with its weights; `arguments` go to `from_pretrained`."""
    with _one_sentence(source.name):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.place,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            **source.which,
            **arguments,
        )
    model, report = loaded
    if source.gguf is not None:
        unmark_quantized(model)
    for weight, there, here in sorted(report["mismatched_keys"]):
        raise ModelRefused(
            f"{source.name} holds {weight!r} in the shape {tuple(there)}, and its config.json says "
            f"{tuple(here)}; the two belong to different models."
        )
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
    except (CaplocError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a config that makes no sense fails anywhere, in any way
        raise _explained(what, error) from error


def _explained(what: str, error: Exception) -> ModelRefused:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GatedRepoError):
            return gated_error(what)
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    if "trust_remote_code" in text:
        return ModelRefused(
            f"{what} brings its own program code; if you trust it, pass trust_remote_code=True "
            "(--trust-remote-code), and it runs with your rights."
        )
    short = " ".join(text.split()).rstrip(".")[:200]
    return ModelRefused(
        f"{what} cannot be loaded with transformers {transformers.__version__} "
        f"({type(error).__name__}: {short}); get its files again, or name another model."
    )
