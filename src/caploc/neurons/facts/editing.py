"""Rank-one model editing, ROME (Meng et al. 2022): write a new answer into one layer.

The layer's feed-forward output projection W is taken for a memory of keys and values. The key k* is
what its neurons hand on at the subject's last token, averaged over the prompt with different text
before it; the value v* is what it would have to write there for the model to give the new answer,
found by gradient descent. With C the second moments of keys over any text,

    W' = W + (v* - W k*) (C^-1 k*)^T / (k*^T C^-1 k*)

which gives W' k* = v* and moves other keys least.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from caploc.errors import BadData
from caploc.models.proof import reads_first
from caploc.neurons.facts.covariance import Covariance, dense_projection
from caploc.neurons.facts.encoding import Encoded, Encoder
from caploc.neurons.facts.facts import Prompt
from caploc.neurons.loading import NeuronModel

ESSENCE = "{} is a"  # what the model says of the subject must not change


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
    """Inside the block the model has the edit; after it its weights are what they were, bit by bit.

    Raises:
        BadOption: if the layer cannot be edited.
    """
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
        """Edit the layers of `covariances`; `before` are texts that may stand before a prompt.

        Raises:
            BadOption: if a layer cannot be edited.
        """
        self.loaded, self.covariances = loaded, covariances
        self.before, self.descent = ("", *before), descent or Descent()
        self.encoder = Encoder(loaded)
        self.modules = {layer: dense_projection(loaded, layer) for layer in covariances}

    def edits(self, prompt: Prompt) -> list[Edit]:
        """For each layer, the edit that makes `prompt.other` the answer; lowest layer first.

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
                Prompt(lead + prompt.text, prompt.subject, prompt.target), prompt.other
            )
            for lead in self.before
        ]
        essence = self.encoder.read(ESSENCE.format(prompt.subject), prompt.subject)
        batch = _Batch(self.loaded, contexts, essence, [self.modules[layer] for layer in layers])
        keys, written = batch.recorded()
        deltas, losses = descended(batch, written[:, 0], self.descent)
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


def descended(
    batch: "_Batch", start: Float[Tensor, "layers hidden"], how: Descent
) -> tuple[Float[Tensor, "layers hidden"], list[float]]:
    """What each layer must add to `start`, its output at the subject, and the last loss.

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
    """Lengths, with a gradient of 0 where the length is 0."""
    squares = delta.square().sum(1)
    return torch.where(squares > 0, squares.clamp_min(torch.finfo(delta.dtype).tiny).sqrt(), 0.0)


class _Batch:
    """The rows of an edit: for each layer, every context and the text that must not change."""

    def __init__(
        self,
        loaded: NeuronModel,
        contexts: Sequence[Encoded],
        essence: Encoded,
        modules: Sequence[nn.Module],
    ) -> None:
        """Lay the rows out, padded on the right."""
        self.loaded, self.modules = loaded, modules
        self.contexts, self.rows = contexts, [*contexts, essence]
        longest = max(len(row.tokens) for row in self.rows)
        self.ids: Int[Tensor, "rows tokens"] = torch.zeros(
            (len(self.rows), longest), dtype=torch.long
        )
        for number, row in enumerate(self.rows):
            self.ids[number, : len(row.tokens)] = torch.tensor(row.tokens)
        self.ids = self.ids.to(loaded.model.device)
        self.subject = torch.tensor([row.subject[-1] for row in self.rows])

    @torch.no_grad()
    def recorded(self) -> tuple[list[Tensor], Float[Tensor, "layers contexts hidden"]]:
        """Each layer's keys (contexts, neurons), and the outputs, at the subject; in float32."""
        keys: list[Tensor] = []
        written: list[Tensor] = []

        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            numbers = torch.arange(len(self.contexts))
            for kept, hidden in ((keys, args[0]), (written, output)):
                each = hidden.reshape(*self.ids.shape, -1)
                kept.append(each[numbers, self.subject[: len(numbers)]].float())

        with ExitStack() as hooks:
            for module in self.modules:
                hooks.callback(module.register_forward_hook(record).remove)
            self.loaded.model(input_ids=self.ids, use_cache=False)
        return keys, torch.stack(written)

    def losses(
        self, delta: Float[Tensor, "layers hidden"]
    ) -> tuple[Float[Tensor, " layers"], Float[Tensor, "layers vocabulary"]]:
        """With `delta` added: mean -log P of the answers, and what follows in the essence."""
        with ExitStack() as hooks:
            for layer, module in enumerate(self.modules):
                hook = self._adding(layer, delta[layer])
                hooks.callback(module.register_forward_hook(hook).remove)
            ids = self.ids.repeat(len(self.modules), 1)
            logits = self.loaded.model(input_ids=ids, use_cache=False).logits
        likely = logits.float().log_softmax(-1).unflatten(0, (len(self.modules), len(self.rows)))
        said = [
            likely[:, number, row.start : len(row.tokens)]
            .gather(2, self._wanted(row).expand(len(self.modules), -1)[..., None])
            .mean((1, 2))
            for number, row in enumerate(self.contexts)
        ]
        return -torch.stack(said).mean(0), likely[:, -1, int(self.subject[-1])]

    def _wanted(self, row: Encoded) -> Int[Tensor, " answer"]:
        return torch.tensor(row.answer, device=self.ids.device)

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
