"""Rank-one model editing, ROME (Meng et al. 2022): write a new answer into one layer.

The layer's feed-forward output projection W is taken for a memory of keys and values. The key k* is
what its neurons hand on at the subject's last token, averaged over the prompt with different text
before it; the value v* is what it would have to write there for the model to give the new answer,
found by gradient descent. With C the second moments of keys over any text,

    W' = W + (v* - W k*) (C^-1 k*)^T / (k*^T C^-1 k*)

which gives W' k* = v* and moves other keys least.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from caploc.engine.encoding import Span
from caploc.engine.plain import last_logits
from caploc.errors import BadData, BadOption
from caploc.models.cutting import temporary_hooks
from caploc.models.proof import reads_first
from caploc.neurons.batches import Batch
from caploc.neurons.facts.prompts import Encoded, Encoder, FactPrompt
from caploc.neurons.proof import NeuronModel
from caploc.progress import Progress, Silent

ESSENCE = "{} is a"  # what the model says of the subject must not change
# Shares of the moments' mean diagonal that are mixed in, the smallest that will do (ours).
SHRINKAGES = (0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
CONDITION = 1e10  # of the moments, above which more is mixed in


@dataclass(frozen=True)
class Covariance:
    """Uncentred second moments of the neurons of one layer, over the positions of some texts.

    With fewer positions than neurons, or neurons that move together, they have no inverse; then
    `(1 - s) C + s mean(diag C) I` takes their place, with `s` the `shrinkage`.
    """

    moments: Float[Tensor, "neurons neurons"]
    positions: int

    @cached_property
    def _factored(self) -> tuple[float, Tensor]:
        """The smallest shrinkage that will do, and Cholesky's factor."""
        level = self.moments.diagonal().mean()
        identity = torch.eye(len(self.moments), dtype=torch.float64, device=self.moments.device)
        for shrinkage in SHRINKAGES:
            mixed = (1 - shrinkage) * self.moments + shrinkage * level * identity
            factor, failed = torch.linalg.cholesky_ex(mixed)
            pivots = factor.diagonal()
            if not failed and bool((pivots.max() / pivots.min()) ** 2 < CONDITION):
                return shrinkage, factor
        raise BadData(
            "The neurons of a layer are silent on all of the texts, so that their covariance has "
            "no inverse; give other texts."
        )

    @property
    def shrinkage(self) -> float:
        return self._factored[0]

    def solve(self, key: Float[Tensor, " neurons"]) -> Float[Tensor, " neurons"]:
        factor = self._factored[1]
        column = key.to(factor.device, torch.float64)[:, None]
        return torch.cholesky_solve(column, factor)[:, 0]


def dense_projection(loaded: NeuronModel, layer: int) -> nn.Linear | Conv1D:
    """Find the layer's feed-forward output projection, which an edit changes.

    Raises:
        BadOption: if the model has no such layer, or the layer has no single projection.
    """
    layers = loaded.grid.layers
    if not 0 <= layer < layers:
        raise BadOption(f"There is no layer {layer}; the model has layers 0 to {layers - 1}.")
    site = loaded.projections[layer]
    if not isinstance(site, nn.Linear | Conv1D):
        raise BadOption(
            f"Layer {layer} has {'experts' if site is not None else 'no feed-forward neurons'}; a "
            "rank-one edit needs a layer with one feed-forward output projection."
        )
    return site


@torch.inference_mode()
def covariances(
    loaded: NeuronModel,
    texts: Sequence[str],
    layers: Sequence[int],
    *,
    progress: Progress | None = None,
) -> dict[int, Covariance]:
    """Sum up the second moments of some layers over all positions of the texts.

    Each text is cut to the model's window. A layer's moments take `neurons^2 x 8` bytes.

    Raises:
        BadOption: if a layer cannot be edited.
        BadData: if there is no text.
    """
    if not texts:
        raise BadData("The covariance of neurons needs texts; give some, the more the better.")
    modules = {layer: dense_projection(loaded, layer) for layer in layers}
    encoder, shown = Encoder(loaded), progress or Silent()
    shown.start("covariance of neurons", len(texts))
    totals: dict[int, Tensor] = {}
    positions = 0
    adding = (
        module.register_forward_pre_hook(_adding_moments(totals, layer))
        for layer, module in modules.items()
    )
    with temporary_hooks(adding):
        for text in texts:
            tokens = encoder.wording.harness.tok_encode(text)[: encoder.longest]
            if tokens:
                ids = torch.tensor([tokens], device=loaded.device)
                last_logits(loaded.model, ids, len(tokens) - 1)
            positions += len(tokens)
            shown.advance(1, len(tokens))
    return {layer: Covariance(totals[layer] / positions, positions) for layer in layers}


