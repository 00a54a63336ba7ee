"""A loaded model seen as its neurons instead of its heads."""

from dataclasses import dataclass, fields

from caploc.errors import ModelRefused
from caploc.models.loading import CutModel
from caploc.models.placement import is_whole
from caploc.neurons.grid import NeuronGrid
from caploc.neurons.proof import prove
from caploc.neurons.sites import find_sites


@dataclass(frozen=True)
class NeuronModel(CutModel):
    """A model whose parts are its feed-forward neurons, read by the output projections."""

    grid: NeuronGrid


def as_neurons(loaded: CutModel) -> NeuronModel:
    """The same model, its feed-forward output projections found and proved.

    Raises:
        ModelRefused: if they are not found or fail the proof, or the weights are not is_whole here.
    """
    if not is_whole(loaded.model):
        raise ModelRefused(
            f"{loaded.name} is quantized, spread over devices or shared among processes; neurons "
            "are found with gradients and proved on plain weights, so load it whole on one device."
        )
    sites, grid = find_sites(loaded.model)
    prove(loaded.model, sites, grid)
    same = {field.name: getattr(loaded, field.name) for field in fields(CutModel)}
    return NeuronModel(**same | {"grid": grid, "projections": sites})
