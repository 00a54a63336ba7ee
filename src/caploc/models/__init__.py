"""Models: load one, find and prove its heads, knock them out."""

from caploc.models.knockout import knocked_out, knockout, reference_outputs
from caploc.models.loading import LoadedModel, check_model, load_model, load_tokenizer
from caploc.models.projections import locate
from caploc.models.proof import prove
from caploc.models.replacements import ReferenceOutputs

__all__ = [
    "LoadedModel",
    "ReferenceOutputs",
    "check_model",
    "knocked_out",
    "knockout",
    "load_model",
    "load_tokenizer",
    "locate",
    "prove",
    "reference_outputs",
]
