"""What a device does in few operations: shared products, and kernels of ragged rows.

Many rows read keys that they share and their own in products for all of them. A product for each
row would have the host start more operations, the more rows a pass has. So on a GPU rows of any
lengths are given, end to end and with the places where each ends, to the flash attention that torch
brings. It also says the logarithm of the weight that each part deserves, by which two parts become
one.

Axes as in `attention.py`; `places` are those that a product has for the rows that read a segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Devices on which each segment is read in a product of its own: the host starts one at once there,
# and none has more places than rows that read it.
ONE_BY_ONE = {"cpu"}


def reads_stacks(device: torch.device) -> bool:
    """Say whether running rows read stacked segments on a device."""
    return device.type not in ONE_BY_ONE


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


def round_up(count: int, fine: int = 1) -> int:
    """Return the next size of a scale: of multiples of `fine`, and of ever coarser steps.

    At most an eighth more than `count` where that is beyond 8 x `fine`, so that tensors of steps
    with any number of rows have few shapes.
    """
    step = max(fine, 1 << max(0, (count - 1).bit_length() - 4))
    return -(-count // step) * step


@dataclass(eq=False)
class StackedKeys:
    """One layer of several segments of one length, which running rows read in one product.

    The product has `most` places for each segment, as many as the one with most readers needs.
    `members` says which row's queries stand in each, `segment` and `place` where each row stands. A
    place that nobody needs repeats some row, and a row that reads no segment stands in any.
    """

    keys: Float[Tensor, "segments groups tokens width"]
    values: Float[Tensor, "segments groups tokens read"]
    members: Int[Tensor, "segments 1 most"]
    groups: Int[Tensor, "1 groups 1"]  # all of them, in order
    segment: Int[Tensor, " rows"]
    place: Int[Tensor, " rows"]
    apart: Bool[Tensor, " rows"] | None  # rows that read none of them; None: there are none

    def products(self, asked: Tensor) -> Float[Tensor, "rows groups asked tokens"]:
        """Return the products of each row's queries with the keys of its segment."""
        found = self._of_rows(multiply(self._spread(asked), self.keys.flatten(0, 1)), asked)
        return found if self.apart is None else found.masked_fill(self._apart, -torch.inf)

    def read(self, weights: Tensor) -> Float[Tensor, "rows groups asked read"]:
        """Return the segments' values with these weights (rows groups asked tokens)."""
        read = self._of_rows(self._spread(weights) @ self.values.flatten(0, 1), weights)
        return read if self.apart is None else read.masked_fill(self._apart, 0)

    @property
    def _apart(self) -> Bool[Tensor, "rows 1 1 1"]:
        assert self.apart is not None
        return self.apart[:, None, None, None]

    def _spread(self, of_rows: Tensor) -> Tensor:
        """Put each row into its place: (segments x groups, places x asked, ...)."""
        return of_rows[self.members, self.groups].flatten(0, 1).flatten(1, 2)

    def _of_rows(self, found: Tensor, like: Tensor) -> Tensor:
        """Undo `_spread`, for as many rows, groups and queries as `like` has."""
        _, groups, asked, _ = like.shape
        segments, _, most = self.members.shape
        return found.view(segments, groups, most, asked, -1)[self.segment, :, self.place]


def attend_stacked(
    asked: Float[Tensor, "rows groups asked width"],
    keys: Float[Tensor, "rows groups reach width"],
    values: Float[Tensor, "rows groups reach read"],
    bias: Float[Tensor, "rows_groups asked reach"],
    shared: Sequence[StackedKeys],
    scale: float,
) -> Float[Tensor, "rows groups asked read"]:
    """Attend to segments and to own tokens under one softmax.

    As many operations whatever the number of segments and rows: for devices where the host, which
    starts each of them, is what a step waits for.
    """
    asked, scale = scale_first(asked, scale)
    own = multiply(asked.flatten(0, 1), keys.flatten(0, 1)).add_(bias)
    products = [*(part.products(asked) for part in shared), own.unflatten(0, asked.shape[:2])]
    together = torch.cat(products, -1) if shared else products[0]
    weights = together.mul_(scale).softmax(-1).to(values.dtype)
    *before, now = weights.split([each.shape[-1] for each in products], -1)
    here = now.flatten(0, 1), values.flatten(0, 1)
    if not shared:
        return torch.bmm(*here).unflatten(0, asked.shape[:2])
    parts = [part.read(their) for part, their in zip(shared, before, strict=True)]
    read: Tensor = reduce(torch.add, parts)
    return torch.baddbmm(read.flatten(0, 1), *here).unflatten(0, asked.shape[:2])


HALVES = (torch.float16, torch.bfloat16)
WIDEST, STEP = 256, 8  # of a head: what the kernel knows
OLDEST = (8, 0)  # compute capability
MOST_ROWS = 65_535  # rows: one side of CUDA's grid of blocks
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
        host = torch.tensor(every, dtype=torch.int32, pin_memory=device.type == "cuda")
        ends = host.to(device, non_blocking=True).split([len(each) + 1 for each in counts])
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
class PlacedTokens:
    """Which tokens ask each segment of a stack, and where what each of them read then stands."""

    asking: Int[Tensor, " places"]
    found: Int[Tensor, "tokens groups"]
    apart: Bool[Tensor, "tokens 1 1"] | None  # those that read no segment; None: there are none


