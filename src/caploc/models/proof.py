"""Prove that cutting at the projections found does what is claimed, before anything is measured.

Four things are shown, on short random token ids, each able to fail:

1. *The projections read an attention's output.* In every layer the part that holds the projection
   (its attention module) is run again on the hidden states it got, with all but the last position
   changed. What the projection reads at the last position must change too: attention alone carries
   something from one position to another. Queries, keys, values, gates and everything in a
   feed-forward block read one position only, so that naming any of them by hand fails here,
   whatever its width.
2. *Hooks alone change nothing*: with an empty mask and a hook on every layer the logits are
   bit-identical.
3. *A cut is a cut.* Two masks, each with one random head in every layer, in one forward pass as
   two rows beside an intact one: each row must equal the model with those heads' weight columns
   set to zero, and the intact row the intact model. This fails if a layer uses the weights without
   calling the module, or if a mask reaches another row.
4. *A cut shows*: each of the two rows differs from the intact model.

Weights that cannot be set to zero in place (quantized, or waiting in main memory or on disk) stay
as they are, and what they would multiply is set to zero instead, inside the module and after all
hooks, with one mask for a whole batch. One more thing makes up for it:

5. *Every layer's cut shows by itself*: in one pass with a row for each layer, all heads of which
   are cut, each row differs from the intact one. A module that is called and not used fails here.

What stays unproved is the meaning of a slice: that values `h * width` to `(h + 1) * width` belong
to head h is the convention of every model in transformers, and follows from head count and width.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.grid import Grid
from caploc.heads import HeadGrid
from caploc.models.cutting import Projections, knocked_out, list_sites
from caploc.models.hooks import forward_as, temporary_hooks
from caploc.models.placement import input_device, rows_mix
from caploc.models.projections import BY_HAND, layer_part, module_name, text_config

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
NOISE = 10  # times what two intact rows differ by, a layer's cut must change

Tokens = Int[Tensor, "rows tokens"]
Logits = Float[Tensor, "rows tokens vocabulary"]


@torch.no_grad()
def prove_heads(
    model: PreTrainedModel, projections: Projections, grid: HeadGrid, *, seed: int = 0
) -> None:
    """Show that the projections are attention outputs and that masks cut what they say.

    The model is left as it was: weights, buffers, hooks and training mode. Raises ModelRefused,
    naming what could not be shown.
    """
    with resting(model, seed) as (tokens, intact):
        _prove_attention(model, projections, tokens)
        empty = torch.zeros(1, grid.size, dtype=torch.bool)
        with knocked_out(projections, grid, empty, every_layer=True):
            if not torch.equal(logits_of(model, tokens), intact):
                raise ModelRefused(
                    f"{type(model).__name__} gives other logits when no head is knocked out but "
                    "its projections are hooked, or from one run to the next."
                )
        zeroed = columns_zeroed
        if not all(is_writable(module) for *_, module in list_sites(projections, grid)):
            zeroed = inputs_zeroed
            prove_each_layer(model, projections, grid, tokens)
        proof = CutProof(
            projections,
            grid,
            zeroed,
            lambda mask: ", ".join(map(str, grid.named(mask.numpy()))) or "no head",
            "the attention's outputs",
            BY_HAND,
        )
        proof.hold(model, masks_to_prove(grid, seed), tokens, intact)


@contextmanager
def resting(model: PreTrainedModel, seed: int) -> Iterator[tuple[Tokens, Logits]]:
    """Put a model out of training for a block; give random tokens, and its logits for them."""
    tokens, training = random_tokens(model, seed), model.training
    model.eval()
    try:
        intact = logits_of(model, tokens)
        if (intact.isnan() | intact.isposinf()).any():
            raise _infinite(model)
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


def _infinite(model: PreTrainedModel) -> ModelRefused:
    """Build the error for logits that are no numbers: a weight's fault, or else the dtype's."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            return ModelRefused(
                f"{type(model).__name__}: {name} holds values that are no finite numbers (NaN or "
                "infinity), so that its logits are none; the weights are damaged: get them again."
            )
    return ModelRefused(
        f"{type(model).__name__} gives logits that are no finite numbers in {model.dtype}; load it "
        "with another --dtype (float32 and bfloat16 hold larger numbers than float16)."
    )


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
            raise ModelRefused(f"{name} is not called in a forward pass. {BY_HAND}")
        change = (call.reads_with_another_past() - call.read[0]).abs().float()
        arrived, sent = change[..., -1, :].max(), change[..., :-1, :].max()
        if not arrived > MIXING * sent:
            raise ModelRefused(
                f"{name} is not an attention output projection: what it reads at one position "
                f"does not depend on earlier positions. {BY_HAND}"
            )


