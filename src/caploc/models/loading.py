"""Load a model, find and prove its heads, and say who it is."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.distributed.configuration_utils import DistributedConfig

from caploc.errors import BadOption, ModelRefused, OutOfMemory
from caploc.grid import Grid
from caploc.heads import HeadGrid
from caploc.lookup import pick
from caploc.models.cutting import Projections
from caploc.models.placement import (
    ONE,
    Placement,
    check_fit,
    home,
    place,
    usual_limits,
)
from caploc.models.projections import Naming, locate
from caploc.models.proof import prove
from caploc.models.quantization import (
    carried,
    check_quantization,
    label,
    scheme_config,
    weight_bytes,
)
from caploc.models.reading import empty_model, read_tokenizer, read_weights, refuse_other_words
from caploc.models.sharding import Team, check_shardable, gather, held
from caploc.models.sources import Source, check_files, find

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
    are quantized. `device` takes the model's input. `team` are the processes that share it, if any.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    grid: Grid
    projections: Projections
    name: str
    fingerprint: str
    dtype: str
    device: torch.device
    team: Team | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class LoadedModel(CutModel):
    """A model whose parts are its attention heads, read by the attention output projections."""

    grid: HeadGrid


def load_model(  # noqa: PLR0913  (what a command can say of a model)
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    revision: str | None = None,
    gguf: str | None = None,
    trust_remote_code: bool = False,
    projections: Naming = None,
) -> LoadedModel:
    """Load a model.

    `name` is a folder, a model on the Hugging Face Hub, a GGUF file, one that `caploc fetch` got
    (`smollm2`), or the `demo` inside the package. `gguf` names a GGUF file in the folder or the
    repository; its weights are dequantized, and tokenizer and config are those inside it.

    `device` is auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:N, mps, spread (layers over all
    devices, then main memory, then disk; `spread:cuda:0=70GiB,cpu=200GiB` sets limits) or shard
    (among the processes that torchrun started); `dtype` is auto (the checkpoint's own), float32,
    bfloat16 or float16. `quantize` is 8bit, 4bit, int8 or int4: see docs/large_models.md. Other
    weights are read from safetensors only. `projections` names the attention output projections
    by hand; see `projections.locate`.

    Raises:
        UnknownName: if there is no such model, revision, dtype or quantization.
        BadOption: if there is no such device here, or a package is missing.
        ModelRefused: if it cannot be loaded, or its heads are not found or fail the proof.
        OutOfMemory: if the weights do not fit on the device.
    """
    where, weights_dtype = place(device), pick(DTYPES, dtype, "dtype")
    source = find(name, revision, gguf)
    weights = Weights(source, where, weights_dtype, quantize, trust_remote_code)
    weights.check(projections)
    tokenizer = read_tokenizer(source, trust_remote_code)
    refuse_other_words(source.name, tokenizer, weights.empty)
    team = gather() if where.shared else None
    model = weights.load()
    outputs, grid = locate(model, projections)
    sites = outputs if team is None else held(outputs, grid, team)
    prove(model, sites, grid)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        grid=grid,
        projections=sites,
        name=name,
        fingerprint=source.fingerprint(),
        dtype=label(model, quantize),
        device=home(model),
        team=team,
    )


def check_model(  # noqa: PLR0913  (what a command can say of a model)
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    revision: str | None = None,
    gguf: str | None = None,
    trust_remote_code: bool = False,
    projections: Naming = None,
) -> HeadGrid:
    """Refuse whatever can be refused before weights are read; return the grid the model will have.

    The model is built without weights, so this costs little; what only weights can show (the
    proof) is left to `load_model`, which takes the same arguments.

    Raises:
        UnknownName: if there is no such model, revision, dtype or quantization.
        BadOption: if there is no such device here, or a package is missing.
        ModelRefused: if files are missing, or the heads are not found.
        OutOfMemory: if the weights do not fit on the device.
    """
    where, weights_dtype = place(device), pick(DTYPES, dtype, "dtype")
    source = find(name, revision, gguf)
    return Weights(source, where, weights_dtype, quantize, trust_remote_code).check(projections)


@dataclass(frozen=True)
class Weights:
    """Which weights are to be loaded, where to, and how."""

    source: Source
    where: Placement
    dtype: str | torch.dtype
    quantize: str | None
    trust_remote_code: bool

    @cached_property
    def empty(self) -> PreTrainedModel:
        """The model without values."""
        return empty_model(self.source, self.trust_remote_code)

    @property
    def quantized(self) -> bool:
        """Whether weights will be quantized; such a model cannot be moved once it is loaded."""
        return self.quantize is not None or carried(self.empty.config) is not None

    def check(self, naming: Naming) -> HeadGrid:
        """Refuse what can be refused without weights; the heads that the model will have."""
        check_files(self.source)
        name, config = self.source.name, self.empty.config
        _, grid = locate(self.empty, naming)
        if self.source.gguf is not None:
            self._check_gguf()
        check_quantization(name, config, self.quantize)
        processes = 1
        if self.where.shared:
            processes = check_shardable(name, config, grid)
            if self.quantized:
                raise BadOption(
                    "Quantized weights are not shared among processes; use --device spread, which "
                    "takes them, or leave out --quantize."
                )
        each = weight_bytes(self.quantize, config, self.dtype)
        count = sum(parameter.numel() for parameter in self.empty.parameters())
        check_fit(name, count * each, self.where, processes)
        return grid

    def _check_gguf(self) -> None:
        if self.quantize is not None:
            raise BadOption(
                f"The weights of {self.source.name} are dequantized as they are read; leave out "
                f"--quantize {self.quantize}, or load with --dtype bfloat16."
            )
        if self.where.shared:
            raise BadOption(
                "GGUF weights are not shared among processes; use --device spread, which takes "
                "them."
            )

    def load(self) -> PreTrainedModel:
        """Read the weights, and put them where they belong.

        Raises:
            ModelRefused: if they cannot be read, or some are missing.
            OutOfMemory: if they do not fit.
        """
        try:
            model = read_weights(self.source, self.arguments())
            if self.where.kind == ONE and not self.quantized:
                model.to(self.where.device)  # type: ignore[arg-type]  # the stub wants a module
        except torch.OutOfMemoryError:
            raise OutOfMemory(
                f"The weights of {self.source.name} do not fit on {self.where.device}; free its "
                "memory, spread them (--device spread), quantize them (--quantize 8bit), or load "
                "with dtype='bfloat16'."
            ) from None
        return model

    def arguments(self) -> dict[str, Any]:
        """What `from_pretrained` takes beside the model's name."""
        own = self.dtype == "auto" and self.source.gguf is not None
        arguments: dict[str, Any] = {
            "dtype": torch.float32 if own else self.dtype,  # a GGUF names none
            "trust_remote_code": self.trust_remote_code,
        }
        quantized = scheme_config(self.quantize, self.empty.config, self.dtype)
        if quantized is not None:
            arguments["quantization_config"] = quantized
        if self.where.shared:
            return arguments | {"distributed_config": DistributedConfig(tp_plan="auto")}
        if self.where.spread:
            folder = tempfile.mkdtemp(prefix="caploc-weights-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            limits = self.where.limits or usual_limits()
            return arguments | {
                "device_map": "auto",
                "max_memory": limits,
                "offload_folder": folder,
            }
        if self.quantized:
            arguments["device_map"] = {"": self.where.device}
        return arguments


@cache
def model_shape(name: str, revision: str | None) -> tuple[HeadGrid, int]:
    """The heads and the number of parameters of a model of which only the config.json is needed.

    Raises:
        UnknownName: if there is no such model or revision.
        ModelRefused: if it has no configuration, its GGUF file is not sound, or the heads are not
            found.
    """
    source = find(name, revision)
    if source.gguf is None and "config.json" not in source.files:
        raise ModelRefused(f"{source.name} has no config.json, so it is no transformers model.")
    empty = empty_model(source, trust_remote_code=False)
    return locate(empty)[1], sum(parameter.numel() for parameter in empty.parameters())


def convert(source: Source, target: Path, dtype: str, ends: Sequence[str] = ()) -> None:
    """Write a model as safetensors with its config and tokenizer, as transformers loads it.

    At any token of `ends` it will stop; at its own if there are none.

    Raises:
        ModelRefused, OutOfMemory: if it cannot be loaded.
    """
    weights = Weights(source, place("cpu"), pick(DTYPES, dtype, "dtype"), None, False)
    weights.check(None)
    tokenizer, model = read_tokenizer(source, False), weights.load()
    if ends:
        numbers: Any = tokenizer.convert_tokens_to_ids(list(ends))
        model.generation_config.eos_token_id = numbers if len(numbers) > 1 else numbers[0]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def load_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    gguf: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedTokenizerBase:
    """The model's tokenizer alone; one without a padding token pads with its end-of-text token.

    Raises:
        UnknownName: if there is no such model.
        ModelRefused: if it has no tokenizer that can be loaded.
    """
    source = find(name, revision, gguf)
    check_files(source)
    return read_tokenizer(source, trust_remote_code)
