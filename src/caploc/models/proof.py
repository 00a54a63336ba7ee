"""Prove that cutting at the projections found does what is claimed, before anything is measured.

Four things are shown, on short random token ids, each able to fail:

1. *The projections read an attention's output.* In every layer the part that holds the projection
   (its attention module) is run again on the hidden states it got, with all but the last position
   changed. What the projection reads at the last position must change too: attention alone carries
   something from one position to another. Queries, keys, values, gates and everything in a
   feed-forward block read one position only.
2. *Hooks alone change nothing*: with an empty mask and a hook on every layer the logits are
   bit-identical.
3. *A cut is a cut.* Two masks, each with one random head in every layer, in one forward pass as
   two rows beside an intact one: each row must equal the model with those heads' weight columns
   set to zero, and the intact row the intact model. This fails if a layer uses the weights without
   calling the module, or if a mask reaches another row.
4. *A cut shows*: each of the two rows differs from the intact model.

The last two are shown where a text is read at once and where `generate` reads single tokens from
kept keys. Weights that cannot be set to zero in place (quantized, or waiting in main memory or on
disk) stay as they are, and what they would multiply is set to zero instead, inside the module and
after all hooks, with one mask for a whole batch.

What stays unproved is the meaning of a slice: that values `h * width` to `(h + 1) * width` belong
to head h is the convention of every model in transformers, and follows from head count and width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.components import Grid, Heads
from caploc.errors import ModelRefused
from caploc.models.cutting import Projections, knocked_out, list_sites
from caploc.models.generation import generating
from caploc.models.hooks import forward_as, temporary_hooks
from caploc.models.placement import input_device, rows_mix
from caploc.models.projections import layer_part, module_name, text_config

TOKENS = 8
# Largest error of a cut, as a share of what the cut changes in the logits (root mean square). With
# equal batch shapes the two ways of cutting add the same numbers in the same order, so the error is
# normally 0; routed experts see other batch shapes, and there rounding shows.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
# The same for bitsandbytes in 8 bits: large values anywhere in a batch decide which columns of what
# is multiplied are not rounded, so that a row's logits move a little with the rows beside it.
MOVING_TOLERANCE = 0.25
# Share of a change at earlier positions that must arrive at the last one. Without attention it is 0
# up to rounding; with attention it is of the order of the weight given to the past.
MIXING = 1e-3
STEPS = 2  # tokens that are read one by one in the proof, after the others at once

Tokens = Int[Tensor, "rows tokens"]
Logits = Float[Tensor, "rows _ vocabulary"]  # whole passes, or single steps


@torch.no_grad()
def prove_heads(
    model: PreTrainedModel, projections: Projections, grid: Heads, *, seed: int = 0
) -> tuple[str, ...]:
    """Show that the projections are attention outputs and that masks cut what they say.

    In every way in which answers are made: where a text is read at once, and where `generate` reads
    one token after another from kept keys. The model is left as it was: weights, buffers, hooks and
    training mode. Returns what else carries something from token to token, which no mask cuts.
    Raises ModelRefused, naming what could not be shown.
    """
    with resting(model, seed) as (tokens, intact):
        _prove_attention(model, projections, tokens)
        prove_cut(
            model, projections, grid, masks_to_prove(grid, seed), tokens, intact,
            named=lambda mask: ", ".join(map(str, grid.named(mask.numpy()))) or "no head",
            outputs="the attention's outputs",
        )  # fmt: skip
        return find_uncovered(model, projections, grid, tokens)


@contextmanager
def resting(model: PreTrainedModel, seed: int) -> Iterator[tuple[Tokens, Logits]]:
    """Put a model out of training for a block; give random tokens, and its logits for them."""
    tokens, training = random_tokens(model, seed), model.training
    model.eval()
    try:
        intact = logits_of(model, tokens)
        if (intact.isnan() | intact.isposinf()).any():
            raise ModelRefused(
                f"{type(model).__name__} gives logits that are no finite numbers in {model.dtype}; "
                "load it with another --dtype (float32 and bfloat16 hold larger numbers than "
                "float16). If that changes nothing the weights are damaged: get them again."
            )
        yield tokens, intact
    finally:
        model.train(training)


def masks_to_prove(grid: Grid, seed: int, share: float = 0.0) -> Bool[Tensor, "rows parts"]:
    """Cut nothing in row 0; in rows 1 and 2 unlike random shares of each layer, a part at least."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(3, grid.size, dtype=torch.bool)
    for columns in grid.layer_slices:
        parts = columns.stop - columns.start
        if parts:
            order, count = torch.randperm(parts, generator=generator), max(1, int(share * parts))
            masks[1, columns.start + order[:count]] = True
            masks[2, columns.start + order[-count:]] = True
    return masks


