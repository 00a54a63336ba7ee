"""What a head does on one example, where the answer is written: something to look at, no claim."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from caploc.components import Component, Head
from caploc.engine.batch import BatchEngine
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.models.proof import TOLERANCE
from caploc.result import AttendedToken, HeadAction
from caploc.tasks.task import Rolling, Task

SHOWN = 5  # tokens that are attended to, and words that are promoted
LONGEST = 512  # tokens; attention weights grow with the square


def describe_action(
    engine: Any, task: Task, example: int, component: Component
) -> HeadAction | None:
    """Say what a head attends to at the end of a prompt, and which words its output promotes there.

    None for anything but a head, where the model is not in this process, where it hands no
    attention out or makes its logits in another way than other models, or the prompt is long.
    """
    request = task.requests(example)[0]
    if not isinstance(component, Head) or isinstance(request, Rolling):
        return None
    if not isinstance(engine, BatchEngine) or not isinstance(engine.loaded, LoadedModel):
        return None
    loaded, tokens = engine.loaded, engine.encoder.context(request)
    try:
        shares = read_attention(loaded, tokens, component) if len(tokens) <= LONGEST else None
        promoted = None if shares is None else promote_words(loaded, tokens, component)
    except torch.OutOfMemoryError:
        return None
    if shares is None or promoted is None:
        return None

    def text(token: int) -> str:
        return str(loaded.tokenizer.decode([token]))

    gains, logits = promoted
    most = shares.topk(min(SHOWN, len(tokens)))
    following = int(logits.argmax())
    return HeadAction(
        head=str(component),
        prompt=str(loaded.tokenizer.decode(list(tokens), skip_special_tokens=True)),
        attends=[
            AttendedToken(token=text(tokens[place]), place=place, share=share)
            for place, share in zip(most.indices.tolist(), most.values.tolist(), strict=True)
        ],
        promotes=[text(token) for token in gains.topk(SHOWN).indices.tolist()],
        following=text(following),
        rank=int((gains > gains[following]).sum()) + 1,
        of=len(gains),
    )


@torch.inference_mode()
def read_attention(
    loaded: LoadedModel, tokens: Sequence[int], head: Head
) -> Float[Tensor, " tokens"] | None:
    """How much of each token the head takes in at the last one.

    Query heads that share keys and values have weights each. None where the model hands no weights
    out, or those of another computation than its own.
    """
    model: Any = loaded.model
    ids = torch.tensor([list(tokens)], device=loaded.device)
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    usual, before = model(**asked).logits[0].float(), model.config._attn_implementation
    try:
        model.set_attn_implementation("eager")  # the one that hands its weights out
        output = model(**asked, output_attentions=True)
    except (ValueError, ImportError, AttributeError):
        return None
    finally:
        model.set_attn_implementation(before)
    # Some models change their weights only in part when they hand them out.
    error = (output.logits[0].float() - usual).square().mean().sqrt()
    layers = [layer for layer, heads in enumerate(loaded.grid.heads_per_layer) if heads]
    weights = [each for each in output.attentions or () if each is not None]
    if not error <= TOLERANCE.get(model.dtype, 1e-3) * usual.std() or len(weights) != len(layers):
        return None
    return weights[layers.index(head.layer)][0, head.index, -1].float().cpu()


@torch.inference_mode()
def promote_words(
    loaded: LoadedModel, tokens: Sequence[int], head: Head
) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, " vocabulary"]] | None:
    """How much a head's output at the last token adds to the logit of every token that may follow.

    Returns that, up to a positive factor, and the model's own logits there. The output goes through
    the head's slice of the output projection, the final norm (whose scale is the factor) and the
    unembedding: the head's direct effect, without what later layers make of it. None where the
    logits are not those of a final norm and an unembedding.
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
        return None
    every = heads.reshape(-1, heads.shape[-1])[-1:]
    width = every.shape[-1] // loaded.grid.heads_per_layer[head.layer]
    own = torch.zeros_like(every)
    place = slice(head.index * width, (head.index + 1) * width)
    own[:, place] = every[:, place]
    # less what the same layers make of nothing: biases are not the head's
    written = (projection(own) - projection(torch.zeros_like(own)))[None]
    return read_out(written) - read_out(torch.zeros_like(written)), logits
