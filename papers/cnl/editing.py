"""Rank-one model editing, ROME (Meng et al. 2022): write a new answer into one layer.

The layer's feed-forward output projection W is taken for a memory of keys and values. The key k* is
what its neurons hand on at the subject's last token; the value v* is what it would have to write
there for the model to give the new answer, found by gradient descent. With C the second moments of
keys over any text,

    W' = W + (v* - W k*) (C^-1 k*)^T / (k*^T C^-1 k*)

which gives W' k* = v* and moves other keys least.

*Reliability*: does an edit work best where causal tracing points? Every layer is edited, not only
that one, and judged by the measures of Meng et al.: *efficacy*, P(new) > P(old) on the prompt;
*generalization*, the same share of rewrites; *specificity*, the share of neighbours whose own
answer stays likelier than the new one; *score*, their harmonic mean. That tracing does not tell
where editing works is known from Hase et al. (2023). Probabilities of answers of several tokens are
geometric means over the tokens.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy import stats
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from caploc.engine.encoding import Span
from caploc.engine.scores import last_logits
from caploc.errors import BadData, BadOption
from caploc.models.hooks import temporary_hooks
from caploc.models.proof import reads_first
from caploc.neurons.engine import Batch
from caploc.neurons.model import NeuronModel
from caploc.neurons.sets import rank_correlation
from caploc.progress import Progress, Silent
from caploc.stats import Interval, JsonRecord, mean_interval
from papers.cnl.facts import Fact, FactPrompt, check_names
from papers.cnl.fidelity import Encoded, Encoder, FactAnswers, FactLocator, Profile, peak

ESSENCE = "{} is a"  # what the model says of the subject must not change
# Shares of the moments' mean diagonal that are mixed in, the smallest that will do (ours).
SHRINKAGES = (0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
MEASURES = ("efficacy", "generalization", "specificity", "score", "rise")
Table = Float64[np.ndarray, "facts layers"]
CONDITION = 1e10  # of the moments, above which more is mixed in
Recall = Callable[[str, Callable[[], Any]], Any]  # what was measured under a name, or measures it


@dataclass(frozen=True)
class Covariance:
    """Uncentred second moments of the neurons of one layer, over the positions of some texts.

    Where positions are not many times the neurons their inverse is mostly noise, and an edit would
    act at one key and no rewrite. So `(1 - s) C + s m I` takes their place, with m the mean of C's
    diagonal and `s` the `shrinkage`: that of least expected error, of Ledoit & Wolf (2004),

        (E|k|^4 - |C|^2) / (n |C - m I|^2)

    or the next of `SHRINKAGES` with which there is an inverse.
    """

    moments: Float[Tensor, "neurons neurons"]
    positions: int
    fourth: float = 0.0  # E|k|^4; 0 where the moments are to be believed

    @cached_property
    def _factored(self) -> tuple[float, Tensor]:
        """The shrinkage, and Cholesky's factor."""
        level = self.moments.diagonal().mean()
        identity = torch.eye(len(self.moments), dtype=torch.float64, device=self.moments.device)
        error = (self.fourth - float(self.moments.square().sum())) / self.positions
        spread = float((self.moments - level * identity).square().sum())
        least = min(max(error / spread, 0.0), 1.0) if spread else 0.0
        for shrinkage in (least, *(each for each in SHRINKAGES if each > least)):
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

    Raises BadOption if the model has no such layer, or the layer has no single projection.
    """
    layers = loaded.grid.layers
    if not 0 <= layer < layers:
        raise BadOption(f"There is no layer {layer}; the model has layers 0 to {layers - 1}.")
    site = loaded.projections[layer]
    if not isinstance(site, nn.Linear | Conv1D):
        raise BadOption(
            f"Layer {layer} has no plain feed-forward output projection, which a rank-one edit "
            "changes."
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

    Each text is cut to the model's window. A layer's moments take `neurons^2 x 8` bytes. Raises
    BadOption if a layer cannot be edited; BadData if there is no text.
    """
    if not texts:
        raise BadData("The covariance of neurons needs texts; give some, the more the better.")
    modules = {layer: dense_projection(loaded, layer) for layer in layers}
    encoder, shown = Encoder(loaded), progress or Silent()
    shown.start("covariance of neurons", len(texts))
    totals: dict[int, Tensor] = {}
    fourth = dict.fromkeys(layers, 0.0)
    positions = 0

    def add_moments(layer: int, args: tuple[Tensor, ...]) -> None:
        keys = args[0].reshape(-1, args[0].shape[-1]).double()
        totals[layer] = totals.get(layer, 0) + keys.T @ keys
        fourth[layer] += float(keys.square().sum(1).square().sum())

    adding = (
        module.register_forward_pre_hook(lambda _, args, at=layer: add_moments(at, args))
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
    means = {layer: (totals[layer] / positions, fourth[layer] / positions) for layer in layers}
    return {layer: Covariance(own, positions, of_four) for layer, (own, of_four) in means.items()}


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
        weight.copy_(weight.double() + torch.outer(edit.left, edit.right).to(weight.device))
        yield
    finally:
        weight.copy_(before)


class Editor:
    """Makes edits of one model, in the layers of `covariances`."""

    def __init__(
        self,
        loaded: NeuronModel,
        covariances: Mapping[int, Covariance],
        descent: Descent | None = None,
    ) -> None:
        self.loaded, self.covariances = loaded, covariances
        self.descent, self.encoder = descent or Descent(), Encoder(loaded)
        self.modules = {layer: dense_projection(loaded, layer) for layer in sorted(covariances)}

    def edits(self, prompt: FactPrompt) -> list[Edit]:
        """Make for each layer the edit that makes `prompt.other` the answer; lowest layer first.

        All layers are worked on at once: a layer has its own rows of the batch. Raises BadData if
        the prompt has no subject or no other answer, or does not fit the window.
        """
        if prompt.subject is None or prompt.other is None:
            raise BadData(
                f"To edit {prompt.text!r} its subject and the answer to write are needed; give "
                "both."
            )
        wanted = self.encoder.encode(prompt, prompt.other)
        essence = self.encoder.read(ESSENCE.format(prompt.subject), prompt.subject)
        batch = _EditBatch(self.loaded, (wanted, essence), list(self.modules.values()))
        keys, written = batch.record()
        deltas, losses = _descend(batch, written, self.descent)
        edits = []
        for place, (layer, module) in enumerate(self.modules.items()):
            key, delta = keys[place].double(), deltas[place].double()
            solved = self.covariances[layer].solve(key).to(key.device)
            value = key @ reads_first(module).double() + delta
            edits.append(Edit(layer, key, value, solved / (key @ solved), delta, losses[place]))
        return edits


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
    """The rows of an edit: for each layer, the prompt and the text that must not change."""

    def __init__(
        self, loaded: NeuronModel, rows: tuple[Encoded, Encoded], modules: Sequence[nn.Module]
    ) -> None:
        self.loaded, self.modules, self.rows = loaded, modules, rows
        spans = [Span(row.tokens, row.answer) for row in rows]
        self.ids = Batch.of(spans, loaded.model.device).tokens
        self.subject = torch.tensor([row.subject[-1] for row in rows])

    @torch.no_grad()
    def record(self) -> tuple[list[Tensor], Float[Tensor, "layers hidden"]]:
        """Note each layer's key (what its neurons hand on) and its output, at the subject."""
        keys: list[Tensor] = []
        written: list[Tensor] = []

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            for kept, hidden in ((keys, args[0]), (written, output)):
                kept.append(hidden.reshape(*self.ids.shape, -1)[0, self.subject[0]].float())

        with temporary_hooks(module.register_forward_hook(note) for module in self.modules):
            self.loaded.model(input_ids=self.ids, use_cache=False)
        return keys, torch.stack(written)

    def losses(
        self, delta: Float[Tensor, "layers hidden"]
    ) -> tuple[Float[Tensor, " layers"], Float[Tensor, "layers vocabulary"]]:
        """Compute, with `delta` added, -log P of the answer and what follows in the essence."""
        adding = (
            module.register_forward_hook(self._adding(layer, delta[layer]))
            for layer, module in enumerate(self.modules)
        )
        with temporary_hooks(adding):
            ids = self.ids.repeat(len(self.modules), 1)
            logits = self.loaded.model(input_ids=ids, use_cache=False).logits
        likely = logits.float().log_softmax(-1).unflatten(0, (len(self.modules), len(self.rows)))
        prompt = self.rows[0]
        wanted = torch.tensor(prompt.answer, device=ids.device).expand(len(self.modules), -1)
        read = likely[:, 0, prompt.start : len(prompt.tokens)]
        said = read.gather(2, wanted[..., None]).mean((1, 2))
        return -said, likely[:, -1, int(self.subject[-1])]

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


@dataclass(frozen=True)
class EditReliability(JsonRecord):
    """Whether edits succeed where tracing points.

    `layers` holds, for each layer edited, the means over facts of the measures, of the `rise` of
    `P(new) - P(old)` on prompt and rewrites, and of the layer's IE (`effect`); `score` is the
    harmonic mean of a fact's three measures, averaged.
    `correlation` is Spearman's between score and IE over a fact's layers, mean over facts (missing
    where a fact's layers all score alike); `hit` the share of facts whose traced layer scores as
    well as the best, `hit_by_chance` that of a layer drawn uniformly. `gain` is the rise at the
    traced layer less the mean of the other layers', in their standard deviations (the other layers
    being every control there is; missing where they all rise alike).
    `skipped` facts lack a subject, a false answer, a rewrite or a neighbour, or the model answers
    them wrongly.
    """

    locator: str
    facts: int
    skipped: int
    layers: tuple[dict[str, Any], ...]
    correlation: Interval
    hit: Interval
    hit_by_chance: Interval
    gain: Interval
    traced: tuple[int, ...]
    scores: Table
    effects: Table


def edit_reliability(
    facts: Sequence[Fact],
    *,
    editor: Editor,
    profiler: FactLocator,
    seed: int,
    progress: Progress | None = None,
    recall: Recall = lambda _, measure: measure(),
) -> EditReliability:
    """Edit each fact at each of the editor's layers and hold success against the traced effects.

    A fact takes minutes, so that `recall` may know what was measured on it before. Raises BadData
    if no fact can be used, or one does not fit the model's window.
    """
    facts, shown = check_names(facts), progress or Silent()
    layers, asker = sorted(editor.covariances), FactAnswers(editor.loaded)
    shown.start("edits of facts", len(facts))
    profiles, tables = [], []
    for fact in facts:
        profile = profiler.locate(fact.prompt) if _can_be_edited(fact) else None
        if profile is not None:
            profiles.append(profile[layers])
            edits = partial(_edit_all_layers, asker, editor, fact)
            tables.append(recall(f"edits of {json.dumps(fact.as_dict())}", edits))
        shown.advance(1, len(layers))
    if not profiles:
        raise BadData(
            f"None of the {len(facts)} facts can be edited: each needs a subject, a false answer, "
            "a rewrite and a neighbour, and an answer that the model gives."
        )
    measured = dict(zip(MEASURES, np.array(tables).transpose(2, 0, 1), strict=True))
    return _summarize(profiler.name, layers, np.array(profiles), measured, len(facts), seed)


def _can_be_edited(fact: Fact) -> bool:
    """Ask whether a fact has everything that an edit of it is judged by."""
    prompt = fact.prompt
    given = prompt.subject is not None and prompt.other is not None
    probes = all(each.other is not None for each in (*fact.rewrites, *fact.neighbours))
    return bool(given and probes and fact.rewrites and fact.neighbours)


def _edit_all_layers(asker: FactAnswers, editor: Editor, fact: Fact) -> list[list[float]]:
    asked = [fact.prompt, *fact.rewrites]
    before = _leads(asker, asked)
    rows = []
    for edit in editor.edits(fact.prompt):
        with edited(editor.loaded, edit):
            own = _leads(asker, asked)
            # of a neighbour the other answer is the fact's false one
            spared = _leads(asker, fact.neighbours)[:, 0] < 0
        won = own[:, 0] > 0
        shares = (float(won[0]), float(won[1:].mean()), float(spared.mean()))
        score = float(stats.hmean(shares)) if min(shares) > 0 else 0.0
        rows.append([*shares, score, float((own[:, 1] - before[:, 1]).mean())])
    return rows


def _leads(asker: FactAnswers, prompts: Sequence[FactPrompt]) -> Float64[np.ndarray, "prompts two"]:
    """Tell how far the other answer is ahead of the target: in log-probability, in probability."""
    others = asker.log_probabilities([(each, str(each.other)) for each in prompts])
    targets = asker.log_probabilities([(each, each.target) for each in prompts])
    return np.stack([others - targets, np.exp(others) - np.exp(targets)], axis=1)


def _summarize(
    name: str, layers: list[int], effects: Table, measured: dict[str, Table], facts: int, seed: int
) -> EditReliability:
    def interval(values: Sequence[float | None] | Float64[np.ndarray, " facts"]) -> Interval:
        return mean_interval(np.asarray(values, dtype=float), seed=seed)

    scores, rises = measured["score"], measured["rise"]
    traced = [peak(each) for each in effects]
    best = scores == scores.max(axis=1, keepdims=True)
    return EditReliability(
        locator=name,
        facts=len(effects),
        skipped=facts - len(effects),
        layers=tuple(
            {"layer": layer, "effect": interval(effects[:, place])}
            | {key: interval(table[:, place]) for key, table in measured.items()}
            for place, layer in enumerate(layers)
        ),
        correlation=interval(list(map(rank_correlation, scores, effects))),
        hit=interval([float(row[place]) for row, place in zip(best, traced, strict=True)]),
        hit_by_chance=interval(best.mean(axis=1)),
        gain=interval([_gain(row, n) for row, n in zip(rises, traced, strict=True)]),
        traced=tuple(layers[place] for place in traced),
        scores=scores,
        effects=effects,
    )


def _gain(row: Profile, place: int) -> float:
    """Tell how far one layer stands above the others, in their sd; NaN if they tie."""
    others = np.delete(row, place)
    spread = others.std(ddof=1) if len(others) > 1 else np.nan
    return float((row[place] - others.mean()) / spread) if spread > 0 else np.nan