def _prove_attention(model: PreTrainedModel, projections: Projections, tokens: Tokens) -> None:
    """Show of every projection that it reads an attention's output."""
    calls: dict[str, Call] = {}
    with ExitStack() as listening:
        for projection in projections:
            if projection is not None:
                name = module_name(model, projection)
                calls[name] = Call(layer_part(model, name), projection)
                listening.enter_context(calls[name].listening())
        logits_of(model, tokens)
    for name, call in calls.items():
        if not call.read:
            raise ModelRefused(f"{name} is not called in a forward pass.")
        change = (call.reads_with_another_past() - call.read[0]).abs().float()
        arrived, sent = change[..., -1, :].max(), change[..., :-1, :].max()
        if not arrived > MIXING * sent:
            raise ModelRefused(
                f"{name} is not an attention output projection: what it reads at one position "
                f"does not depend on earlier positions."
            )


@dataclass
class Call:
    """One call of the part of a layer that holds a projection, and what the projection read."""

    part: nn.Module
    projection: Any  # or what takes a pre-hook like one
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    read: list[Float[Tensor, "... tokens width"]] = field(default_factory=list)

    def with_another_past(self) -> Any:
        """Call the part again with other hidden states at all but the last position."""
        args = [_other_past(value) for value in self.args[:1]] + list(self.args[1:])
        kwargs = dict(self.kwargs)
        if not args:  # some layers hand their hidden states on by name
            name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
            kwargs[name] = _other_past(kwargs[name])
        return self.part(*args, **kwargs)

    def reads_with_another_past(self) -> Float[Tensor, "... tokens width"]:
        """Return what the projection reads in `with_another_past`."""
        with self.listening():
            self.with_another_past()
        return self.read[-1]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Remember calls of the part, and what the projection reads, for a block."""

        def remember(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            # cloned: a layer may add to its hidden states in place later on
            self.args = tuple(_cloned(value) for value in args)
            self.kwargs = {name: _cloned(value) for name, value in kwargs.items()}

        def read(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            self.read.append(args[0].detach().clone())

        remembering = self.part.register_forward_pre_hook(remember, with_kwargs=True)
        with temporary_hooks([remembering, self.projection.register_forward_pre_hook(read)]):
            yield


def _other_past(hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... tokens width"]:
    # not redrawn: the norm stays, so that no model leaves the range it was made for. Not negated
    # alone: a product of two projections would not notice.
    return torch.cat([-hidden[..., :-1, :].roll(1, dims=-1), hidden[..., -1:, :]], dim=-2)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def find_uncovered(
    model: PreTrainedModel, projections: Projections, grid: Grid, tokens: Tokens
) -> tuple[str, ...]:
    """Say where something goes from token to token though every head is knocked out.

    Such are linear attention, state spaces and convolutions: a search among heads never sees them.
    """
    pasts = tokens[:2].clone()
    pasts[1, -1] = pasts[0, -1]  # two texts that end alike

    def moved() -> float:
        logits = logits_of(model, pasts)[:, -1]
        return root_mean_square(logits[0] - logits[1])

    intact, every = moved(), torch.ones(1, grid.size, dtype=torch.bool)
    with knocked_out(projections, grid, every):
        if not moved() > tolerance(model) * intact:
            return ()
    bare = [number for number, projection in enumerate(projections) if projection is None]
    where = f" (there are none in {name_layers(bare)})" if bare else ""
    return (f"a part of {type(model).__name__} beside the heads{where}",)


def name_layers(numbers: Sequence[int]) -> str:
    """Write layers' numbers: `layer 3`, `layers 0, 1, 2`."""
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def prove_cut(  # noqa: PLR0913  (a model, what is cut of it, and how it is told)
    model: PreTrainedModel,
    projections: Projections,
    grid: Grid,
    masks: Bool[Tensor, "rows parts"],
    tokens: Tokens,
    intact: Logits,
    *,
    named: Callable[[Tensor], str],
    outputs: str,
) -> None:
    """Show that each row equals the model with its parts' weights at zero, read in both ways.

    Those are one pass, whose `intact` logits are given, and single tokens from kept keys. `named`
    tells a mask's parts, and `outputs` what the projections should be. Raises ModelRefused if rows
    differ, if a cut changes nothing, or an empty one something.
    """
    kind = type(model).__name__
    with knocked_out(projections, grid, torch.zeros_like(masks[:1]), every_layer=True):
        if not torch.equal(logits_of(model, tokens), intact):
            raise ModelRefused(
                f"{kind} gives other logits when nothing is knocked out but {outputs} are hooked, "
                "or from one run to the next."
            )
    writable = all(is_writable(module) for *_, module in list_sites(projections, grid))
    zeroed = columns_zeroed if writable else inputs_zeroed
    steps = partial(step_logits, model, tokens)
    for read, before in ((partial(logits_of, model, tokens), intact), (steps, steps())):
        with knocked_out(projections, grid, masks):
            cut = read()
        for row, mask in enumerate(masks):
            truth = before[row]
            if bool(mask.any()):
                with zeroed(projections, grid, mask):
                    truth = read()[row]
            effect = root_mean_square(truth - before[row])
            if bool(mask.any()) and not effect > 0:
                raise ModelRefused(
                    f"{kind}: knocking out {named(mask)} leaves the logits as they are, so that "
                    f"the projections found cannot be {outputs}."
                )
            error = root_mean_square(cut[row] - truth)
            scale = effect if bool(mask.any()) else root_mean_square(before[row])
            if not error <= tolerance(model) * scale:
                raise ModelRefused(
                    f"{kind}: with {named(mask)} knocked out by a mask the logits differ from "
                    f"those with their weights set to zero, by {error / scale:.2g} of the "
                    "knockout's effect."
                )


