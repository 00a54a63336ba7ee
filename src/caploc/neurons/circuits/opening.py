"""A model whose every query, key, value, MLP and logit input can be read and replaced by itself.

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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.models.cutting import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.models.projections import decoder_layers, text_config
from caploc.neurons.circuits.graph import EdgeGrid, EdgeStage

TOKENS = 6  # of the proof
# How far what the sources write may lie from the residual stream, by the largest value in it.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.08}


@dataclass(frozen=True)
class CircuitFamily:
    """Where the layers of one model type keep what is opened; `parallel` None: the config says."""

    attention: str
    reads: tuple[str, ...]
    attention_norm: str
    mlp_norm: str
    final_norm: str
    parallel: bool | None = False


READS = ("q_proj", "k_proj", "v_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
LLAMA = CircuitFamily("self_attn", READS, *NORMS, "norm")
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gpt2": CircuitFamily("attn", ("c_attn",), "ln_1", "ln_2", "ln_f"),
    "gptj": CircuitFamily("attn", READS, "ln_1", "ln_1", "ln_f", parallel=True),
    "gpt_neox": CircuitFamily(
        "attention", ("query_key_value",), *NORMS, "final_layer_norm", parallel=None
    ),
    "phi": CircuitFamily("self_attn", READS, NORMS[0], NORMS[0], "final_layernorm", parallel=True),
}
INTERLEAVED = frozenset({"gpt_neox"})  # one projection with query, key and value of head after head


@dataclass(frozen=True)
class ReadProjection:
    """A projection that gives queries, keys or values: which of a layer's, from which outputs.

    `order[n, w]` is the output that is value w of reading n; `readings` places the n in the list
    of a layer's queries, keys and values.
    """

    module: Any
    readings: slice
    order: Int[Tensor, "readings values"]


@dataclass(frozen=True)
class OpenLayer:
    """The modules of a decoder layer."""

    whole: nn.Module
    reads: tuple[ReadProjection, ...]
    output: Any
    attention_norm: nn.Module
    mlp: nn.Module
    mlp_norm: nn.Module


@runtime_checkable
class Visitor(Protocol):
    """Whoever looks into a run, or changes it."""

    def enter(self, hidden: Float[Tensor, "rows time width"]) -> Tensor:
        """Say what enters the first layer, in place of `hidden`."""

    def read(self, stage: EdgeStage, residual: Float[Tensor, "rows time width"]) -> Tensor:
        """Say what the stage's targets read, (rows, time, targets, width)."""

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        """Take note of what the stage's sources write, (rows, time, sources, width), if wanted."""


@dataclass(frozen=True)
class OpenModel:
    """A model, its edges, and where they begin and end."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    grid: EdgeGrid
    decoder: tuple[OpenLayer, ...]
    final_norm: nn.Module

    def run(
        self, tokens: Int[Tensor, "rows time"], visitor: Visitor
    ) -> Float[Tensor, "rows vocabulary"]:
        """Compute the logits after the last token of each row, with the visitor inside."""
        with hooked(self, visitor):
            logits = self.model(input_ids=tokens.to(self.model.device), use_cache=False).logits
        return logits[:, -1]


def open_model(loaded: LoadedModel) -> OpenModel:
    """Find the edges of a model and prove that they are all there is.

    Raises:
        ModelRefused: if its type is not known here, or its residual stream holds more than what
            its input, heads and MLPs write.
    """
    model, config = loaded.model, text_config(loaded.model)
    if config.model_type not in FAMILIES:
        raise ModelRefused(
            f"The edges of a {config.model_type} model are not known, so it has no circuits here; "
            f"give a model of type {', '.join(sorted(FAMILIES))}."
        )
    family = FAMILIES[config.model_type]
    heads, shared = _same_everywhere(loaded)
    layers = decoder_layers(model, loaded.projections)
    parallel = family.parallel
    if parallel is None:
        parallel = bool(config.use_parallel_residual)
    opened = OpenModel(
        model,
        loaded.tokenizer,
        EdgeGrid(len(layers), heads, shared, parallel),
        tuple(
            _layer(layer, output, family, config.model_type, (heads, shared))
            for layer, output in zip(layers, loaded.projections, strict=True)
        ),
        model.get_decoder().get_submodule(family.final_norm),
    )
    prove_edges(opened)
    return opened


def _same_everywhere(loaded: LoadedModel) -> tuple[int, int]:
    """Count heads and key-value heads of every layer."""
    grid = loaded.grid
    shapes = set(zip(grid.heads_per_layer, grid.group_sizes, strict=True))
    if len(shapes) > 1:
        raise ModelRefused(
            "Circuits need a model whose layers all have the same number of heads; this one has "
            f"{', '.join(map(str, sorted(set(grid.heads_per_layer))))}."
        )
    heads, size = shapes.pop()
    return heads, heads // size


def _layer(
    whole: nn.Module, output: Any, family: CircuitFamily, model_type: str, counts: tuple[int, int]
) -> OpenLayer:
    attention = whole.get_submodule(family.attention)
    modules = [attention.get_submodule(name) for name in family.reads]
    return OpenLayer(
        whole=whole,
        reads=tuple(_readings(modules, model_type in INTERLEAVED, counts)),
        output=output,
        attention_norm=whole.get_submodule(family.attention_norm),
        mlp=whole.get_submodule("mlp"),
        mlp_norm=whole.get_submodule(family.mlp_norm),
    )


def _readings(
    modules: list[Any], interleaved: bool, counts: tuple[int, int]
) -> Iterator[ReadProjection]:
    heads, shared = counts
    if len(modules) == 1:  # queries, keys and values together, and as many of each
        outputs = torch.arange(outputs_first(modules[0]).shape[0])
        order = outputs.unflatten(0, (3, heads, -1))
        if interleaved:
            order = outputs.unflatten(0, (heads, 3, -1)).transpose(0, 1)
        yield ReadProjection(modules[0], slice(0, 3 * heads), order.flatten(0, 1))
        return
    start = 0
    for module, count in zip(modules, (heads, shared, shared), strict=True):
        outputs = torch.arange(outputs_first(module).shape[0])
        yield ReadProjection(module, slice(start, start + count), outputs.unflatten(0, (count, -1)))
        start += count


def outputs_first(module: Any) -> Float[Tensor, "outputs inputs"]:
    """Turn a projection's weight so that its outputs come first."""
    weight: Tensor = module.weight
    # transformers' Conv1D keeps its weight transposed
    return weight.T if isinstance(module, Conv1D) else weight


