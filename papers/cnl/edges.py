"""The edges of a decoder, and a model opened so that each of them can be read and replaced.

A *source* writes into the residual stream: the input (the embeddings), each attention head, each
feed-forward block (MLP). A *target* reads it: each head's query, each key-value head's key and its
value, each MLP, the logits. An edge leads from a source to a target after it. Keys and values are
counted once for each key-value head, since query heads that share one share what it reads.

Sources stand in the order input, then layer by layer the heads and the MLP; what a target may read
is always a beginning of that list. Targets stand layer by layer as queries, keys, values, MLP; the
logits come last. Edges stand target by target, source by source.

In the model one vector in the residual stream serves all heads of a layer. Opened, each target has
a copy of its own: hooks compute the norm before attention once for each copy, multiply each by its
own rows of the query, key and value weights, and put the results in place of what the projections
gave; likewise for the norm and input of the MLP, and of the logits. So a gradient with respect to a
copy is the gradient of one target's input, and a changed copy changes one target alone. A head's
output is its slice of what the output projection reads times the weights for that slice; biases of
the output projection belong to no source.

Axes: `rows` of the batch, `time` (tokens), `width` of the residual stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.components import Grid
from caploc.errors import ModelRefused
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.models.projections import decoder_layers, text_config
from caploc.models.proof import random_tokens, reads_first

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

    def as_matrix(self, chosen: Bool[np.ndarray, "*sets edges"]) -> Bool[np.ndarray, "*sets t s"]:
        """Lay edges out by target and source; False where there is no edge."""
        matrix = np.zeros((*chosen.shape[:-1], self.n_targets, self.n_sources), dtype=bool)
        matrix[..., self.edge_targets, self.edge_sources] = chosen
        return matrix

    def as_columns(self, matrix: Shaped[np.ndarray, "t s"]) -> Shaped[np.ndarray, " edges"]:
        """Take values by target and source as one value for each edge."""
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
        reached[stage.sources] = np.any(read[:, None] & serves(grid, stage), axis=0)
    used = np.zeros(grid.n_targets, dtype=bool)  # by a path to the logits
    used[-1] = True
    for stage in reversed(grid.stages[:-1]):
        wanted = np.any(edges[used][:, stage.sources], axis=0)
        used[stage.targets] = np.any(serves(grid, stage) & wanted, axis=1)
    return grid.as_columns(edges & reached[None, :] & used[:, None])


def serves(grid: EdgeGrid, stage: EdgeStage) -> Bool[np.ndarray, "readings sources"]:
    """Tell which of a stage's sources each of its targets serves."""
    if stage.kind != "attention":
        return np.ones((1, 1), dtype=bool)
    sharing = grid.heads // grid.key_value_heads
    shared = np.repeat(np.eye(grid.key_value_heads, dtype=bool), sharing, axis=1)
    return np.concatenate([np.eye(grid.heads, dtype=bool), shared, shared])


# How far what the sources write may lie from the residual stream, by the largest value in it.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.08}


@dataclass(frozen=True)
class CircuitFamily:
    """Where the layers of one model type keep what is opened."""

    attention: str
    attention_norm: str
    mlp_norm: str
    final_norm: str
    parallel: bool = False


READS = ("q_proj", "k_proj", "v_proj")
LLAMA = CircuitFamily("self_attn", "input_layernorm", "post_attention_layernorm", "norm")
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gptj": CircuitFamily("attn", "ln_1", "ln_1", "ln_f", parallel=True),
}


@dataclass(frozen=True)
class OpenLayer:
    """The modules of a decoder layer.

    `reads` are those that give queries, keys and values, with the places of theirs among them.
    """

    whole: nn.Module
    reads: tuple[tuple[Any, slice], ...]
    output: Any
    attention_norm: nn.Module
    mlp: nn.Module
    mlp_norm: nn.Module


class Visitor:
    """Looks into a run, or changes it."""

    def enter(self, hidden: Float[Tensor, "rows time width"]) -> Tensor:
        """Say what enters the first layer, in place of `hidden`."""
        return hidden

    def read(self, stage: EdgeStage, residual: Float[Tensor, "rows time width"]) -> Tensor:
        """Say what the stage's targets read, (rows, time, targets, width)."""
        return copied(stage, residual)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        """Take note of what the stage's sources write, (rows, time, sources, width), if wanted."""


