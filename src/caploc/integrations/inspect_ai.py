"""The provider `caploc` of inspect_ai: `inspect eval task.py --model caploc/demo`.

inspect_ai finds this module by its entry point; what needs PyTorch is imported with a model.
"""

from inspect_ai.model import ModelAPI, modelapi


@modelapi(name="caploc")
def caploc() -> type[ModelAPI]:
    """Return the class of caploc's models."""
    from caploc.integrations.inspect_model import KnockedOutAPI

    return KnockedOutAPI
