"""Quantized weights: made while a model is loaded, or brought by its checkpoint."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PretrainedConfig, TorchAoConfig

from caploc.errors import BadOption
from caploc.lookup import pick


@dataclass(frozen=True)
class Scheme:
    """A way to quantize weights on the fly: the package that does it, and bytes of a weight.

    `config` makes transformers' configuration, from the type that products are computed in.
    """

    package: str
    bytes: float
    config: Callable[[torch.dtype], Any]
    needs_gpu: bool = False


def _eight_bits(dtype: torch.dtype) -> Any:
    return BitsAndBytesConfig(load_in_8bit=True)


def _four_bits(dtype: torch.dtype) -> Any:
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _torchao(name: str) -> Callable[[torch.dtype], Any]:
    def config(dtype: torch.dtype) -> Any:
        quantization = importlib.import_module("torchao.quantization")
        return TorchAoConfig(getattr(quantization, name)())

    return config


SCHEMES = {
    "8bit": Scheme("bitsandbytes", 1.0, _eight_bits),  # LLM.int8()
    "4bit": Scheme("bitsandbytes", 0.53, _four_bits),  # NF4, its scales quantized too
    "int8": Scheme("torchao", 1.0, _torchao("Int8WeightOnlyConfig")),
    "int4": Scheme("torchao", 0.53, _torchao("Int4WeightOnlyConfig"), needs_gpu=True),
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
    """Refuse a scheme, or a quantized checkpoint, that cannot be used here.

    Raises:
        UnknownName: if there is no such scheme.
        BadOption: if a package or a GPU is missing, or the checkpoint is quantized already.
    """
    method = carried(config)
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


def carried(config: PretrainedConfig) -> str | None:
    """How the checkpoint was quantized before, in transformers' word; None if it was not."""
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
    return str(getattr(method, "value", method))


def rows_mix(config: PretrainedConfig) -> bool:
    """Whether the rows of a batch move each other's rounding: LLM.int8() of bitsandbytes."""
    found: Any = getattr(config, "quantization_config", None)
    if isinstance(found, dict):
        return bool(found.get("load_in_8bit"))
    return bool(getattr(found, "load_in_8bit", False))


def label(model: Any, scheme: str | None) -> str:
    """A model's dtype by name; for quantized weights how, and what products are computed in.

    Models with the same name and weights but other labels give other outcomes.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    kind = scheme or carried(model.config)
    return dtype if kind is None else f"{kind}/{dtype}"


def scheme_config(scheme: str | None, config: PretrainedConfig, dtype: str | torch.dtype) -> Any:
    """What `from_pretrained` needs to quantize; None for weights as they are."""
    return None if scheme is None else SCHEMES[scheme].config(computed_in(config, dtype))


def computed_in(config: PretrainedConfig, dtype: str | torch.dtype) -> torch.dtype:
    """The type that `dtype` means: auto is the checkpoint's own."""
    own: Any = config.dtype if dtype == "auto" else dtype
    return own if isinstance(own, torch.dtype) else torch.float32


def weight_bytes(scheme: str | None, config: PretrainedConfig, dtype: str | torch.dtype) -> float:
    """Bytes of one weight once loaded; of a checkpoint quantized before, as if it were 8 bits."""
    if scheme is not None:
        return SCHEMES[scheme].bytes
    if carried(config) is not None:
        return 1.0
    return float(computed_in(config, dtype).itemsize)


def _check_packages(what: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        extra = "quantized" if missing[0] in ("bitsandbytes", "torchao") else None
        install = f"'caploc[{extra}]'" if extra else " ".join(missing).replace("_", "-")
        raise BadOption(
            f"{what} needs {' and '.join(missing)}, which is not installed; pip install {install}."
        )
