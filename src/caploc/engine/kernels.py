"""What a GPU does in few operations: products in 32 bits, and flash attention of ragged rows.

A product for each row would have the host start more operations, the more rows a pass has. So on a
GPU rows of any lengths are given, end to end and with the places where each ends, to the flash
attention that torch brings. It also says the logarithm of the weight that each part deserves, by
which two parts become one.

Axes as in `attention.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def pinned(device: torch.device) -> bool:
    """Say whether what is sent to a device goes through memory that it can fetch by itself."""
    return device.type == "cuda"


def send(numbers: Any, device: torch.device, dtype: torch.dtype = torch.long) -> Int[Tensor, "..."]:
    """Put numbers on a device in one copy that the host does not await."""
    host = torch.tensor(numbers, dtype=dtype, pin_memory=pinned(device))
    return host.to(device, non_blocking=True)


@lru_cache
def multiplies_exactly(device: torch.device, dtype: torch.dtype) -> bool:
    """Say whether a device can hand on in 32 bits what it multiplies in 16."""
    one = torch.zeros((1, 1, 1), device=device, dtype=dtype)
    try:
        return dtype.itemsize == 2 and torch.bmm(one, one, out_dtype=torch.float32) is not None
    except torch.OutOfMemoryError:
        raise  # it says nothing of the device
    except (NotImplementedError, RuntimeError):
        return False


def multiply(
    queries: Float[Tensor, "batch asked width"], keys: Float[Tensor, "batch tokens width"]
) -> Float[Tensor, "batch asked tokens"]:
    """Return the products of queries and keys, in float32.

    They are large: rounded to 16 bits they would be off by more than all else together.
    """
    pair = queries, keys.transpose(1, 2)
    if multiplies_exactly(queries.device, queries.dtype):
        return torch.bmm(*pair, out_dtype=torch.float32)
    return torch.bmm(*pair).float()


def scale_first(queries: Tensor, scale: float) -> tuple[Tensor, float]:
    """Scale queries where their products would not fit into 16 bits; also what is left to scale."""
    exact = multiplies_exactly(queries.device, queries.dtype)
    return (queries, scale) if exact else (queries * scale, 1.0)


HALVES = (torch.float16, torch.bfloat16)
WIDEST, STEP = 256, 8  # of a head: what the kernel knows
OLDEST = (8, 0)  # compute capability
Read = Float[Tensor, "tokens heads width"]
Weight = Float[Tensor, "tokens heads"]


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Say whether a device has the kernel for numbers of this type."""
    return (
        device.type == "cuda"
        and torch.version.hip is None  # whose kernel gives weights in another layout
        and dtype in HALVES
        and torch.cuda.get_device_capability(device) >= OLDEST
    )


def reads_ragged(queries: Tensor, values: Tensor) -> bool:
    """Say whether the kernel takes such queries and values."""
    width = queries.shape[-1]
    return (
        has_kernel(queries.device, queries.dtype)
        and queries.stride(-1) == values.stride(-1) == 1
        and width == values.shape[-1]
        and width <= WIDEST
        and width % STEP == 0
    )


@dataclass(frozen=True, eq=False)
class Lengths:
    """Where rows that stand end to end begin and end, and how long the longest is.

    Where it is said how many tokens of each are `used`, `ends` say only where each begins.
    """

    ends: Int[Tensor, " rows_and_one"]  # the first is 0, or where the first begins
    longest: int
    used: Int[Tensor, " rows"] | None = None


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
        seqused_k=pairs.read.used,
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
    def of(cls, rows: Sequence[tuple[int, Any]], device: torch.device) -> "RaggedRows":
        """Describe rows: their tokens, and a segment, which each row has or none."""
        runs: list[list[Any]] = []
        for length, segment in rows:
            if runs and runs[-1][1] is segment:
                runs[-1][0] += length
            else:
                runs.append([length, segment])
        counts = [[length for length, _ in rows]]
        segments = [segment for _, segment in runs if segment is not None]
        assert len(segments) in (0, len(runs)), "some rows read a segment and others none"
        if segments:
            counts += [[run[0] for run in runs], [segment.length for segment in segments]]
        every = [place for each in counts for place in (0, *accumulate(each))]
        ends = send(every, device, torch.int32).split([len(each) + 1 for each in counts])
        found = [Lengths(e, max(each)) for e, each in zip(ends, counts, strict=True)]
        return cls(Pairs(found[0], found[0]), Pairs(*found[1:]) if segments else None, segments)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Read:
        """Return what each head reads for each token."""
        own, weight = attend_pairs(queries, keys, values, self.own, scale, causal=True)
        if self.shared is None:
            return own
        kept = torch.cat([each.keys[layer] for each in self.segments], 1)
        kept_values = torch.cat([each.values[layer] for each in self.segments], 1)
        read, before = attend_pairs(queries, kept, kept_values, self.shared, scale, causal=False)
        return join_parts(own, weight, read, before)


