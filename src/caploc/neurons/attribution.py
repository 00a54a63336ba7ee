"""How much each neuron contributes to each example's answer.

The paper's form, an extension of knowledge neurons (Dai et al. 2022) by integrated gradients
(Sundararajan et al. 2017), is `integrated`:

    Attr_li = a_li / S  sum over s = 1..S of dF(alpha_s a_l) / da_li

with S = 19 points on the way of one layer's activations from 0 to their values, other layers
untouched. `gradient` takes the last point alone, for all layers in one backward pass; `joint`
scales all layers together; `activation` and `logit` are baselines that need no gradient.

F, the *target*, is one number for each example, higher is better. The paper's own is not known to
us; the mean log-probability of the gold answer is our default, and the probability of its first
token is what knowledge neurons use.

Gradients are taken with respect to *gates*, a factor on every neuron: with `g` the gates of a row,
neuron i hands on `g_i a_i` at every position t (or at those chosen), so that

    dF/dg_i = sum over t of a_it dF/da_it

is its gradient x activation, for every row of a batch at once: rows do not meet.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.engine.encoding import Span
from caploc.engine.memory import MOST_ROWS, BatchSizer
from caploc.engine.packed import DecoderStack
from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.models.cutting import Projections
from caploc.models.hooks import temporary_hooks
from caploc.models.neurons import NeuronModel, list_projections
from caploc.models.placement import input_device, weights_wait
from caploc.models.projections import decoder_layers
from caploc.models.proof import reads_first
from caploc.neurons.planning import PassMemory, checkpointed

R = TypeVar("R")
MOST_TOKENS = {"cpu": 4096, "mps": 8192}
MOST_TOKENS_ELSEWHERE = 32768


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded on the right: a causal model's positions never see padding.

    Row i reads `tokens[i, : lengths[i]]`; the tokens `gold` are to be predicted at positions
    `places`, `rows` says whose they are. So many copies of the batch fit into a pass `at_once`
    (None: as many as are wanted).
    """

    tokens: Int[Tensor, "rows time"]
    lengths: Int[Tensor, " rows"]
    rows: Int[Tensor, " predicted"]
    places: Int[Tensor, " predicted"]
    gold: Int[Tensor, " predicted"]
    at_once: int | None = None

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device, at_once: int | None = None) -> "Batch":
        """Pad the inputs of some spans; their continuations are what is to be predicted."""
        lengths = [len(span.inputs) for span in spans]
        tokens = torch.zeros((len(spans), max(lengths)), dtype=torch.long)
        rows: list[int] = []
        places: list[int] = []
        gold: list[int] = []
        for number, span in enumerate(spans):
            tokens[number, : len(span.inputs)] = torch.tensor(span.inputs)
            count = len(span.continuation)
            rows += [number] * count
            places += range(len(span.inputs) - count, len(span.inputs))
            gold += span.continuation
        read, at_rows, at_places, golden = (
            torch.tensor(each, device=device) for each in (lengths, rows, places, gold)
        )
        return cls(tokens.to(device), read, at_rows, at_places, golden, at_once)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def real(self) -> Bool[Tensor, "rows time"]:
        """Positions that are no padding."""
        time = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return time < self.lengths[:, None]

    @property
    def predicting(self) -> Bool[Tensor, "rows time"]:
        """Positions at which an answer's tokens are predicted."""
        chosen = torch.zeros_like(self.tokens, dtype=torch.bool)
        chosen[self.rows, self.places] = True
        return chosen

    @property
    def last_of_prompt(self) -> Bool[Tensor, "rows time"]:
        """The position at which each answer's first token is predicted."""
        first = torch.full((self.size,), self.tokens.shape[1], device=self.tokens.device)
        first = first.scatter_reduce(0, self.rows, self.places, "amin")
        chosen = torch.zeros_like(self.tokens, dtype=torch.bool)
        chosen[torch.arange(self.size, device=first.device), first] = True
        return chosen

    def repeated(self, times: int) -> "Batch":
        """Repeat the whole batch, copy after copy."""
        copies = torch.arange(times, device=self.rows.device).repeat_interleave(len(self.rows))
        return Batch(
            self.tokens.repeat(times, 1),
            self.lengths.repeat(times),
            self.rows.repeat(times) + copies * self.size,
            self.places.repeat(times),
            self.gold.repeat(times),
        )


