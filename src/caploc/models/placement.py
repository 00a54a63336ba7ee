"""Where a model's weights go, whether they fit there, and how they are quantized."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from accelerate.utils import convert_file_size_to_int, get_max_memory
from torch import nn
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel, TorchAoConfig

from caploc.errors import BadOption, OutOfMemory, pick

SPREAD = "spread"
LIMITS = f"write {SPREAD}:cuda:0=70GiB,cpu=200GiB; what exceeds all limits is read from disk"
GPU_SHARE, SHARE = 0.8, {"cpu": 0.9}  # of the free memory, for weights that are spread
ROOM = 1.05  # times the weights' own bytes: buffers, and what the allocator rounds up


@dataclass(frozen=True)
class Placement:
    """Where weights go: on one `device`, or `spread`.

    That is layer by layer over every device there is (of each at most `limits`, in bytes), then
    into main memory, then on disk.
    """

    device: torch.device
    spread: bool = False
    limits: dict[int | str, int] = field(default_factory=dict)


def parse_placement(name: str) -> Placement:
    """Understand a device's name: auto, cpu, cuda, cuda:N, mps, spread or spread:LIMITS."""
    kind, colon, rest = name.partition(":")
    if kind == SPREAD:
        limits = _limits(rest) if colon else {}
        return Placement(pick_device("auto"), spread=True, limits=limits)
    return Placement(pick_device(name))


def pick_device(name: str) -> torch.device:
    """Return the device of that name; auto is CUDA, else MPS, else CPU."""
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    present[:0] = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise BadOption(
            f"There is no device {name!r} here; choose auto, {', '.join(present)} or {SPREAD} "
            "(over all of them)."
        )
    return torch.device(wanted)


def usual_limits() -> dict[int | str, int]:
    """Choose what weights may take of each device: they leave room for batches on GPUs."""
    present: dict[int | str, int] = get_max_memory()
    return {name: int(SHARE.get(str(name), GPU_SHARE) * size) for name, size in present.items()}


def input_device(model: PreTrainedModel) -> torch.device:
    """Find the device that takes a model's input; where weights wait elsewhere, they come to it."""
    if model.device.type != "meta":
        return model.device
    embedding: Any = model.get_input_embeddings()
    where = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device("cpu" if where is None else where)


def is_whole(model: PreTrainedModel) -> bool:
    """Tell whether every weight is here, plain and in one place, to be read and changed."""
    parameters = list(model.parameters())
    plain = all(type(p) is nn.Parameter and p.is_floating_point() for p in parameters)
    return plain and len({p.device for p in parameters}) == 1 and not weights_wait(model)


def weights_wait(model: PreTrainedModel) -> bool:
    """Tell whether some weights wait in main memory or on disk until a pass needs them."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def free_memory(device: torch.device) -> int:
    """Return the bytes that can still be taken on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return int(psutil.virtual_memory().available)


def check_fit(name: str, needed: float, where: Placement) -> None:
    """Refuse weights of so many bytes that the device has no room for.

    Weights that are spread always fit: what exceeds memory stays on disk.
    """
    free = free_memory(where.device)
    if where.spread or ROOM * needed <= free:
        return
    raise OutOfMemory(
        f"The weights of {name} take {_size(ROOM * needed)}, and {where.device} has "
        f"{_size(float(free))} free; spread them over all devices, main memory and disk "
        f"(--device {SPREAD}), or quantize them (--quantize 8bit or 4bit)."
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB"


def _limits(text: str) -> dict[int | str, int]:
    """Read `cuda:0=70GiB,cpu=200GiB` as accelerate takes it, GPUs by number."""
    limits: dict[int | str, int] = {}
    for part in text.split(","):
        device, equals, size = part.strip().partition("=")
        number = re.fullmatch(r"cuda:(\d+)", device)
        if not equals or not (number or device in ("cpu", "mps")):
            raise BadOption(f"{part!r} limits no device's memory; {LIMITS}.")
        try:
            limits[int(number[1]) if number else device] = convert_file_size_to_int(size)
        except (ValueError, OverflowError):  # `inf` is a number, and no amount
            raise BadOption(f"{size!r} is no amount of memory; {LIMITS}.") from None
        if number and int(number[1]) >= torch.cuda.device_count():
            raise BadOption(
                f"There is no device {device!r} here, so its memory cannot be limited; there are "
                f"{torch.cuda.device_count()} CUDA devices."
            )
    return limits


@dataclass(frozen=True)
class QuantizationScheme:
    """A way to quantize weights on the fly: the package that does it, and bytes of a weight.

    `config` makes transformers' configuration, from the type that products are computed in.
    """

    package: str
    bytes: float
    config: Callable[[torch.dtype], Any]
    needs_gpu: bool = False


def _torchao(name: str) -> Any:
    return TorchAoConfig(getattr(importlib.import_module("torchao.quantization"), name)())


SCHEMES = {
    "8bit": QuantizationScheme(  # LLM.int8()
        "bitsandbytes", 1.0, lambda dtype: BitsAndBytesConfig(load_in_8bit=True)
    ),
    "4bit": QuantizationScheme(  # NF4, its scales quantized too
        "bitsandbytes",
        0.53,
        lambda dtype: BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        ),
    ),
    "int8": QuantizationScheme("torchao", 1.0, lambda dtype: _torchao("Int8WeightOnlyConfig")),
    "int4": QuantizationScheme(
        "torchao", 0.53, lambda dtype: _torchao("Int4WeightOnlyConfig"), needs_gpu=True
    ),
}
# What transformers asks for to read a checkpoint that was quantized before, and weights' bytes.
CARRIED = {
    "gptq": ("optimum", "gptqmodel"),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "torchao": ("torchao",),
    "compressed-tensors": ("compressed_tensors",),
    "hqq": ("hqq",),
}