@dataclass(frozen=True)
class OpenModel:
    """A model, its edges, and where they begin and end."""

    model: PreTrainedModel
    grid: EdgeGrid
    decoder: tuple[OpenLayer, ...]
    final_norm: nn.Module

    def run(
        self, tokens: Int[Tensor, "rows time"], visitor: Visitor
    ) -> Float[Tensor, "rows vocabulary"]:
        """Compute the logits after the last token of each row, with the visitor inside."""

        def end(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (visitor.read(self.grid.stages[-1], args[0]).squeeze(2), *args[1:])

        def register() -> Iterator[Any]:
            for number, layer in enumerate(self.decoder):
                attention, mlp = self.grid.stages[2 * number : 2 * number + 2]
                yield from InsideLayer(layer, attention, mlp, visitor, self.grid).register()
            yield self.final_norm.register_forward_pre_hook(end)

        with temporary_hooks(register()):
            logits = self.model(input_ids=tokens.to(self.model.device), use_cache=False).logits
        return logits[:, -1]


def open_model(loaded: LoadedModel) -> OpenModel:
    """Find the edges of a model and prove that they are all there is.

    Raises ModelRefused if its type is not known here, its layers differ, or the proof fails.
    """
    model, config = loaded.model, text_config(loaded.model)
    if config.model_type not in FAMILIES:
        raise ModelRefused(
            f"The edges of a {config.model_type} model are not known, so it has no circuits here; "
            f"give a model of type {', '.join(sorted(FAMILIES))}."
        )
    family = FAMILIES[config.model_type]
    ((heads, size),) = set(zip(loaded.grid.heads_per_layer, loaded.grid.group_sizes, strict=True))
    ends = np.cumsum([heads, heads // size, heads // size]).tolist()
    places = [slice(*each) for each in pairwise([0, *ends])]
    layers, decoder = decoder_layers(model, loaded.projections), []
    for layer, output in zip(layers, loaded.projections, strict=True):
        attention = layer.get_submodule(family.attention)
        modules = [attention.get_submodule(name) for name in READS]
        decoder.append(
            OpenLayer(
                whole=layer,
                reads=tuple(zip(modules, places, strict=True)),
                output=output,
                attention_norm=layer.get_submodule(family.attention_norm),
                mlp=layer.get_submodule("mlp"),
                mlp_norm=layer.get_submodule(family.mlp_norm),
            )
        )
    opened = OpenModel(
        model,
        EdgeGrid(len(layers), heads, heads // size, family.parallel),
        tuple(decoder),
        model.get_decoder().get_submodule(family.final_norm),
    )
    prove_edges(opened)
    return opened


@dataclass
class InsideLayer:
    """The hooks of one layer, between the layer and the visitor.

    Norms are called by `forward`, so that they do not run the hooks they carry.
    """

    layer: OpenLayer
    attention: EdgeStage
    mlp: EdgeStage
    visitor: Visitor
    grid: EdgeGrid
    residual: Any = None  # what the next stage's norm reads
    normed: Any = None  # one for each query, key and value: (rows, time, n, width)

    def register(self) -> Iterator[Any]:
        yield self.layer.whole.register_forward_pre_hook(self.start, with_kwargs=True)
        for module, places in self.layer.reads:
            yield module.register_forward_hook(partial(self.project, places))
        yield self.layer.output.register_forward_pre_hook(self.heads_wrote)
        if not self.grid.parallel:
            yield self.layer.mlp_norm.register_forward_pre_hook(self.between)
        yield self.layer.mlp.register_forward_pre_hook(self.mlp_reads)
        yield self.layer.mlp.register_forward_hook(self.mlp_wrote)

    def start(
        self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copy the residual stream for each query, key and value."""
        hidden = args[0] if args else given["hidden_states"]
        if self.attention.layer == 0:
            hidden = self.visitor.enter(hidden)
        self.residual = hidden
        self.normed = self.layer.attention_norm.forward(self.visitor.read(self.attention, hidden))
        if args:
            return (hidden, *args[1:]), given
        return args, given | {"hidden_states": hidden}

    def project(self, places: slice, module: Any, args: Any, output: Tensor) -> Tensor:
        """Put in place of a projection's output what it gives for each copy."""
        copies = self.normed[:, :, places]
        weight = reads_first(module).T.unflatten(0, (copies.shape[2], -1))
        values = torch.einsum("btnd,nwd->btnw", copies, weight).flatten(2)
        return values if module.bias is None else values + module.bias

    def heads_wrote(self, module: Any, args: tuple[Tensor, ...]) -> None:
        mixed = args[0]

        def output() -> Tensor:
            weight = reads_first(module).T.unflatten(1, (self.grid.heads, -1))
            per_head = mixed.unflatten(-1, (self.grid.heads, -1))
            return torch.einsum("bthw,dhw->bthd", per_head, weight)

        self.visitor.wrote(self.attention, output)

    def between(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.residual = args[0]

    def mlp_reads(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        copy = self.visitor.read(self.mlp, self.residual).squeeze(2)
        return (self.layer.mlp_norm.forward(copy), *args[1:])

    def mlp_wrote(self, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.visitor.wrote(self.mlp, lambda: output[:, :, None])


@torch.no_grad()
def prove_edges(opened: OpenModel) -> None:
    """Show on random tokens that opening changes nothing and that every edge's source is known.

    The residual stream at every target must be the sum of what the sources before it write and the
    biases of the output projections.
    """
    tokens, adding = random_tokens(opened.model, seed=0)[:1], AddingUp(opened)
    logits = opened.run(tokens, adding)
    plain = opened.model(input_ids=tokens).logits[:, -1]
    rounding = ROUNDING[opened.model.dtype]
    changed = float((logits - plain).abs().max() / plain.abs().max())
    if max(changed, adding.worst) > rounding:
        raise ModelRefused(
            f"{type(opened.model).__name__} computes more than its heads and feed-forward blocks "
            f"explain (logits off by {changed:.1e}, residual stream by {adding.worst:.1e} of the "
            "largest value), so it has no circuits here."
        )


class AddingUp(Visitor):
    """Adds up what the sources write, and holds it against the residual stream."""

    def __init__(self, opened: OpenModel) -> None:
        self.opened = opened
        self.total: Any = 0.0
        self.worst = 0.0

    def enter(self, hidden: Tensor) -> Tensor:
        self.total = hidden
        return hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        """Compare; where heads and MLP are parallel the MLP reads what came before the heads."""
        if not (stage.kind == "mlp" and self.opened.grid.parallel):
            off = (self.total - residual).abs().max() / residual.abs().max()
            self.worst = max(self.worst, float(off))
        return copied(stage, residual)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        self.total = self.total + output().sum(2)
        if stage.kind == "attention":
            bias = self.opened.decoder[stage.layer].output.bias
            self.total = self.total + (0 if bias is None else bias)


def copied(stage: EdgeStage, residual: Float[Tensor, "rows time width"]) -> Tensor:
    """Copy the residual stream for every target of a stage, (rows, time, targets, width)."""
    count = stage.targets.stop - stage.targets.start
    return residual[:, :, None].expand(-1, -1, count, -1)
