"""Where a model's weights go, whether they fit there, and how they are quantized."""

from importlib.util import find_spec
from typing import Any

import psutil
import torch
from accelerate.utils import get_max_memory
from torch import nn
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from caploc.errors import BadOption, OutOfMemory, pick
from caploc.models.devices import SPREAD

GPU_SHARE, SHARE = 0.8, {"cpu": 0.9}  # of the free memory, for weights that are spread
SCHEMES = {"8bit": "LLM.int8()", "4bit": "NF4"}  # of bitsandbytes


def memory_limits() -> dict[int | str, int]:
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


def check_fit(name: str, model: PreTrainedModel, size: int, device: torch.device) -> None:
    """Refuse weights, of so many bytes each, that the device has no room for."""
    needed, free = model.num_parameters() * size, free_memory(device)
    if needed > free:
        raise OutOfMemory(
            f"The weights of {name} take {needed / 2**30:.3g} GiB, and {device} has "
            f"{free / 2**30:.3g} GiB free; spread them over all devices, main memory and disk "
            f"(--device {SPREAD}), or quantize them (--quantize 8bit or 4bit)."
        )


def check_quantization(name: str, config: PretrainedConfig, scheme: str | None) -> None:
    """Refuse a scheme that there is not, or that cannot be used here."""
    if scheme is None:
        return
    pick(SCHEMES, scheme, "quantization")
    if (method := carried_method(config)) is not None:
        raise BadOption(f"{name} is quantized already ({method}); leave out --quantize {scheme}.")
    if find_spec("bitsandbytes") is None:
        raise BadOption(
            f"--quantize {scheme} needs bitsandbytes, which is not installed; pip install "
            "'caploc[quantized]'."
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


def quantization(scheme: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return what `from_pretrained` quantizes by; products are computed in `dtype`."""
    if scheme == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def computing_dtype(config: PretrainedConfig, dtype: str | torch.dtype) -> torch.dtype:
    """Return the type that `dtype` means: auto is the checkpoint's own."""
    own: Any = config.dtype if dtype == "auto" else dtype
    return own if isinstance(own, torch.dtype) else torch.float32