@dataclass
class Call:
    """One call of the part of a layer that holds a projection, and what the projection read."""

    part: nn.Module
    projection: Any  # or what takes a pre-hook like one
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    read: list[Float[Tensor, "... tokens width"]] = field(default_factory=list)

    def reads_with_another_past(self) -> Float[Tensor, "... tokens width"]:
        """Call the part again with the hidden states of all but the last position negated."""
        with self.listening():
            args = [_other_past(value) for value in self.args[:1]] + list(self.args[1:])
            kwargs = dict(self.kwargs)
            if not args:  # some layers hand their hidden states on by name
                name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
                kwargs[name] = _other_past(kwargs[name])
            self.part(*args, **kwargs)
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

        part = self.part.register_forward_pre_hook(remember, with_kwargs=True)
        with temporary_hooks([part, self.projection.register_forward_pre_hook(read)]):
            yield


def _other_past(hidden: Float[Tensor, "... tokens width"]) -> Float[Tensor, "... tokens width"]:
    # negated and not redrawn: the norm stays, so that no model leaves the range it was made for
    return torch.cat([-hidden[..., :-1, :], hidden[..., -1:, :]], dim=-2)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class CutProof:
    """A cut by masks held against the weights that read the cut parts set to zero.

    `zeroed` sets them for a block, `named` tells a mask's parts, `outputs` what the projections
    should be, and `remedy` what a user can do if they are not.
    """

    projections: Projections
    grid: Grid
    zeroed: Callable[[Projections, Grid, Tensor], AbstractContextManager[None]]
    named: Callable[[Tensor], str]
    outputs: str
    remedy: str = ""

    def hold(
        self,
        model: PreTrainedModel,
        masks: Bool[Tensor, "rows parts"],
        tokens: Tokens,
        intact: Logits,
    ) -> None:
        """Show that each row of one pass equals the model with its parts' weights at zero.

        Raises ModelRefused if it does not, or a cut changes nothing.
        """
        with knocked_out(self.projections, self.grid, masks):
            cut = logits_of(model, tokens)
        for row, mask in enumerate(masks):
            with self.zeroed(self.projections, self.grid, mask):
                truth = logits_of(model, tokens)[row]
            effect = root_mean_square(truth - intact[row])
            if bool(mask.any()) and not effect > 0:
                raise ModelRefused(
                    f"{type(model).__name__}: knocking out {self.named(mask)} leaves the logits as "
                    f"they are, so that the projections found cannot be {self.outputs}. "
                    f"{self.remedy}".strip()
                )
            error = root_mean_square(cut[row] - truth)
            scale = effect if bool(mask.any()) else root_mean_square(intact[row])
            if not error <= tolerance(model) * scale:
                raise ModelRefused(
                    f"{type(model).__name__}: with {self.named(mask)} knocked out by a mask the "
                    f"logits differ from those with their weights set to zero, by "
                    f"{error / scale:.2g} of the knockout's effect. {self.remedy}".strip()
                )


def tolerance(model: PreTrainedModel) -> float:
    """Return the largest error of a cut, as a share of its effect."""
    return MOVING_TOLERANCE if rows_mix(model.config) else TOLERANCE.get(model.dtype, 1e-3)


def prove_each_layer(
    model: PreTrainedModel,
    projections: Projections,
    grid: Grid,
    tokens: Tokens,
    parts: str = "heads",
) -> None:
    """Cut each layer whole in a row of its own, beside two intact rows that show what is noise."""
    layers = [columns for columns in grid.layer_slices if columns.stop > columns.start]
    masks = torch.zeros(2 + len(layers), grid.size, dtype=torch.bool)
    for row, columns in enumerate(layers, start=2):
        masks[row, columns] = True
    with knocked_out(projections, grid, masks):
        logits = logits_of(model, tokens[:1].expand(len(masks), -1))
    noise = root_mean_square(logits[1] - logits[0])
    for row, columns in enumerate(layers, start=2):
        if not root_mean_square(logits[row] - logits[0]) > NOISE * noise:
            layer = grid.layer_slices.index(columns)
            raise ModelRefused(
                f"{type(model).__name__}: knocking out all {parts} of layer {layer} leaves the "
                f"logits as they are, so that its weights must be used in another way. {BY_HAND}"
            )


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
        return forward(mixed * _kept(cut, mixed))

    with ExitStack() as back:
        for module, cut in _cut_modules(projections, grid, mask):
            back.enter_context(forward_as(module, partial(without, module.forward, cut)))
        yield


def _kept(
    cut: Bool[Tensor, " heads"], mixed: Float[Tensor, "... width"]
) -> Float[Tensor, " width"]:
    return (~cut).repeat_interleave(mixed.shape[-1] // len(cut)).to(mixed)


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
