"""What passes with gradients take of memory, foreseen from a model's shape, and how to take less.

Bytes are counted tensor by tensor, as transformers' layers make them and autograd keeps them; no
weight is read, so that a model on torch's `meta` device, which has no values, will do.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from caploc.engine.memory import head_widths, largest
from caploc.errors import BadOption, ModelRefused
from caploc.models.cutting import Projections
from caploc.models.experts import has_experts
from caploc.models.hooks import forward_as
from caploc.models.neurons import find_sites
from caploc.models.placement import SHARD, is_quantized
from caploc.models.projections import decoder_layers, text_config
from caploc.workbench import ModelOptions

# Vectors as wide as the feed-forward block that a backward pass keeps of a token in one layer: the
# gate before and after its nonlinearity and the other input; one more of a nonlinearity written in
# Python; and what the output projection reads, where that is multiplied or the projection trained.
INNER, STEPWISE, HANDED = 3, ("gelu_new", "gelu_fast", "gelu_python"), 1
HEADS = 4  # likewise as wide as all heads: queries, keys, values and what attention hands on
PASSING_INNER, PASSING_HIDDEN = 3, 4  # vectors alive beside these while one layer is run backward
FLOAT = 4  # bytes: norms and losses are computed in float32 whatever the dtype


@dataclass(frozen=True)
class PassMemory:
    """Bytes that a pass takes beside the weights.

    Of each `token` of a row what all layers keep, and while one is run (`passing`); of each `pair`
    of a row's tokens; of each token that is `predicted`; and `fixed`, whatever the batch.
    """

    token: int
    passing: int
    pair: int
    predicted: int
    fixed: int = 0

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        *,
        handed: bool = True,
        gradients: bool = True,
        checkpointing: bool = False,
    ) -> "PassMemory":
        """Foresee a forward pass and, with `gradients`, one back that ends at activations.

        What output projections read is kept where it is `handed` on by gates in every layer, or
        recorded. With `checkpointing` a layer keeps what goes into it, and is run again on the way
        back.
        """
        config: Any = text_config(model)
        size, layers, hidden = model.dtype.itemsize, config.num_hidden_layers, config.hidden_size
        heads = largest(config, "num_attention_heads") or 1
        inner = find_sites(model)[1].neurons_per_layer
        vectors = INNER + (activation_name(config) in STEPWISE)
        kept = vectors * sum(inner) // layers + HEADS * heads * max(head_widths(config))
        each = size * kept + norm_bytes(model, hidden, heads) // layers
        # nothing below the first gates has a gradient
        token = (layers - 1) * each + HANDED * handed * size * sum(inner)
        # each layer makes its own of the mask; without a kernel, weights before and after softmax
        plain = getattr(model.config, "_attn_implementation", "sdpa") == "eager"
        pair = heads * (FLOAT + 2 * size) if plain else size
        if not gradients:
            token = HANDED * handed * size * sum(inner)
        elif checkpointing:
            token, pair = each + (layers * hidden + HANDED * handed * max(inner)) * size, pair * 2
        else:
            pair = pair * layers
        vocabulary = config.vocab_size
        return cls(
            token=token,
            passing=size * (PASSING_INNER * max(inner) + PASSING_HIDDEN * hidden),
            pair=pair + 1,
            predicted=vocabulary * (2 * size + 3 * FLOAT),
            # one projection's weights at a time are unpacked
            fixed=2 * size * hidden * max(inner) if is_quantized(model.config) else 0,
        )

    def row(self, tokens: int, predicted: int) -> int:
        """Foresee what one row adds to a pass."""
        ends = max(self.passing * tokens, self.predicted * predicted)
        return self.token * tokens + self.pair * tokens**2 + ends


def activation_name(config: Any) -> str:
    """Name the nonlinearity of the feed-forward blocks."""
    names = ("hidden_act", "activation_function", "hidden_activation")
    return next((str(name) for each in names if (name := getattr(config, each, None))), "")


def norm_bytes(model: PreTrainedModel, hidden: int, heads: int) -> int:
    """Count what all norms keep of a token; each is as wide as the model, or as every head.

    Those written in Python compute in float32.
    """
    total = 0
    for module in model.modules():
        weight: Any = getattr(module, "weight", None)
        if "norm" in type(module).__name__.lower() and weight is not None:
            width = hidden if weight.numel() >= hidden else weight.numel() * heads
            own = isinstance(module, nn.LayerNorm)
            total += width * (model.dtype.itemsize if own else FLOAT)
    return total


@contextmanager
def checkpointed(model: nn.Module, projections: Projections) -> Iterator[None]:
    """Have every layer keep no more than its input for a backward pass, for a block."""
    with ExitStack() as back:
        for layer in decoder_layers(model, projections):
            again = partial(checkpoint, layer.forward, use_reentrant=False)
            back.enter_context(forward_as(layer, again))
        yield


def check_scorable(asked: ModelOptions, method: str) -> None:
    """Refuse, before weights are read, what cannot score neurons: where they lie, and how.

    Raises BadOption if processes share the model, or a method reads weights that are packed;
    ModelRefused if the experts of a model are packed or spread.
    """
    if asked.workers is not None or asked.device == SHARD:
        raise BadOption(
            "Neurons are scored in one process; leave out --workers, and for a model larger than "
            "one GPU use --device spread or --quantize."
        )
    weights = asked.weights()
    if not weights.quantized and not weights.where.spread:
        return
    how = "quantized" if weights.quantized else "spread over devices"
    if has_experts(weights.empty):
        raise ModelRefused(
            f"The neurons of {asked.name} are those of routed experts, which are scored on plain "
            f"weights on one device only, and not {how}; leave out --quantize and --device spread."
        )
    if weights.quantize == "4bit" and weights.where.device.type == "cpu":
        raise BadOption(
            "Weights of --quantize 4bit compute without gradients on a CPU, and scores of neurons "
            "need some; choose int8 or 8bit, or a GPU."
        )
    if method == "logit":
        raise BadOption(
            f"--method logit reads the weights of {asked.name}, which are {how}; choose gradient, "
            "integrated, joint or activation."
        )