def join_parts(
    own: Float[Tensor, "*tokens heads width"],
    weight: Float[Tensor, "*tokens heads"],
    read: Float[Tensor, "*tokens heads width"],
    before: Float[Tensor, "*tokens heads"],
) -> Float[Tensor, "*tokens heads width"]:
    """Join what was read of two parts; a part of weight -inf counts nothing."""
    share = torch.sigmoid(before - weight)[..., None]
    return torch.addcmul(own, share, read - own).to(own.dtype)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Which running rows read which parts of keys that stand end to end."""

    order: Int[Tensor, " reading"]  # the rows that read some, those of one part side by side
    pairs: Pairs

    @classmethod
    def of(
        cls, parts: Sequence[tuple[Sequence[int], int, int]], device: torch.device
    ) -> "SharedRows":
        """Describe parts: the rows that read each, its first token and its length."""
        order = [row for rows, _, _ in parts for row in rows]
        ends = [0, *accumulate(len(rows) for rows, _, _ in parts)]
        starts, used = [*(start for _, start, _ in parts), 0], [length for *_, length in parts]
        lists = (order, ends, starts, used)
        sent = send([n for each in lists for n in each], device, torch.int32)
        order_there, *there = sent.split([len(each) for each in lists])
        asking = Lengths(there[0], max(len(rows) for rows, _, _ in parts))
        return cls(order_there.long(), Pairs(asking, Lengths(there[1], max(used), there[2])))

    def attend(
        self,
        queries: Float[Tensor, "heads rows width"],
        keys: Float[Tensor, "groups keys width"],
        values: Float[Tensor, "groups keys width"],
        scale: float,
    ) -> tuple[Float[Tensor, "rows heads width"], Float[Tensor, "rows heads"]]:
        """Return what each row reads, and the logarithm of its weight: -inf where it reads none."""
        asked = queries[:, self.order]
        found, its_weight = attend_pairs(asked, keys, values, self.pairs, scale, causal=False)
        heads, rows, width = queries.shape
        read = found.new_zeros((rows, heads, width))
        weight = its_weight.new_full((rows, heads), -torch.inf)
        read[self.order], weight[self.order] = found, its_weight
        return read, weight


def attend_slots(
    queries: Float[Tensor, "heads rows width"],
    keys: Float[Tensor, "slots groups length width"],
    values: Float[Tensor, "slots groups length width"],
    pairs: Pairs,
    scale: float,
) -> tuple[Float[Tensor, "rows heads width"], Float[Tensor, "rows heads"]]:
    """Attend to each row's own keys where they stand, those of row i in slot i; see `slot_pairs`.

    To the kernel each key-value head of a row is a row of its own with one head: then all queries
    that read a key are in one product.
    """
    heads, rows, width = queries.shape
    asked = queries.transpose(0, 1).reshape(1, rows * heads, width)
    end_to_end = keys.flatten(0, 2)[None], values.flatten(0, 2)[None]
    read, weight = attend_pairs(asked, *end_to_end, pairs, scale, causal=False)
    return read.view(rows, heads, width), weight.reshape(rows, heads)


def slot_pairs(
    places: Int[Tensor, " rows"], reach: int, groups: int, asked: int, length: int
) -> Pairs:
    """Pair each key-value head of a row with its keys in a slot up to the row's place.

    `asked` queries of a row read each of its `groups`, a slot has room for `length` tokens, and
    `reach` is the longest that any row reads.
    """
    count = len(places) * groups
    whole = torch.arange(count + 1, device=places.device, dtype=torch.int32)
    used = (places + 1).repeat_interleave(groups).int()
    return Pairs(Lengths(whole * asked, asked), Lengths(whole * length, reach, used))
