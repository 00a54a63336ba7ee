"""Attention of many rows to keys that they share and to their own, in few operations.

Axes as in `attention.py`; `places` are those that a product has for the rows that read a segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import torch
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