def check_quantization(name: str, config: PretrainedConfig, scheme: str | None) -> None:
    """Refuse a scheme, or a quantized checkpoint, that cannot be used here."""
    method = carried_method(config)
    if method is not None:
        if scheme is not None:
            raise BadOption(
                f"{name} is quantized already ({method}); leave out --quantize {scheme}."
            )
        _check_packages(f"{name} is quantized with {method}, which", CARRIED.get(method, ()))
    if scheme is None:
        return
    chosen = pick(SCHEMES, scheme, "quantization")
    _check_packages(f"--quantize {scheme}", (chosen.package,))
    if chosen.needs_gpu and not torch.cuda.is_available():
        raise BadOption(
            f"--quantize {scheme} needs a CUDA device, and there is none here; choose int8, 8bit "
            "or 4bit."
        )


def carried_method(config: PretrainedConfig) -> str | None:
    """Return how the checkpoint was quantized before, in transformers' word; None if it was not."""
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
    return str(getattr(method, "value", method))


def is_quantized(config: PretrainedConfig) -> bool:
    """Tell whether the checkpoint was quantized before, or the model was while it was loaded."""
    return carried_method(config) is not None


def rows_mix(config: PretrainedConfig) -> bool:
    """Tell whether rows of a batch move each other's rounding: LLM.int8() of bitsandbytes."""
    found: Any = getattr(config, "quantization_config", None)
    if isinstance(found, dict):
        return bool(found.get("load_in_8bit"))
    return bool(getattr(found, "load_in_8bit", False))


def dtype_label(model: Any, scheme: str | None) -> str:
    """Name a model's dtype; for quantized weights how, and what products are computed in.

    Models with the same name and weights but other labels give other outcomes.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    kind = scheme or carried_method(model.config)
    return dtype if kind is None else f"{kind}/{dtype}"


def scheme_config(scheme: str | None, config: PretrainedConfig, dtype: str | torch.dtype) -> Any:
    """Return what `from_pretrained` needs to quantize; None for weights as they are."""
    return None if scheme is None else SCHEMES[scheme].config(computing_dtype(config, dtype))


def computing_dtype(config: PretrainedConfig, dtype: str | torch.dtype) -> torch.dtype:
    """Return the type that `dtype` means: auto is the checkpoint's own."""
    own: Any = config.dtype if dtype == "auto" else dtype
    return own if isinstance(own, torch.dtype) else torch.float32


def weight_bytes(scheme: str | None, config: PretrainedConfig, dtype: str | torch.dtype) -> float:
    """Return bytes of one weight once loaded; of a quantized checkpoint as if it were 8 bits."""
    if scheme is not None:
        return SCHEMES[scheme].bytes
    if is_quantized(config):
        return 1.0
    return float(computing_dtype(config, dtype).itemsize)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a processor has instructions that multiply bfloat16; False for any other device."""
    has = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def _check_packages(what: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        extra = "quantized" if missing[0] in ("bitsandbytes", "torchao") else None
        install = f"'caploc[{extra}]'" if extra else " ".join(missing).replace("_", "-")
        raise BadOption(
            f"{what} needs {' and '.join(missing)}, which is not installed; pip install {install}."
        )