def tolerance(model: PreTrainedModel) -> float:
    """Return the largest error of a cut, as a share of its effect."""
    return MOVING_TOLERANCE if rows_mix(model.config) else TOLERANCE.get(model.dtype, 1e-3)


def random_tokens(model: PreTrainedModel, seed: int) -> Tokens:
    """Draw three rows of token ids."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = text_config(model).vocab_size
    return torch.randint(vocabulary, (3, TOKENS), generator=generator).to(input_device(model))


def logits_of(model: PreTrainedModel, tokens: Tokens) -> Logits:
    """Compute all logits, in float32."""
    # a mask of ones, because a drawn token may happen to be the padding token
    return model(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False
    ).logits.float()


class _Dictated(LogitsProcessor):
    """Keeps the logits of each step, and has `generate` go on with given tokens."""

    def __init__(self, tokens: Int[Tensor, "rows steps"]) -> None:
        self.tokens, self.read = tokens, list[Tensor]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = min(len(self.read), self.tokens.shape[1] - 1)  # nothing reads the last one
        self.read.append(scores.float().clone())
        said = self.tokens[:, step : step + 1].to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, said, 0)


def step_logits(model: PreTrainedModel, tokens: Tokens) -> Logits:
    """Compute the last logits as `generate` comes to them: a prompt, then token by token.

    The tokens are those given and not the likeliest, so that two models can be held together.
    """
    dictated = _Dictated(tokens[:, -STEPS:])
    prompt, generator = tokens[:, :-STEPS], cast(Any, model)
    options: dict[str, Any] = {"eos_token_id": None, "max_new_tokens": STEPS + 1}
    try:
        with generating(model, **options) as config:
            generator.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=config,
                logits_processor=LogitsProcessorList([dictated]),
            )
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
        short = " ".join(str(error).split())[:200]
        raise ModelRefused(
            f"{type(model).__name__} cannot write token by token with generate "
            f"({type(error).__name__}: {short})."
        ) from error
    return torch.stack(dictated.read, dim=1)


def root_mean_square(difference: Tensor) -> float:
    """Measure a difference between logits."""
    return float(difference.square().mean().sqrt())


# The same knockout by other roads than a mask: what the proof holds masks against.


@contextmanager
def columns_zeroed(
    projections: Projections, grid: Grid, mask: Bool[Tensor, " parts"]
) -> Iterator[None]:
    """Set the weights that read the mask's parts to zero for a block, and back, bit for bit."""
    saved: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        for module, cut in _cut_modules(projections, grid, mask):
            weights = reads_first(module).unflatten(0, (len(cut), -1))
            here = cut.to(weights.device)
            saved.append((weights, here, weights[here]))
            weights[here] = 0
        yield
    finally:
        for weights, here, before in saved:
            weights[here] = before


@contextmanager
def inputs_zeroed(
    projections: Projections, grid: Grid, mask: Bool[Tensor, " heads"]
) -> Iterator[None]:
    """Set to zero what the mask's heads hand on, for a block: for weights that cannot be written.

    Inside a module's own `forward`, after all hooks, and for every row of the batch.
    """

    def without(forward: Callable, cut: Bool[Tensor, " heads"], mixed: Tensor) -> Tensor:
        kept = (~cut).repeat_interleave(mixed.shape[-1] // len(cut))
        return forward(mixed * kept.to(mixed))

    with ExitStack() as back:
        for module, cut in _cut_modules(projections, grid, mask):
            back.enter_context(forward_as(module, partial(without, module.forward, cut)))
        yield


def _cut_modules(
    projections: Projections, grid: Grid, mask: Bool[Tensor, " parts"]
) -> Iterator[tuple[Any, Bool[Tensor, " held"]]]:
    """Yield the modules that read a cut part, each with which of the parts it holds are cut."""
    for _, columns, module in list_sites(projections, grid):
        if bool(mask[columns].any()):
            yield module, mask[columns]


def is_writable(module: Any) -> bool:
    """Tell whether its weight is here and plain, so that columns of it can be set to zero."""
    if hasattr(module, "base_layer"):  # an adapter of peft reads the same values beside it
        return False
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return False
    here = weight.detach()
    return type(here) is Tensor and here.is_floating_point() and here.device.type != "meta"


def reads_first(projection: Any) -> Float[Tensor, "reads writes"]:
    """View the projection's weight with what it reads as first axis."""
    weight: Tensor = projection.weight.detach()
    return weight if isinstance(projection, Conv1D) else weight.T
