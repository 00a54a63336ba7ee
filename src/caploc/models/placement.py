"""Where a model's weights go, whether they fit there, how they are quantized, who shares them.

Processes that share one model hold some heads of every layer each, and all run every pass.
`torchrun` starts them. The first one leads: it alone reads tasks, decides and writes; the others
follow. A pass ends only when every process runs it, so that whatever depends on time, free memory
or a tie between two tokens is decided by the leader and told to the others. Messages are JSON, sent
as bytes: nothing that a process receives is run.
"""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import psutil
import torch
import torch.distributed as dist
from accelerate.utils import convert_file_size_to_int, get_max_memory
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Split
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel, TorchAoConfig

from caploc.errors import BadOption, ModelRefused, OutOfMemory, pick
from caploc.heads import HeadGrid
from caploc.models.cutting import Projections, Shard
from caploc.process import launched, processes

SHARD = "shard"
HOW = "torchrun --nproc-per-node 2 -m caploc locate ... --device shard"
# A leader may work by itself for long, on programs that a model wrote or on a regression.
PATIENCE = timedelta(days=7)
BUSY = timedelta(minutes=30)  # of one step of a pass; more means that a process is gone


@dataclass(eq=False)
class Team:
    """The processes of one model: this one's number, how many there are, and how they talk.

    While the leader runs a command the others wait for what they are told (`waiting`): it must not
    start a pass, or load a model, alone.
    """

    rank: int
    size: int
    talk: Any  # a process group on the host, whatever device the model is on
    waiting: bool = False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def tell(self, message: Any) -> None:
        written = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(written)]), 0, group=self.talk)
        dist.broadcast(written, 0, group=self.talk)

    def hear(self) -> Any:
        length = torch.zeros(1, dtype=torch.long)
        dist.broadcast(length, 0, group=self.talk)
        written = torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(written, 0, group=self.talk)
        return json.loads(written.numpy().tobytes())

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """Return the leader's numbers; all processes must ask at the same moment, for as many."""
        told = torch.tensor(list(numbers), dtype=torch.float64)
        dist.broadcast(told, 0, group=self.talk)
        return told.tolist()

    def least(self, number: float) -> float:
        told = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self.talk)
        return float(told)

    def part(self) -> None:
        """End all connections: their threads must not run on while the process is taken down."""
        join_team.cache_clear()
        dist.destroy_process_group()


@cache
def join_team() -> Team:
    """Meet the other processes; raises BadOption if this process was started alone."""
    if not launched():
        raise BadOption(f"--device {SHARD} shares a model among processes; start them: {HOW}")
    if not dist.is_initialized():
        on_cuda = torch.cuda.is_available()
        if on_cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=BUSY)
    talk = dist.new_group(backend="gloo", timeout=PATIENCE)
    return Team(dist.get_rank(), dist.get_world_size(), talk)


def gather_team() -> Team:
    """Return the team, all of it ready to load a model.

    Raises BadOption if this process was started alone, or the others wait for what they are told.
    """
    team = join_team()
    if team.waiting:
        raise BadOption(
            f"This command does not know models that processes share (--device {SHARD}); start it "
            "without torchrun, and use --device spread if one GPU is too small."
        )
    return team


def check_shardable(name: str, config: PretrainedConfig, grid: HeadGrid) -> int:
    """Count the processes; refuse a model whose heads they cannot share evenly.

    Raises BadOption if this process was started alone; ModelRefused if transformers has no plan for
    the model, or a head would be torn apart.
    """
    if not launched():
        raise BadOption(f"--device {SHARD} shares a model among processes; start them: {HOW}")
    size = processes()
    if not getattr(config, "base_model_tp_plan", None):
        raise ModelRefused(
            f"transformers has no plan to share a {config.model_type} model among processes; use "
            "--device spread in one process."
        )
    counts = {
        number
        for heads, group in zip(grid.heads_per_layer, grid.group_sizes, strict=True)
        for number in (heads, heads // group)
        if heads
    }
    torn = sorted(count for count in counts if count % size)
    if torn:
        raise ModelRefused(
            f"{name} has layers with {torn[0]} heads, or key-value heads, which {size} processes "
            "cannot share evenly; start torchrun with a number of processes that divides "
            f"{', '.join(map(str, sorted(counts)))}."
        )
    return size


def shard_projections(
    projections: Sequence[nn.Module | None], grid: HeadGrid, team: Team
) -> Projections:
    """Pair each projection with the heads of its layer that this process holds."""
    sites: list[Shard | None] = []
    for projection, heads in zip(projections, grid.heads_per_layer, strict=True):
        if projection is None:
            sites.append(None)
            continue
        weight: Any = projection.weight
        if not isinstance(weight, DTensor) or weight.placements != (Split(weight.ndim - 1),):
            raise ModelRefused(
                "transformers' plan for this model does not split its output projections by head, "
                "so that heads cannot be cut where they are; use --device spread in one process."
            )
        each = heads // team.size
        sites.append(Shard(projection, slice(team.rank * each, (team.rank + 1) * each)))
    return sites


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor: all of it, unless it is shared."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


SPREAD = "spread"
LIMITS = f"write {SPREAD}:cuda:0=70GiB,cpu=200GiB; what exceeds all limits is read from disk"
GPU_SHARE, SHARE = 0.8, {"cpu": 0.9}  # of the free memory, for weights that are spread
ROOM = 1.05  # times the weights' own bytes: buffers, and what the allocator rounds up


@dataclass(frozen=True)
class Placement:
    """Where weights go: on one `device`, or `shared` among processes, or `spread`.

    That is layer by layer over every device there is (of each at most `limits`, in bytes), then
    into main memory, then on disk.
    """

    device: torch.device
    shared: bool = False
    spread: bool = False
    limits: dict[int | str, int] = field(default_factory=dict)


def parse_placement(name: str) -> Placement:
    """Understand a device's name: auto, cpu, cuda, cuda:N, mps, spread, spread:LIMITS or shard."""
    kind, colon, rest = name.partition(":")
    if kind == SPREAD:
        limits = _limits(rest) if colon else {}
        return Placement(pick_device("auto"), spread=True, limits=limits)
    if name == SHARD:
        cuda = launched() and torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        return Placement(device, shared=True)
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
            f"There is no device {name!r} here; choose auto, {', '.join(present)}, {SPREAD} (over "
            f"all of them) or {SHARD} (among processes)."
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


def check_fit(name: str, needed: float, where: Placement, processes: int = 1) -> None:
    """Refuse weights of so many bytes that the device has no room for.

    Weights that are spread always fit: what exceeds memory stays on disk.
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
