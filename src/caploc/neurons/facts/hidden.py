"""Where a model's hidden states, feed-forward outputs and attention outputs come out."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from caploc.errors import ModelRefused
from caploc.lookup import pick
from caploc.models.cutting import Beside, Site
from caploc.models.projections import decoder_layers, find_projections, layer_part, module_name
from caploc.neurons.experts import Experts
from caploc.neurons.loading import NeuronModel

Outputs = list[nn.Module | None]  # one for each layer; None where a layer has none


def outputs(loaded: NeuronModel, kind: str) -> Outputs:
    """The modules whose output is each layer's `state`, `feed_forward` or `attention` output.

    Raises:
        UnknownName: if there is no such kind.
        ModelRefused: if the layers stand in no one list, or (for `attention`) no heads are found.
    """
    return pick(KINDS, kind, "kind of hidden state")(loaded)


def tensor_of(output: Any) -> Tensor:
    """The hidden states in what a module returns: the first of several things, or the only one."""
    found: Tensor = output[0] if isinstance(output, tuple | list) else output
    return found


def with_tensor(output: Any, hidden: Tensor) -> Any:
    """What a module returns, with other hidden states."""
    if isinstance(output, tuple | list):
        return type(output)((hidden, *output[1:]))
    return hidden


def _states(loaded: NeuronModel) -> Outputs:
    layers = decoder_layers(loaded.model, [_plain(site) for site in loaded.projections])
    if not layers:
        raise ModelRefused(
            f"The layers of {loaded.name} do not stand in one list, so that hidden states cannot "
            "be traced."
        )
    return list(layers)


def _feed_forward(loaded: NeuronModel) -> Outputs:
    return [_block(loaded.model, _plain(site)) for site in loaded.projections]


def _attention(loaded: NeuronModel) -> Outputs:
    return [_block(loaded.model, module) for module in find_projections(loaded.model)[0]]


def _plain(site: Site | None) -> nn.Module | None:
    """The first module of a site."""
    if isinstance(site, Beside):
        return _plain(site.modules[0])
    found: nn.Module | None = site.module if isinstance(site, Experts) else site
    return found


def _block(model: nn.Module, projection: nn.Module | None) -> nn.Module | None:
    """The part of the layer that holds a projection, or the projection where it has no part."""
    if projection is None:
        return None
    around = layer_part(model, module_name(model, projection))
    # OPT's feed-forward projections stand in the layer itself
    whole = any(
        isinstance(each, nn.ModuleList) and around in list(each) for each in model.modules()
    )
    return projection if whole else around


KINDS: dict[str, Callable[[NeuronModel], Outputs]] = {
    "state": _states,
    "feed_forward": _feed_forward,
    "attention": _attention,
}
