"""Models: load one, find and prove its heads, knock them out."""

from caploc.models.cutting import knocked_out
from caploc.models.knockout import ReferenceOutputs, knockout, reference_outputs
from caploc.models.loading import LoadedModel, check_model, load_model, load_tokenizer
from caploc.models.projections import find_projections
from caploc.models.proof import prove_heads

__all__ = [
    "LoadedModel",
    "ReferenceOutputs",
    "check_model",
    "find_projections",
    "knocked_out",
    "knockout",
    "load_model",
    "load_tokenizer",
    "prove_heads",
    "reference_outputs",
]
