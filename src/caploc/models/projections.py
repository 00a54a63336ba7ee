"""Find every attention output projection of a model, by name and shape: where heads are cut.

A projection found here is a guess until `proof.prove_heads` has passed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.components import Heads
from caploc.errors import ModelRefused
from caploc.models.cutting import Projections

# The module that holds a layer's attention; linear attention, convolutions and state spaces, which
# have no softmax heads, go by other names.
ATTENTION_NAMES = frozenset(
    {"self_attn", "self_attention", "attn", "attention", "multi_head_attention"}
)
PROJECTION_NAMES = frozenset({"o_proj", "dense", "c_proj", "out_proj", "wo", "Wo"})
# These hold attention in some layers and a state space in others; only attention calls it o_proj.
MIXED_NAMES = frozenset({"mixer", "temporal_block"})
# Heads that work in pairs and write into common values have no slice of their own.
PAIRED = frozenset({"diffllama"})
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads")
HEAD_WIDTHS = ("v_head_dim", "head_dim", "head_size", "d_head")  # values may be narrower than keys
KEY_VALUE_HEADS = ("num_kv_heads", "num_key_value_heads", "kv_heads", "num_k_heads", "n_kv_heads")
LATENT = ("kv_lora_rank", "v_head_dim")

T = TypeVar("T")


def find_projections(model: PreTrainedModel) -> tuple[list[nn.Module | None], Heads]:
    """Find every layer's attention output projection (None: no heads there), and the grid.

    Raises ModelRefused if there are none, or one does not fit the model's head count and head
    width.
    """
    config = text_config(model)
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 1:
        raise ModelRefused(
            f"{_kind(model)} does not say how many layers it has (num_hidden_layers)."
        )
    if config.model_type in PAIRED:
        raise ModelRefused(
            f"The heads of a {config.model_type} model work in pairs, so that one cannot be cut "
            "alone."
        )
    projections = _by_name(model, layers)
    if not any(projections):
        raise ModelRefused(
            f"{_kind(model)} has no attention output projections of the usual names, such as "
            "self_attn.o_proj or attn.c_proj."
        )
    present = [id(getattr(each, "weight", each)) for each in projections if each is not None]
    if len(set(present)) < len(present):
        raise ModelRefused(
            f"Layers of {_kind(model)} share one attention output projection, so that a head of "
            "one layer cannot be cut alone."
        )
    shapes = [
        _shape(model, layer, projection) if projection is not None else (0, 1)
        for layer, projection in enumerate(projections)
    ]
    return projections, Heads(tuple(s[0] for s in shapes), tuple(s[1] for s in shapes))


def text_config(model: nn.Module) -> PretrainedConfig:
    """Return the config of the part of the model that reads and writes text."""
    config: Any = model.config
    return config.get_text_config(decoder=True)


def stated(config: Any, name: str) -> list[Any]:
    """List what a config says under a name: one value, one for each layer, or nothing."""
    try:
        found = getattr(config, name, None)
    except RuntimeError:  # transformers names none where layers differ
        found = [getattr(layer, name, None) for layer in config.per_layer_config]
    several = found if isinstance(found, list | tuple) else [found]
    return [value for value in several if value is not None]


def input_width(projection: nn.Module) -> int:
    """Count the values that a projection reads: all heads of the layer side by side."""
    if isinstance(projection, Conv1D):
        return int(projection.weight.shape[0])
    return int(projection.in_features)  # type: ignore[arg-type]  # packed weights tell no width


def is_linear(module: nn.Module) -> bool:
    """Tell whether it is a matrix product, its weights plain or quantized by a class of its own."""
    if isinstance(module, nn.Linear | Conv1D):
        return True
    sizes = (getattr(module, name, None) for name in ("in_features", "out_features"))
    packed = hasattr(module, "qweight") or hasattr(module, "W_q") or hasattr(module, "weight")
    return packed and all(isinstance(size, int) for size in sizes)


def module_name(model: nn.Module, module: nn.Module) -> str:
    """Return the module's dotted name in the model; raises ModelRefused if it is no part of it."""
    for name, other in model.named_modules():
        if other is module:
            return name
    raise ModelRefused(f"A projection is no part of {_kind(model)}.")


