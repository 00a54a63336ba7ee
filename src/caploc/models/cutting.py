"""The cut: what a head hands to its output projection, replaced row by row.

Axes: `rows` are masks and, unless one mask serves all, rows of the batch; `heads` are the columns
of a grid; `width` is the number of values a head hands to its output projection.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from caploc.components import Grid
from caploc.errors import BadOption
from caploc.models.hooks import check_thread, temporary_hooks
from caploc.models.substitutes import Substitutes

Projections = Sequence[nn.Module | None]  # one for each layer; None where a layer has no parts
# (layer, what its parts hand on: masks x tokens x parts x width) -> what takes its place
Replacement = Callable[[int, Tensor], Tensor]


@contextmanager
def knocked_out(
    projections: Projections,
    grid: Grid,
    masks: Tensor,
    replacement: Replacement | None = None,
    *,
    every_layer: bool = False,
) -> Iterator[None]:
    """Silence heads, for a block: row i of the batch loses the heads of `masks[i]`.

    `masks` is of shape (rows, heads), on any device; True is knocked out. A head writes to
    the residual stream only through its own slice of the projection's input, so zeroing it removes
    the head and nothing else; `replacement` says what takes the place of that slice where it is not
    zero. One mask serves a batch of any size. Layers that no mask cuts carry no hook, unless
    `every_layer` wants one, to prove that an empty cut changes nothing. Only the thread that
    entered may run the model. Raises BadOption here if `masks` does not fit the grid; in a forward
    pass if the batch has another number of rows than `masks`; ModelBusy in a forward pass from
    another thread.
    """
    if masks.ndim != 2 or masks.shape[1] != grid.size:
        raise BadOption(
            f"The masks have shape {tuple(masks.shape)}; they need one column for each of the "
            f"{grid.size} heads, and one row for each row of the batch or one for all."
        )
    on_host = masks.cpu()  # asking each layer in turn whether it is cut would wait for the device

    def register() -> Iterator[Any]:
        for layer, columns, projection in list_sites(projections, grid):
            cut = on_host[:, columns]
            if every_layer or bool(cut.any()):
                yield projection.register_forward_pre_hook(_Cut(layer, cut, replacement))

    # a compiled graph runs on as it was traced, without hooks that came later (torch's
    # skip_nnmodule_hook_guards): the model would be intact without a word
    with temporary_hooks(register()), torch.compiler.set_stance("force_eager"):
        yield


def list_sites(projections: Projections, grid: Grid) -> list[tuple[int, slice, nn.Module]]:
    """List the layers that have parts: number, columns in the grid, and what reads the parts."""
    return [
        (layer, columns, projection)
        for layer, (columns, projection) in enumerate(
            zip(grid.layer_slices, projections, strict=True)
        )
        if projection is not None
    ]


class _Cut:
    """The hook of one projection for padded batches and the proof; `PackedCut` is for packed rows.

    `masks` is of shape (rows, heads of the layer).
    """

    def __init__(
        self,
        layer: int,
        masks: Bool[Tensor, "rows layer_heads"],
        replacement: Replacement | None,
    ) -> None:
        self.layer, self.masks, self.replacement = layer, masks, replacement
        self.owner = threading.get_ident()

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        check_thread(self.owner)
        mixed, *rest = args
        self.check(mixed)
        self.masks = self.masks.to(mixed.device)  # at the first call
        rows, heads = self.masks.shape
        each = mixed.reshape(rows, -1, heads, mixed.shape[-1] // heads)
        new: Any = 0  # a product with 0 would make NaN of what is infinite
        if self.replacement is not None:
            new = self.replacement(self.layer, each)
        return torch.where(self.masks[:, None, :, None], new, each).reshape(mixed.shape), *rest

    def check(self, mixed: Tensor) -> None:
        """Refuse a batch with neither as many rows as there are masks nor one mask for all.

        `mixed` is (batch, time, all heads' values), or (batch x time, all heads' values).
        """
        rows, batch = len(self.masks), mixed.shape[0]
        fits = batch % rows == 0 if mixed.ndim == 2 else batch == rows
        if rows > 1 and not fits:
            raise BadOption(
                f"There are {rows} masks for a batch of {batch} rows; give one mask for "
                "each row of the batch, or one for all."
            )


@dataclass(frozen=True, eq=False)
class MaskTable:
    """A row for each numbered mask: which heads it keeps, and what takes the place of the others.

    That is the mask's source among the `substitutes`; without them it is zero.
    """

    kept: Bool[Tensor, "masks heads"]
    sources: Int[Tensor, " masks"] | None = None
    substitutes: Substitutes | None = None


class PackedCut:
    """Hooks that cut packed rows, installed once for many passes; between passes they do nothing.

    In a packed pass many rows stand end to end in one sequence. What a head hands on for a token is
    cut as the row of a table says that the token belongs to.
    """

    def __init__(self, projections: Projections, grid: Grid) -> None:
        """Install a hook at every projection, without a pass to cut."""
        self.grid = grid
        self.now: _PassCut | None = None
        self.handles = [
            projection.register_forward_pre_hook(self._hook(layer, columns))
            for layer, columns, projection in list_sites(projections, grid)
        ]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    @contextmanager
    def cutting(
        self,
        table: MaskTable,
        owners: Int[Tensor, " tokens"],
        positions: Int[Tensor, " tokens"],
        cut_layers: int,
    ) -> Iterator[None]:
        """Cut token i of a pass, at its position in its text, by mask `owners[i]` of the table.

        Only the layers whose bits are set in `cut_layers` are cut. Raises ModelBusy in a forward
        pass from another thread.
        """
        before, self.now = self.now, _PassCut(table, owners, positions, cut_layers)
        try:
            # see `knocked_out`
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self.now = before

    def _hook(self, layer: int, columns: slice) -> Callable:
        def cut(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if self.now is None or not self.now.cut_layers >> layer & 1:
                return None
            check_thread(self.now.thread)
            mixed, *rest = args
            all_kept, entries = self.now.under(mixed)
            kept = all_kept[:, columns, None]
            per_head = mixed.reshape(*kept.shape[:2], -1)  # tokens x heads x width
            new: Any = 0
            if entries is not None and self.now.table.substitutes is not None:
                new = self.now.table.substitutes.values(layer, per_head)[entries]
            per_head = torch.where(kept, per_head, new)  # a product would make NaN of infinity
            return per_head.reshape(mixed.shape), *rest

        return cut


# Which heads each token keeps, and the entries that take the place of the others, if any.
TokenCut = tuple[Tensor, Tensor | None]


@dataclass
class _PassCut:
    """What one pass cuts: see `PackedCut.cutting`."""

    table: MaskTable
    owners: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    cut_layers: int
    thread: int = field(default_factory=threading.get_ident)
    known: dict[tuple[torch.device, torch.dtype], TokenCut] = field(default_factory=dict)

    def under(self, like: Tensor) -> TokenCut:
        """Return the cut of the pass's tokens, beside `like`."""
        key = like.device, like.dtype
        if key not in self.known:
            table = self.table
            kept, entries = table.kept[self.owners], None
            if table.substitutes is not None and table.sources is not None:
                where = table.substitutes.entries(table.sources[self.owners], self.positions)
                entries = where.to(like.device)
            self.known[key] = kept.to(like.device), entries
        return self.known[key]
