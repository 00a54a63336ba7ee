"""Attention of rows of any lengths to themselves and to shared segments, in two kernels for all.

A product for each row would have the host start more operations, the more rows a pass has. So on a
GPU rows that are read from their beginning are given, end to end and with the places where each
ends, to the flash attention that torch brings. It also says the logarithm of the weight that each
part deserves, by which two parts become one.

Axes as in `attention.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
WIDEST, STEP = 256, 8  # of a head: what the kernel knows
OLDEST = (8, 0)  # compute capability
Read = Float[Tensor, "tokens heads width"]
Weight = Float[Tensor, "tokens heads"]


def reads_ragged(queries: Tensor, values: Tensor) -> bool:
    """Say whether the kernel takes such queries and values."""
    width = queries.shape[-1]
    return (
        queries.device.type == "cuda"
        and torch.version.hip is None  # whose kernel gives weights in another layout
        and queries.dtype in HALVES
        and queries.stride(-1) == values.stride(-1) == 1
        and width == values.shape[-1]
        and width <= WIDEST
        and width % STEP == 0
        and torch.cuda.get_device_capability(queries.device) >= OLDEST
    )


@dataclass(frozen=True, eq=False)
class Lengths:
    """Where rows that stand end to end begin and end, and how long the longest is."""

    ends: Int[Tensor, " rows_and_one"]  # the first is 0
    longest: int


@dataclass(frozen=True, eq=False)
class Pairs:
    """Rows of queries, and the rows of keys that each of them reads."""

    asking: Lengths
    read: Lengths


def attend_pairs(
    queries: Float[Tensor, "heads tokens width"],
    keys: Float[Tensor, "groups keys width"],
    values: Float[Tensor, "groups keys width"],
    pairs: Pairs,
    scale: float,
    *,
    causal: bool,
) -> tuple[Read, Weight]:
    """Attend row by row; also the logarithm of the weight that what was read deserves.

    Where it is `causal`, the last query of a row reads all its keys, the one before all but one.
    """
    read, weight, *_ = torch.ops.aten._flash_attention_forward(
        *(each.transpose(0, 1) for each in (queries, keys, values)),
        pairs.asking.ends,
        pairs.read.ends,
        pairs.asking.longest,
        pairs.read.longest,
        0.0,
        causal,
        False,
        scale=scale,
    )
    return read, weight.transpose(0, 1)


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """A pass's rows, end to end: what they read of themselves, and of the segments that they read.

    Neighbours that read one segment are a run of it; `shared` pairs runs with their segments.
    """

    own: Pairs
    shared: Pairs | None
    segments: Sequence[Any]  # of each run

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, Any]], device: torch.device) -> "RaggedRows":
        """Describe rows: asking tokens, tokens, and a segment, which each row has or none."""
        runs: list[list[Any]] = []
        for asking, _, segment in rows:
            if runs and runs[-1][1] is segment:
                runs[-1][0] += asking
            else:
                runs.append([asking, segment])
        counts = [[row[0] for row in rows], [row[1] for row in rows]]
        segments = [segment for _, segment in runs if segment is not None]
        assert len(segments) in (0, len(runs)), "some rows read a segment and others none"
        if segments:
            counts += [[run[0] for run in runs], [segment.length for segment in segments]]
        every = [place for each in counts for place in (0, *accumulate(each))]
        host = torch.tensor(every, dtype=torch.int32, pin_memory=device.type == "cuda")
        ends = host.to(device, non_blocking=True).split([len(each) + 1 for each in counts])
        found = [Lengths(e, max(each)) for e, each in zip(ends, counts, strict=True)]
        return cls(Pairs(*found[:2]), Pairs(*found[2:]) if segments else None, segments)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Read:
        """Return what each head reads for each asking token."""
        own, weight = attend_pairs(queries, keys, values, self.own, scale, causal=True)
        if self.shared is None:
            return own
        kept = torch.cat([each.keys[layer] for each in self.segments], 1)
        kept_values = torch.cat([each.values[layer] for each in self.segments], 1)
        read, before = attend_pairs(queries, kept, kept_values, self.shared, scale, causal=False)
        share = torch.sigmoid(before - weight)[..., None]
        merged: Read = (own + share * (read - own)).to(own.dtype)
        return merged
