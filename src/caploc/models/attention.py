"""What one head does with one text: what it attends to, and which words its output promotes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from caploc.components import Head
from caploc.errors import BadOption
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.models.proof import TOLERANCE

LONGEST = 512  # tokens; a larger map has no room on a screen, and its weights grow with the square


@torch.inference_mode()
def promoted_words(
    loaded: LoadedModel, tokens: Sequence[int], head: Head
) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, " vocabulary"]]:
    """How much a head's output at the last token adds to the logit of every token that may follow.

    Returns that, up to a positive factor, and the model's own logits there. The output goes through
    the head's slice of the output projection, the final norm (whose scale is the factor) and the
    unembedding: the head's direct effect, without what later layers make of it.

    Raises BadOption where the logits are not those of a final norm and an unembedding.
    """
    decoder: Any = loaded.model.get_decoder()
    seen: dict[str, Any] = {}

    def keep(name: str, module: Any, args: tuple, *output: Any) -> None:
        seen[name] = module, args

    projection: Any = loaded.projections[head.layer]
    # the last of these to run reads what all layers wrote
    parts = [each for each in decoder.children() if not isinstance(each, nn.ModuleList)]
    listening = chain(
        [projection.register_forward_pre_hook(partial(keep, "head"))],
        (part.register_forward_hook(partial(keep, "norm")) for part in parts),
    )
    ids = torch.tensor([list(tokens)], device=loaded.device)
    with temporary_hooks(listening):
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1].float().cpu()
    (norm, (stream, *_)), (_, (heads, *_)) = seen["norm"], seen["head"]
    unembedding: Any = loaded.model.get_output_embeddings()

    def read_out(vector: Tensor) -> Tensor:
        return unembedding(norm(vector.to(stream))).reshape(-1).float().cpu()

    if read_out(stream[:, -1:]).argmax() != logits.argmax():
        raise BadOption(f"{loaded.name} makes its logits in another way than other models.")
    every = heads.reshape(-1, heads.shape[-1])[-1:]
    width = every.shape[-1] // loaded.grid.heads_per_layer[head.layer]
    own = torch.zeros_like(every)
    place = slice(head.index * width, (head.index + 1) * width)
    own[:, place] = every[:, place]
    # less what the same layers make of nothing: biases are not the head's
    written = (projection(own) - projection(torch.zeros_like(own)))[None]
    return read_out(written) - read_out(torch.zeros_like(written)), logits


@torch.inference_mode()
def pattern(
    loaded: LoadedModel, tokens: Sequence[int], head: Head
) -> Float[Tensor, "queries keys"]:
    """How much of each token (a column) the head takes in at each token (a row); rows sum to 1.

    Query heads that share keys and values have a pattern each.

    Raises:
        UnknownName: if the model has no such head.
        BadOption: if the text is empty or too long, or the model hands no weights out, or those
            of another computation than its own.
    """
    loaded.grid.column(head)
    if not 0 < len(tokens) <= LONGEST:
        raise BadOption(
            f"Attention is shown for texts of 1 to {LONGEST} tokens; this one has {len(tokens)}. "
            "Shorten the prompt or the answer."
        )
    ids = torch.tensor([list(tokens)], device=loaded.model.device)
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    usual = loaded.model(**asked).logits[0]
    with eager(loaded):
        output = loaded.model(**asked, output_attentions=True)
    # Some models change their weights only in part when they hand them out.
    error = (output.logits[0].float() - usual.float()).square().mean().sqrt()
    if not error <= TOLERANCE.get(usual.dtype, 1e-3) * usual.float().std():
        raise BadOption(
            f"{loaded.name} computes something else when it hands its attention weights out, so "
            "they are not those of its answers and are not shown."
        )
    return of_head(loaded, getattr(output, "attentions", None), head, len(tokens))


@contextmanager
def eager(loaded: LoadedModel) -> Iterator[None]:
    """Have attention computed step by step inside the block; raises BadOption if it cannot be."""
    model: Any = loaded.model
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")  # the one that hands its weights out
    except (ValueError, ImportError, AttributeError) as error:
        raise BadOption(
            f"{loaded.name} has no attention that hands its weights out ({error})."
        ) from error
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def of_head(
    loaded: LoadedModel, attentions: Sequence[Tensor | None] | None, head: Head, length: int
) -> Float[Tensor, "queries keys"]:
    """One head's weights among those of all layers that have attention.

    Raises BadOption if they are not there, or are not one map for each query head.
    """
    counts = loaded.grid.heads_per_layer
    found = list(attentions or ())
    if len(found) != len(counts):  # layers without attention are left out by some models
        found = [weights for weights in found if weights is not None]
        place = sum(count > 0 for count in counts[: head.layer])
    else:
        place = head.layer
    weights = found[place] if place < len(found) else None
    if weights is None or tuple(weights.shape) != (1, counts[head.layer], length, length):
        raise BadOption(f"{loaded.name} hands no attention weights of layer {head.layer} out.")
    return weights[0, head.index].float().cpu()
