"""On which devices a model's weights go, and whether they fit there."""

import re
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from accelerate.utils import convert_file_size_to_int, get_max_memory
from torch import nn
from transformers import PreTrainedModel

from caploc.errors import BadOption, OutOfMemory
from caploc.launching import launched
from caploc.models.sharding import SHARD

ONE, SPREAD = "one", "spread"
LIMITS = f"write {SPREAD}:cuda:0=70GiB,cpu=200GiB; what exceeds all limits is read from disk"
GPU_SHARE, SHARE = 0.8, {"cpu": 0.9}  # of the free memory, for weights that are spread
ROOM = 1.05  # times the weights' own bytes: buffers, and what the allocator rounds up


@dataclass(frozen=True)
class Placement:
    """Where weights go: on one `device`, spread over all (`limits` in bytes), or shared."""

    kind: str
    device: torch.device
    limits: dict[int | str, int] = field(default_factory=dict)

    @property
    def spread(self) -> bool:
        """Whether layers go on every device there is, then into main memory, then on disk."""
        return self.kind == SPREAD

    @property
    def shared(self) -> bool:
        """Whether this is one of several processes that share the model."""
        return self.kind == SHARD


def place(name: str) -> Placement:
    """Understand a device's name: auto, cpu, cuda, cuda:N, mps, spread, spread:LIMITS or shard.

    Raises:
        BadOption: if it is none of them, or the device is not here.
    """
    kind, colon, rest = name.partition(":")
    if kind == SPREAD:
        return Placement(SPREAD, pick_device("auto"), _limits(rest) if colon else {})
    if name == SHARD:
        if not launched():
            return Placement(SHARD, torch.device("cpu"))
        cuda = torch.cuda.is_available()
        return Placement(
            SHARD,
            torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"),
        )
    return Placement(ONE, pick_device(name))


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
        raise BadOption(
            f"There is no device {name!r} here; choose auto, {', '.join(present)}, {SPREAD} (over "
            f"all of them) or {SHARD} (among processes)."
        )
    return torch.device(wanted)


def usual_limits() -> dict[int | str, int]:
    """What weights may take of each device: they leave room for batches on GPUs."""
    present: dict[int | str, int] = get_max_memory()
    return {name: int(SHARE.get(str(name), GPU_SHARE) * size) for name, size in present.items()}


def home(model: PreTrainedModel) -> torch.device:
    """The device that takes a model's input; where weights wait elsewhere, that they come to."""
    if model.device.type != "meta":
        return model.device
    embedding: Any = model.get_input_embeddings()
    where = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return torch.device("cpu" if where is None else where)


def whole(model: PreTrainedModel) -> bool:
    """Whether every weight is here, plain and in one place, so that it can be read and changed."""
    parameters = list(model.parameters())
    plain = all(type(p) is nn.Parameter and p.is_floating_point() for p in parameters)
    return (
        plain and len({p.device for p in parameters}) == 1 and parameters[0].device.type != "meta"
    )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    return int(psutil.virtual_memory().available)


def check_fit(name: str, needed: float, where: Placement, processes: int = 1) -> None:
    """Refuse weights of so many bytes that the device has no room for.

    Weights that are spread always fit: what exceeds memory stays on disk.

    Raises:
        OutOfMemory: saying what to do.
    """
    free, each = free_memory(where.device), ROOM * needed / processes
    if where.spread or each <= free:
        return
    share = f"; each of {processes} processes holds {_size(each)}" if processes > 1 else ""
    raise OutOfMemory(
        f"The weights of {name} take {_size(ROOM * needed)}{share}, and {where.device} has "
        f"{_size(float(free))} free; spread them over all devices, main memory and disk "
        f"(--device {SPREAD}), quantize them (--quantize 8bit or 4bit), or share them among "
        f"more processes (torchrun, --device {SHARD})."
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.3g} GiB"


def _limits(text: str) -> dict[int | str, int]:
    """`cuda:0=70GiB,cpu=200GiB` as accelerate takes it, GPUs by number."""
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