def _adding_moments(totals: dict[int, Tensor], layer: int) -> Any:
    def add(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        keys = args[0].reshape(-1, args[0].shape[-1]).double()
        product = keys.T @ keys
        totals[layer] = totals[layer] + product if layer in totals else product

    return add


@dataclass(frozen=True)
class Descent:
    """How the value is found: Adam on `delta = v* - W k*` to minimise

        mean -log P(new answer)  +  divergence KL(P' || P)  +  decay |delta| / |W k*|^2

    `rate` is Adam's, the Kullback-Leibler divergence is that of what follows the subject in
    "SUBJECT is a", and |delta| is kept at or below `clamp` times |W k*|. It ends after `steps`
    passes, or at a loss below `enough`. The figures are those of Meng et al.'s program.
    """

    steps: int = 20
    rate: float = 0.5
    decay: float = 0.5
    divergence: float = 0.0625
    clamp: float = 4.0
    enough: float = 0.05


@dataclass(frozen=True)
class Edit:
    """The rank-one change of a layer's output projection, `right left^T`, in float64.

    `key` is k*, `value` v* (without the projection's bias), `loss` the descent's last.
    """

    layer: int
    key: Float[Tensor, " neurons"]
    value: Float[Tensor, " hidden"]
    left: Float[Tensor, " neurons"]
    right: Float[Tensor, " hidden"]
    loss: float


@contextmanager
def edited(loaded: NeuronModel, edit: Edit) -> Iterator[None]:
    """Edit the model inside the block; after it its weights are what they were, bit by bit."""
    weight = reads_first(dense_projection(loaded, edit.layer))
    before = weight.clone()
    try:
        with torch.no_grad():
            change = torch.outer(edit.left, edit.right).to(weight.device)
            weight.copy_(weight.double() + change)
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)


class Editor:
    """Makes edits of one model."""

    def __init__(
        self,
        loaded: NeuronModel,
        covariances: Mapping[int, Covariance],
        *,
        before: Sequence[str] = (),
        descent: Descent | None = None,
    ) -> None:
        """Edit the layers of `covariances`; `before` are texts that may stand before a prompt."""
        self.loaded, self.covariances = loaded, covariances
        self.before, self.descent = ("", *before), descent or Descent()
        self.encoder = Encoder(loaded)
        self.modules = {layer: dense_projection(loaded, layer) for layer in covariances}

    def edits(self, prompt: FactPrompt) -> list[Edit]:
        """Make for each layer the edit that makes `prompt.other` the answer; lowest layer first.

        All layers are worked on at once: a layer has its own rows of the batch.

        Raises:
            BadData: if the prompt has no subject or no other answer, or does not fit the window.
        """
        if prompt.subject is None or prompt.other is None:
            raise BadData(
                f"To edit {prompt.text!r} its subject and the answer to write are needed; give "
                "both."
            )
        layers = sorted(self.covariances)
        contexts = [
            self.encoder.encode(
                FactPrompt(lead + prompt.text, prompt.subject, prompt.target), prompt.other
            )
            for lead in self.before
        ]
        essence = self.encoder.read(ESSENCE.format(prompt.subject), prompt.subject)
        modules = [self.modules[layer] for layer in layers]
        batch = _EditBatch(self.loaded, contexts, essence, modules)
        keys, written = batch.record()
        deltas, losses = _descend(batch, written[:, 0], self.descent)
        return [
            self._edit(layer, keys[place].mean(0), deltas[place], losses[place])
            for place, layer in enumerate(layers)
        ]

    def _edit(self, layer: int, key: Tensor, delta: Tensor, loss: float) -> Edit:
        weight = reads_first(self.modules[layer]).double()
        key, delta = key.double(), delta.double()
        solved = self.covariances[layer].solve(key).to(key.device)
        left = solved / (key @ solved)
        return Edit(layer, key, key @ weight + delta, left, delta, loss)