class Batcher:
    """Cuts examples into batches that fit, and halves them for good when one did not.

    Where not even one example fits as often as it is to stand in a pass, its copies are shared
    among several.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        most_rows: int | None = None,
        memory: int | None = None,
        needs: PassMemory | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Batch for passes of this model that need so much (None: for scores of every layer).

        They take `memory` bytes beside the weights at most (None: half of what is free, or nearly
        all on a GPU). `device` is where a model without values would be.
        """
        self.device = device or input_device(model)
        most_rows = most_rows or MOST_ROWS.get(self.device.type)
        self.sizer = BatchSizer(model, most_rows, memory)
        self.needs = needs or PassMemory.of(model)
        self.most_tokens = MOST_TOKENS.get(self.device.type, MOST_TOKENS_ELSEWHERE)

    def row_bytes(self, span: Span) -> int:
        """Predict what a pass takes of memory for an example."""
        return self.needs.row(len(span.inputs), len(span.continuation))

    def fitting(self, span: Span) -> int:
        """Count the rows as long as this one that a pass may have."""
        by_memory = (self.sizer.budget() - self.needs.fixed) // self.row_bytes(span)
        return int(min(by_memory, self.most_tokens // len(span.inputs), self.sizer.most))

    def rows(self, span: Span, copies: int) -> int:
        """Count the examples as long as this one that fit, each `copies` times."""
        return max(1, self.fitting(span) // copies)

    def at_once(self, span: Span, rows: int, copies: int) -> int:
        """Count the copies of so many rows as long as this one that fit into a pass."""
        return max(1, min(copies, self.fitting(span) // rows))

    def peak(self, span: Span, copies: int, examples: int) -> int:
        """Predict the bytes that a batch of examples as long as this one takes at most."""
        rows = min(examples, self.rows(span, copies))
        return self.needs.fixed + rows * self.at_once(span, rows, copies) * self.row_bytes(span)

    def run(
        self, spans: Sequence[Span], work: Callable[[Batch], list[R]], copies: int = 1
    ) -> Iterator[tuple[list[int], list[R]]]:
        """Work on every example once, longest first; yields their numbers and results."""
        order = sorted(range(len(spans)), key=lambda number: -len(spans[number].inputs))
        done = 0
        while done < len(order):
            chosen = order[done : done + self.rows(spans[order[done]], copies)]
            done += len(chosen)
            results = self.sizer.run(
                lambda part: self.work(work, [spans[number] for number in part], copies), chosen
            )
            yield chosen, results

    def work(self, work: Callable[[Batch], list[R]], spans: Sequence[Span], copies: int) -> list[R]:
        """Work on a batch; on a single example with fewer copies in a pass until these fit."""
        at_once = self.at_once(spans[0], len(spans), copies)
        try:
            return work(Batch.of(spans, self.device, at_once))
        except Exception as error:
            if len(spans) > 1 or at_once == 1:
                raise
            self.sizer.shrink(error, smallest=False)
        # Outside the handler: the failed pass's tensors are held by the exception until here.
        clear_device_cache(garbage_collection=True)
        return self.work(work, spans, at_once // 2)


def gold_logprobs(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " predicted"]:
    """Compute the log-probability of every gold token, in nats, in float32 whatever the dtype."""
    head = model.get_output_embeddings()

    def pick_predicting(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read, *rest = args
        # a row for each token that is predicted, so that no logits are made of any other place
        return (read[batch.rows.to(read.device), batch.places.to(read.device)][None], *rest)

    with temporary_hooks([head.register_forward_pre_hook(pick_predicting)]):
        logits = model(
            input_ids=batch.tokens, attention_mask=batch.real.long(), use_cache=False
        ).logits[0]
    gold = batch.gold.to(logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, gold)[:, 0].to(batch.rows.device)


def mean_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Average the log-probability of gold tokens: minus the loss that tuning minimises, in nats."""
    return sum_logprob(batch, logprobs) / sum_logprob(batch, torch.ones_like(logprobs))


def sum_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Add up the log-probabilities of the whole answer, in nats."""
    return logprobs.new_zeros(batch.size).index_add(0, batch.rows, logprobs)


def first_probability(
    batch: Batch, logprobs: Float[Tensor, " predicted"]
) -> Float[Tensor, " rows"]:
    """Take the probability of the answer's first token."""
    first = torch.ones_like(batch.rows, dtype=torch.bool)
    first[1:] = batch.rows[1:] != batch.rows[:-1]
    return logprobs[first].exp()


Target = Callable[[Batch, Tensor], Tensor]
TARGETS: dict[str, Target] = {
    "logprob": mean_logprob,
    "logprob-sum": sum_logprob,
    "probability": first_probability,
}


@torch.no_grad()
def gold_means(model: PreTrainedModel, spans: Sequence[Span]) -> Float64[np.ndarray, " examples"]:
    """Average each span's log-probability over its continuation's tokens, in the given order."""
    means = np.full(len(spans), np.nan)

    def work(batch: Batch) -> list[float]:
        return mean_logprob(batch, gold_logprobs(model, batch).double()).tolist()

    for numbers, found in Batcher(model).run(spans, work):
        means[numbers] = found
    return means


STEPS = 19  # S of the paper
POSITIONS = ("all", "answer", "last")
# Where the points of an integral from 0 to 1 lie, in parts of a step; Dai et al. take the left.
POINTS = {"midpoint": 0.5, "left": 0.0, "right": 1.0}
Scores = Float64[Tensor, "rows neurons"]


class Gates:
    """The gates of a batch: a tensor (rows, neurons of the site) for each site of some layers."""

    def __init__(
        self,
        projections: Projections,
        value: Float[Tensor, " rows"] | Float[Tensor, "rows neurons"],
        *,
        layer: int | None = None,
        positions: Bool[Tensor, "rows time"] | None = None,
    ) -> None:
        """Open each row's gates to its `value`, in one layer or in all, at `positions` or at all.

        A value is one for all neurons, or each neuron's own. Gates of other layers are 1 and
        without a gradient.
        """
        self.positions = positions
        self.rows = len(value)
        self.sites = [
            (columns, module)
            for each, columns, module in list_projections(projections)
            if layer is None or each == layer
        ]
        self.values = [
            (
                value[:, None].expand(-1, columns.stop - columns.start)
                if value.ndim == 1
                else value[:, columns]
            )
            .clone()
            .requires_grad_()
            for columns, _ in self.sites
        ]

    def applied(self) -> AbstractContextManager[None]:
        """Multiply what the neurons hand on, in every forward pass inside the block."""
        return temporary_hooks(
            module.register_forward_pre_hook(self._multiplying(values))
            for values, (_, module) in zip(self.values, self.sites, strict=True)
        )

    def _multiplying(self, values: Tensor) -> Any:
        def multiply(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            handed, *rest = args
            each = handed.reshape(self.rows, -1, handed.shape[-1])
            factor = values[:, None].to(each)
            if self.positions is not None:
                factor = torch.where(self.positions[..., None].to(each.device), factor, 1.0)
            return (each * factor).reshape(handed.shape), *rest

        return multiply

    def gradients(self, outcome: Float[Tensor, " rows"]) -> Float[Tensor, "rows neurons"]:
        """Take dF/dg of each row for the neurons of the gated sites, in their order, in float32."""
        found = torch.autograd.grad(outcome.sum(), self.values, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(value) if each is None else each
                for value, each in zip(self.values, found, strict=True)
            ],
            dim=1,
        ).float()


@contextmanager
def record_activations(projections: Projections) -> Iterator[list[Tensor]]:
    """Note, inside the block, what the neurons of each site hand on in a forward pass."""
    seen: list[Tensor] = []
    noting = (
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
        for _, _, module in list_projections(projections)
    )
    with temporary_hooks(noting):
        yield seen


@dataclass(frozen=True)
class Attribution:
    """What is attributed, and how.

    `positions` are all of an example's, those that predict its answer, or the prompt's last. `rule`
    is where the S points of an integral lie: the middles of equal parts, or their left or right
    ends.
    """

    method: str = "gradient"
    target: str = "logprob"
    positions: str = "all"
    steps: int = STEPS
    rule: str = "midpoint"

    def check(self) -> "Attribution":
        """Refuse what does not exist."""
        pick(METHODS, self.method, "neuron score")
        pick(TARGETS, self.target, "target")
        pick(POINTS, self.rule, "rule")
        if self.positions not in POSITIONS:
            raise BadOption(
                f"--positions must be one of {', '.join(POSITIONS)}; got {self.positions!r}."
            )
        if self.steps < 1:
            raise BadOption(f"--steps must be 1 or more; got {self.steps}.")
        return self

    @property
    def copies(self) -> int:
        """How many times an example stands in one pass."""
        return self.steps if self.method in INTEGRATED else 1

    def where(self, batch: Batch) -> Bool[Tensor, "rows time"]:
        """Mark the positions whose neurons count; padding never does."""
        chosen = {"answer": batch.predicting, "last": batch.last_of_prompt}
        return chosen.get(self.positions, batch.real)

    def gates(self, model: NeuronModel, batch: Batch, value: Tensor, layer: int | None) -> Gates:
        """Put gates on the positions that count; on padding too for all, where nothing sees it."""
        positions = None if self.positions == "all" else self.where(batch)
        return Gates(model.projections, value, layer=layer, positions=positions)

    def outcome(self, model: NeuronModel, batch: Batch) -> Float[Tensor, " rows"]:
        return TARGETS[self.target](batch, gold_logprobs(model.model, batch))

    def needs(self, model: PreTrainedModel, *, waits: bool) -> PassMemory:
        """Foresee what a pass takes of memory; `waits` says whether weights wait elsewhere."""
        handed, gradients = self.method != "integrated", self.method not in BASELINES
        return PassMemory.of(model, handed=handed, gradients=gradients, checkpointing=waits)

    def batcher(self, model: PreTrainedModel, most_rows: int | None = None) -> Batcher:
        """Batch examples for this score of a loaded model."""
        return Batcher(model, most_rows, needs=self.needs(model, waits=weights_wait(model)))

    def passes(self, layers: int) -> int:
        """Count what an example costs, in forward passes of a model with so many layers.

        A backward pass to activations costs as much as a forward pass. Of `integrated`'s passes
        those for layer l leave out the l layers below it, and stop there on the way back: on
        average a forward pass for both ways.
        """
        each = {"activation": 1, "logit": 1, "gradient": 2, "joint": 2 * self.steps}
        return each.get(self.method, 1 + self.steps * layers)

    def scores(self, model: NeuronModel, batch: Batch) -> Scores:
        """Score every neuron for each example of a batch."""
        # a weight that was fetched for a pass would stay until the way back has used it
        waits = weights_wait(model.model)
        lean = checkpointed(model.model, model.projections) if waits else nullcontext()
        with lean:
            return METHODS[self.method](self, model, batch).double()


def gradient(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Multiply gradient and activation: one forward and one backward pass for all neurons."""
    ones = torch.ones(batch.size, device=batch.tokens.device)
    gates = asked.gates(model, batch, ones, None)
    with gates.applied(), torch.enable_grad():
        return gates.gradients(asked.outcome(model, batch))


def joint(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Integrate gradients with the neurons of all layers scaled together."""
    return _integrate(asked, model, batch, None)


def integrated(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Integrate gradients layer by layer, each started where its layer begins."""
    stack = DecoderStack(decoder_layers(model.model, model.projections))
    layers = [layer for layer, site in enumerate(model.projections) if site is not None]
    with torch.no_grad(), stack.recorded(layers if stack.layers else []) as residuals:
        asked.outcome(model, batch)
    found = []
    for layer in layers:
        residual = residuals[layer] if residuals else None

        def started(
            copies: int, layer: int = layer, residual: Tensor | None = residual
        ) -> AbstractContextManager[None]:
            return stack.started(layer, None if residual is None else residual.repeat(copies, 1, 1))

        found.append(_integrate(asked, model, batch, layer, started))
    return torch.cat(found, dim=1)


def _integrate(
    asked: Attribution,
    model: NeuronModel,
    batch: Batch,
    layer: int | None,
    started: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Tensor:
    """Average the gradients by the gates of a layer, or of all, over the points of the integral.

    A pass reads the batch at as many points as fit; it is `started` with so many copies.
    """
    points = torch.arange(asked.steps, device=batch.tokens.device) + POINTS[asked.rule]
    total = torch.zeros((), device=batch.tokens.device)
    for part in (points / asked.steps).split(batch.at_once or asked.steps):
        copies = batch.repeated(len(part))
        gates = asked.gates(model, copies, part.repeat_interleave(batch.size), layer)
        with started(len(part)), gates.applied(), torch.enable_grad():
            slopes = gates.gradients(asked.outcome(model, copies))
        total = total + slopes.unflatten(0, (len(part), batch.size)).sum(0)
    return total / asked.steps


@torch.no_grad()
def activation(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Average the size of each activation over the positions: no gold answer is looked at."""
    where = asked.where(batch)
    with record_activations(model.projections) as seen:
        asked.outcome(model, batch)
    sums = [
        (each.to(where.device).float().abs().reshape(*where.shape, -1) * where[..., None]).sum(1)
        for each in seen
    ]
    return torch.cat(sums, dim=1) / where.sum(1, keepdim=True)


@torch.no_grad()
def logit(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Take the direct effect on the gold tokens' logits: activation x (output . unembedding).

    Summed over the positions that predict the answer, whatever `positions` says; what later layers
    and the last norm make of it is left out.
    """
    with record_activations(model.projections) as seen:
        asked.outcome(model, batch)
    unembedding = model.model.get_output_embeddings().weight[batch.gold]
    found = []
    for (_, columns, module), handed in zip(list_projections(model.projections), seen, strict=True):
        each = handed.reshape(*batch.tokens.shape, -1)[batch.rows, batch.places]
        reads = reads_first(module).reshape(columns.stop - columns.start, -1)
        direct = (each * (unembedding.to(reads.dtype) @ reads.T)).float()
        found.append(direct.new_zeros(batch.size, direct.shape[1]).index_add(0, batch.rows, direct))
    return torch.cat(found, dim=1)


METHODS: dict[str, Callable[[Attribution, NeuronModel, Batch], Tensor]] = {
    "gradient": gradient,
    "integrated": integrated,
    "joint": joint,
    "activation": activation,
    "logit": logit,
}
INTEGRATED = ("integrated", "joint")
BASELINES = ("activation", "logit")  # without gradients