def hooked(opened: OpenModel, visitor: Visitor) -> AbstractContextManager[None]:
    """Let the visitor in for a block."""

    def end(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (visitor.read(opened.grid.stages[-1], args[0]).squeeze(2), *args[1:])

    def register() -> Iterator[Any]:
        for number, layer in enumerate(opened.decoder):
            attention, mlp = opened.grid.stages[2 * number : 2 * number + 2]
            yield from _Inside(layer, (attention, mlp), visitor, opened.grid).register()
        yield opened.final_norm.register_forward_pre_hook(end)

    return temporary_hooks(register())


class _Inside:
    """The hooks of one layer, between the layer and the visitor.

    Norms are called by `forward`, so that they do not run the hooks they carry.
    """

    def __init__(
        self,
        layer: OpenLayer,
        stages: tuple[EdgeStage, EdgeStage],
        visitor: Visitor,
        grid: EdgeGrid,
    ) -> None:
        self.layer, self.visitor, self.grid = layer, visitor, grid
        self.attention, self.mlp = stages
        self.residual: Any = None  # what the next stage's norm reads
        self.normed: Any = None  # one for each query, key and value: (rows, time, n, width)

    def register(self) -> Iterator[Any]:
        yield self.layer.whole.register_forward_pre_hook(self.start, with_kwargs=True)
        for reading in self.layer.reads:
            yield reading.module.register_forward_hook(self.reader(reading))
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

    def reader(self, reading: ReadProjection) -> Callable[..., Tensor]:
        """Put in place of a projection's output what it gives for each copy."""

        def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            weight = outputs_first(module)[reading.order.to(module.weight.device)]
            copies = self.normed[:, :, reading.readings]
            values = torch.einsum("btnd,nwd->btnw", copies, weight).flatten(2)
            back = reading.order.flatten().argsort().to(values.device)
            values = values[..., back]
            return values if module.bias is None else values + module.bias

        return hook

    def heads_wrote(self, module: Any, args: tuple[Tensor, ...]) -> None:
        mixed = args[0]

        def output() -> Tensor:
            weight = outputs_first(module).unflatten(1, (self.grid.heads, -1))
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
def prove_edges(opened: OpenModel, *, seed: int = 0) -> None:
    """Show on random tokens that opening changes nothing and that every edge's source is known.

    Raises:
        ModelRefused: if the logits change, or the residual stream at some target is not the sum of
            what the sources before it write and the biases of the output projections.
    """
    generator = torch.Generator().manual_seed(seed)
    vocabulary = text_config(opened.model).vocab_size
    tokens = torch.randint(vocabulary, (1, TOKENS), generator=generator)
    adding = _Adding(opened)
    logits = opened.run(tokens, adding)
    plain = opened.model(input_ids=tokens.to(opened.model.device)).logits[:, -1]
    rounding = ROUNDING[opened.model.dtype]
    changed = float((logits - plain).abs().max() / plain.abs().max())
    if max(changed, adding.worst) > rounding:
        raise ModelRefused(
            f"{type(opened.model).__name__} computes more than its heads and feed-forward blocks "
            f"explain (logits off by {changed:.1e}, residual stream by {adding.worst:.1e} of the "
            "largest value), so it has no circuits here."
        )


class _Adding:
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