def _descend(
    batch: "_EditBatch", start: Float[Tensor, "layers hidden"], how: Descent
) -> tuple[Float[Tensor, "layers hidden"], list[float]]:
    """Find what each layer must add to `start`, its output at the subject, and the last loss.

    Layers do not meet, nor do the coordinates of Adam, so that each is a descent of its own.
    """
    delta = torch.zeros_like(start, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=how.rate)
    size = start.norm(dim=1)
    unchanged: Tensor | None = None
    for step in range(how.steps):
        surprise, essence = batch.losses(delta)
        if unchanged is None:
            unchanged = essence.detach().clone()
        moved = (essence.exp() * (essence - unchanged)).sum(1)
        loss = surprise + how.divergence * moved + how.decay * _norms(delta) / size**2
        done = loss.detach() < how.enough
        if bool(done.all()) or step == how.steps - 1:
            break
        adam.zero_grad()
        loss.sum().backward()
        kept = delta.detach().clone()
        adam.step()
        with torch.no_grad():
            norms = delta.norm(dim=1).clamp_min(torch.finfo(delta.dtype).tiny)
            delta *= (how.clamp * size / norms).clamp_max(1)[:, None]
            delta[done] = kept[done]
    return delta.detach(), loss.detach().tolist()


def _norms(delta: Tensor) -> Tensor:
    """Take lengths, with a gradient of 0 where the length is 0."""
    squares = delta.square().sum(1)
    return torch.where(squares > 0, squares.clamp_min(torch.finfo(delta.dtype).tiny).sqrt(), 0.0)


class _EditBatch:
    """The rows of an edit: for each layer, every context and the text that must not change."""

    def __init__(
        self,
        loaded: NeuronModel,
        contexts: Sequence[Encoded],
        essence: Encoded,
        modules: Sequence[nn.Module],
    ) -> None:
        self.loaded, self.modules = loaded, modules
        self.contexts, self.rows = contexts, [*contexts, essence]
        spans = [Span(row.tokens, row.answer) for row in self.rows]
        self.ids = Batch.of(spans, loaded.model.device).tokens
        self.subject = torch.tensor([row.subject[-1] for row in self.rows])

    @torch.no_grad()
    def record(self) -> tuple[list[Tensor], Float[Tensor, "layers contexts hidden"]]:
        """Note each layer's keys (contexts, neurons), and the outputs, at the subject."""
        keys: list[Tensor] = []
        written: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            numbers = torch.arange(len(self.contexts))
            for kept, hidden in ((keys, args[0]), (written, output)):
                each = hidden.reshape(*self.ids.shape, -1)
                kept.append(each[numbers, self.subject[: len(numbers)]].float())

        with temporary_hooks(module.register_forward_hook(note) for module in self.modules):
            self.loaded.model(input_ids=self.ids, use_cache=False)
        return keys, torch.stack(written)

    def losses(
        self, delta: Float[Tensor, "layers hidden"]
    ) -> tuple[Float[Tensor, " layers"], Float[Tensor, "layers vocabulary"]]:
        """Compute, with `delta` added, -log P of the answers and what follows in the essence."""
        adding = (
            module.register_forward_hook(self._adding(layer, delta[layer]))
            for layer, module in enumerate(self.modules)
        )
        with temporary_hooks(adding):
            ids = self.ids.repeat(len(self.modules), 1)
            logits = self.loaded.model(input_ids=ids, use_cache=False).logits
        likely = logits.float().log_softmax(-1).unflatten(0, (len(self.modules), len(self.rows)))
        said = []
        for number, row in enumerate(self.contexts):
            wanted = torch.tensor(row.answer, device=ids.device).expand(len(self.modules), -1)
            read = likely[:, number, row.start : len(row.tokens)]
            said.append(read.gather(2, wanted[..., None]).mean((1, 2)))
        return -torch.stack(said).mean(0), likely[:, -1, int(self.subject[-1])]

    def _adding(self, layer: int, delta: Float[Tensor, " hidden"]) -> Any:
        first = layer * len(self.rows)

        def add(_: nn.Module, args: Any, output: Tensor) -> Tensor:
            each = output.reshape(-1, self.ids.shape[1], output.shape[-1])
            numbers = first + torch.arange(len(self.rows))
            added = torch.zeros_like(each).index_put(
                (numbers.to(each.device), self.subject.to(each.device)), delta.to(each.dtype)
            )
            return (each + added).reshape(output.shape)

        return add