def ancestors(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules around the one named, from the nearest out to the model itself."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name, model.get_submodule(name)
    yield "", model


def layer_part(model: nn.Module, name: str) -> nn.Module:
    """Find the direct child of the decoder layer that holds the module named (or the layer itself).

    For `model.layers.3.self_attn.o_proj` this is `model.layers.3.self_attn`.
    """
    inner = [name, *(around for around, _ in ancestors(model, name))]
    for part, layer, holder in zip(inner, inner[1:], inner[2:], strict=False):
        if isinstance(model.get_submodule(holder), nn.ModuleList):
            return model.get_submodule(part if part != name else layer)
    return model.get_submodule(inner[1])


def decoder_layers(model: nn.Module, projections: Projections) -> list[nn.Module]:
    """Find the decoder's layers, bottom up; none where the projections stand in no one list."""
    present = next(projection for projection in projections if projection is not None)
    for _, around in ancestors(model, module_name(model, present)):
        if isinstance(around, nn.ModuleList) and len(around) == len(projections):
            return list(around)
    return []


def search_layers(
    model: PreTrainedModel, layers: int, find: Callable[[nn.Module, nn.Module], T]
) -> list[list[T]]:
    """Look into every layer of the decoder's lists of so many; lists with nothing are left out."""
    stacks = (
        [find(model, layer) for layer in stack]
        for stack in model.get_decoder().modules()
        if isinstance(stack, nn.ModuleList) and len(stack) == layers
    )
    return [stack for stack in stacks if any(stack)]


def _by_name(model: PreTrainedModel, layers: int) -> list[nn.Module | None]:
    """Look in the decoder's list of layers for modules whose own and whose parent's name fit."""
    stacks = search_layers(model, layers, _output_projection)
    if len(stacks) > 1:
        raise ModelRefused(
            f"{_kind(model)} has {len(stacks)} lists of {layers} layers with attention."
        )
    return stacks[0] if stacks else [None] * layers


def _output_projection(model: nn.Module, layer: nn.Module) -> nn.Module | None:
    found = []
    for name, module in layer.named_modules():
        parent, own = ("", *name.split("."))[-2:]
        fits = parent in ATTENTION_NAMES and own in PROJECTION_NAMES
        if (fits or (parent in MIXED_NAMES and own == "o_proj")) and is_linear(module):
            found.append(module)
    if len(found) > 1:
        raise ModelRefused(
            f"A layer of {_kind(model)} has {len(found)} attention output projections, and it is "
            "not clear which heads are meant."
        )
    return found[0] if found else None


def _shape(model: nn.Module, layer: int, projection: nn.Module) -> tuple[int, int]:
    """Count the heads of the layer, and how many of them share a key-value head."""
    name = module_name(model, projection)
    sources = [module for _, module in ancestors(model, name)][:-1]
    config, reads = text_config(model), input_width(projection)
    heads = _number(sources, config, HEAD_COUNTS, layer)
    width = _number(sources, config, HEAD_WIDTHS, layer)
    if width is None and heads:  # the last resort
        width = config.hidden_size // heads
    if not heads or not width or heads * width != reads:
        raise ModelRefused(
            f"{name} reads {reads} values, but the model has {heads or 'an unknown number of'} "
            f"heads of {width or 'unknown'} values in layer {layer}."
        )
    if any(hasattr(source, name) for source in sources for name in LATENT):
        return heads, 1  # latent attention expands its cache to a key and a value for each head
    groups = _number(sources, None, ("num_key_value_groups",), layer)
    key_value_heads = _number(sources, config, KEY_VALUE_HEADS, layer) or heads
    return heads, groups or heads // key_value_heads


def _number(sources: Sequence[Any], config: Any, names: Sequence[str], layer: int) -> int | None:
    """Return the first of `names` that a module around the projection has, else the config."""
    for source in [*sources, config]:
        for name in names:
            value = getattr(source, name, None)
            if isinstance(value, list | tuple) and len(value) > layer:
                value = value[layer]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _kind(model: nn.Module) -> str:
    return f"A model of type {type(model).__name__}"
