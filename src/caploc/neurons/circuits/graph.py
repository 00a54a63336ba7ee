"""The edges of a decoder, and the grid that gives each edge its column in a boolean array.

A *source* writes into the residual stream: the input (the embeddings), each attention head, each
feed-forward block (MLP). A *target* reads it: each head's query, each key-value head's key and its
value, each MLP, the logits. An edge leads from a source to a target after it. Keys and values are
counted once for each key-value head, since query heads that share one share what it reads; without
such sharing that is once for each head.

Sources stand in the order input, then layer by layer the heads and the MLP; what a target may read
is always a beginning of that list. Targets stand layer by layer as queries, keys, values, MLP; the
logits come last. Edges stand target by target, source by source.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from caploc.errors import BadOption
from caploc.grid import Grid

Edges = Bool[np.ndarray, " edges"]  # True is chosen


@dataclass(frozen=True)
class EdgeStage:
    """What reads and then writes at one time: a layer's heads, its MLP, or the logits.

    `kind` is attention, mlp or logits; `targets` and `sources` are its places in the lists of
    targets and sources (no sources for the logits), `reach` how many sources come before it.
    """

    kind: str
    layer: int
    targets: slice
    sources: slice
    reach: int


@dataclass(frozen=True)
class EdgeGrid(Grid):
    """All edges of a decoder; as a grid its layers are those of the targets, the logits the last.

    `parallel` says that a layer's MLP reads what its heads read, and not what they write.
    """

    decoder_layers: int
    heads: int
    key_value_heads: int
    parallel: bool

    def __post_init__(self) -> None:
        numbers = (self.decoder_layers, self.heads, self.key_value_heads)
        if min(numbers) < 1 or self.heads % self.key_value_heads:
            raise BadOption(
                f"A decoder cannot have {numbers[0]} layers, {numbers[1]} heads and {numbers[2]} "
                "key-value heads; all are at least 1, and the last divides the heads."
            )

    @cached_property
    def stages(self) -> tuple[EdgeStage, ...]:
        """Attention and MLP of each layer, then the logits."""
        reading, found = self.heads + 2 * self.key_value_heads, []
        for layer in range(self.decoder_layers):
            first, target = 1 + layer * (self.heads + 1), layer * (reading + 1)
            mlp = first + self.heads
            attention = (slice(target, target + reading), slice(first, mlp), first)
            found.append(EdgeStage("attention", layer, *attention))
            after = (slice(target + reading, target + reading + 1), slice(mlp, mlp + 1))
            found.append(EdgeStage("mlp", layer, *after, first if self.parallel else mlp))
        last, sources = found[-1].targets.stop, found[-1].sources.stop
        end = (slice(last, last + 1), slice(sources, sources), sources)
        return (*found, EdgeStage("logits", self.decoder_layers, *end))

    @property
    def n_sources(self) -> int:
        return self.stages[-1].reach

    @property
    def n_targets(self) -> int:
        return self.stages[-1].targets.stop

    @cached_property
    def reach(self) -> Int[np.ndarray, " targets"]:
        """How many sources each target reads."""
        counts = [stage.targets.stop - stage.targets.start for stage in self.stages]
        return np.repeat([stage.reach for stage in self.stages], counts)

    @cached_property
    def per_layer(self) -> tuple[int, ...]:
        """Number of edges into each layer, then into the logits."""
        counts = [0] * (self.decoder_layers + 1)
        for stage in self.stages:
            counts[stage.layer] += (stage.targets.stop - stage.targets.start) * stage.reach
        return tuple(counts)

    @cached_property
    def edge_targets(self) -> Int[np.ndarray, " edges"]:
        """The place of each edge's target in the list of targets."""
        return np.repeat(np.arange(self.n_targets), self.reach)

    @cached_property
    def edge_sources(self) -> Int[np.ndarray, " edges"]:
        """The place of each edge's source in the list of sources."""
        starts = np.cumsum(self.reach) - self.reach
        return np.arange(self.size) - np.repeat(starts, self.reach)

    @cached_property
    def blocks(self) -> list[slice]:
        """Columns of edges alike: into the queries, keys, values or MLP of one layer, or the end.

        Random edges that are to be like a given set are drawn block by block.
        """
        heads, shared = self.heads, self.key_value_heads
        widths = {"attention": (heads, shared, shared), "mlp": (1,), "logits": (1,)}
        counts = [width * stage.reach for stage in self.stages for width in widths[stage.kind]]
        ends = np.cumsum(counts).tolist()
        return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]

    @cached_property
    def feeds(self) -> Bool[np.ndarray, "readings heads"]:
        """Which heads of a layer each of its queries, keys and values serves."""
        sharing = self.heads // self.key_value_heads
        shared = np.repeat(np.eye(self.key_value_heads, dtype=bool), sharing, axis=1)
        return np.concatenate([np.eye(self.heads, dtype=bool), shared, shared])

    def as_matrix(self, chosen: Bool[np.ndarray, "*sets edges"]) -> Bool[np.ndarray, "*sets t s"]:
        """Lay edges out by target and source; False where there is no edge."""
        matrix = np.zeros((*chosen.shape[:-1], self.n_targets, self.n_sources), dtype=bool)
        matrix[..., self.edge_targets, self.edge_sources] = chosen
        return matrix

    def as_columns(self, matrix: Float[np.ndarray, "t s"]) -> Float[np.ndarray, " edges"]:
        """Take numbers by target and source as one number for each edge."""
        columns: np.ndarray = matrix[self.edge_targets, self.edge_sources]
        return columns


def prune(grid: EdgeGrid, chosen: Edges) -> Edges:
    """Leave out the edges that lie on no path of chosen edges from the input to the logits.

    A head is on a path if its query, key or value is. What is left out changes nothing: without a
    path from the input a source writes what it writes for the corrupted prompt.
    """
    edges = grid.as_matrix(chosen)
    reached = np.zeros(grid.n_sources, dtype=bool)  # by a path from the input
    reached[0] = True
    for stage in grid.stages[:-1]:
        read = np.any(edges[stage.targets][:, reached], axis=1)
        reached[stage.sources] = np.any(read[:, None] & _serves(grid, stage), axis=0)
    used = np.zeros(grid.n_targets, dtype=bool)  # by a path to the logits
    used[-1] = True
    for stage in reversed(grid.stages[:-1]):
        wanted = np.any(edges[used][:, stage.sources], axis=0)
        used[stage.targets] = np.any(_serves(grid, stage) & wanted, axis=1)
    alive = edges & reached[None, :] & used[:, None]
    return alive[grid.edge_targets, grid.edge_sources]


def _serves(grid: EdgeGrid, stage: EdgeStage) -> Bool[np.ndarray, "readings sources"]:
    """Tell which of a stage's sources each of its targets serves."""
    return grid.feeds if stage.kind == "attention" else np.ones((1, 1), dtype=bool)