@dataclass(eq=False)
class RunningTokens:
    """A token of each running row, for all layers of a step on one device.

    To the kernel each key-value head of a row is a row of its own with one head: then all queries
    that read a key are in one product, and keys are read where they stand: row i's are in slot i,
    the new token's at `places[i]`.
    """

    places: Int[Tensor, " tokens"]
    reach: int  # most own tokens of a row, the new one included
    made: dict[Any, Any] = field(init=False, default_factory=dict)  # once for all layers

    def fits(self, groups: int) -> bool:
        """Say whether the kernel takes so many rows, with so many key-value heads each."""
        return len(self.places) * groups <= MOST_ROWS

    def attend(
        self,
        queries: Float[Tensor, "heads tokens width"],
        keys: Float[Tensor, "slots groups length width"],
        values: Float[Tensor, "slots groups length width"],
        parts: Sequence[StackedKeys],
        scale: float,
    ) -> Read:
        """Return what each head reads for each token: of its row's own keys, and of the parts."""
        heads, count, width = queries.shape
        groups = keys.shape[1]
        asked = queries.transpose(0, 1).reshape(count * groups, heads // groups, width)
        pairs = self.once(("own", *asked.shape[:2]), lambda: self.own(keys, heads // groups))
        read, weight = self.read(asked, keys, values, pairs, scale)
        read, weight = (each.unflatten(0, (count, groups)) for each in (read, weight))
        for number, part in enumerate(parts, 1):
            before, its_weight = self.read_segments(asked, part, scale)
            read = join_parts(read, weight, before, its_weight)
            if number < len(parts):
                weight = torch.logaddexp(weight, its_weight)
        return read.flatten(1, 2)

    def read(
        self, asked: Tensor, keys: Tensor, values: Tensor, pairs: Pairs, scale: float
    ) -> tuple[Float[Tensor, "asking asked width"], Float[Tensor, "asking asked"]]:
        """Read keys and values that stand end to end, `asked` queries in each place."""
        flat, end_to_end, its_values = (
            each[None] for each in (asked.flatten(0, 1), keys.flatten(0, 2), values.flatten(0, 2))
        )
        read, weight = attend_pairs(flat, end_to_end, its_values, pairs, scale, causal=False)
        return read[:, 0].unflatten(0, asked.shape[:2]), weight[:, 0].unflatten(0, asked.shape[:2])

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what was made under a key, made now if it was not yet."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def own(self, keys: Float[Tensor, "slots groups length width"], asked: int) -> Pairs:
        """Pair each key-value head of a token with the keys of its row up to its own."""
        _, groups, length, _ = keys.shape
        head = torch.arange(groups, device=keys.device)
        slots = torch.arange(len(self.places), device=keys.device)
        starts = (slots[:, None] * groups + head).flatten() * length
        used = (self.places + 1).repeat_interleave(groups).int()
        return Pairs(
            Lengths(self.evenly(len(starts), asked), asked),
            Lengths(F.pad(starts.int(), (0, 1)), self.reach, used),
        )

    def evenly(self, rows: int, length: int) -> Int[Tensor, " rows_and_one"]:
        """Say where rows of one length end."""
        ends = torch.arange(rows + 1, device=self.places.device, dtype=torch.int32)
        return ends * length

    def place(self, part: StackedKeys) -> PlacedTokens:
        """Place tokens as a stack's product has them."""
        groups, most, head = part.groups.numel(), part.members.shape[-1], part.groups.flatten()
        found = (part.segment[:, None] * groups + head) * most + part.place[:, None]
        unread = None if part.apart is None else part.apart[:, None, None]
        return PlacedTokens((part.members * groups + part.groups).flatten(), found, unread)

    def read_segments(
        self, asked: Float[Tensor, "tokens_groups asked width"], part: StackedKeys, scale: float
    ) -> tuple[Float[Tensor, "tokens groups asked width"], Float[Tensor, "tokens groups asked"]]:
        """Return what each token reads of its row's segment, and the logarithm of its weight."""
        # layers that share indices share what is made of them
        placed = self.once(id(part.members), lambda: self.place(part))
        segments, groups, tokens, _ = part.keys.shape
        queries = asked[placed.asking]
        each = queries.shape[0] * queries.shape[1] // (segments * groups)
        sizes = segments * groups, each, tokens
        pairs = self.once(
            sizes,
            lambda: Pairs(*(Lengths(self.evenly(sizes[0], n), n) for n in sizes[1:])),
        )
        found = self.read(queries, part.keys, part.values, pairs, scale)
        read, weight = (of_places[placed.found] for of_places in found)
        if placed.apart is not None:
            weight = weight.masked_fill(placed.apart, -torch.inf)
        return read, weight
