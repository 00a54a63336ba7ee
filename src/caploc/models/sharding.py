"""Processes that share one model: each holds some heads of every layer, and all run every pass.

`torchrun` starts them. The first one leads: it alone reads tasks, decides and writes; the others
follow. A pass ends only when every process runs it, so that whatever depends on time, free memory
or a tie between two tokens is decided by the leader and told to the others.

Messages are JSON, sent as bytes: nothing that a process receives is run.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Split
from transformers import PretrainedConfig

from caploc.errors import BadOption, ModelRefused
from caploc.heads import HeadGrid
from caploc.launching import launched, processes
from caploc.models.cutting import Projections, Shard

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
        """Whether this is the process that decides."""
        return self.rank == 0

    def tell(self, message: Any) -> None:
        """Send JSON to every process that follows."""
        written = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(written)]), 0, group=self.talk)
        dist.broadcast(written, 0, group=self.talk)

    def hear(self) -> Any:
        """Wait for what the leader tells."""
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
        """Return the smallest of all processes' numbers."""
        told = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self.talk)
        return float(told)


_teams: list[Team] = []  # at most one: a process is started once


def join_team() -> Team:
    """Meet the other processes; asked again, return the same team.

    Raises:
        BadOption: if this process was started alone.
    """
    if _teams:
        return _teams[0]
    if not launched():
        raise BadOption(f"--device {SHARD} shares a model among processes; start them: {HOW}")
    if not dist.is_initialized():
        on_cuda = torch.cuda.is_available()
        if on_cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=BUSY)
    talk = dist.new_group(backend="gloo", timeout=PATIENCE)
    _teams.append(Team(dist.get_rank(), dist.get_world_size(), talk))
    return _teams[0]


def gather_team() -> Team:
    """Return the team, all of it ready to load a model.

    Raises:
        BadOption: if this process was started alone, or the others wait for what they are told.
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

    Raises:
        BadOption: if this process was started alone.
        ModelRefused: if transformers has no plan for the model, or a head would be torn apart.
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
    """Pair each projection with the heads of its layer that this process holds.

    Raises:
        ModelRefused: if one is not split by what it reads.
    """
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
