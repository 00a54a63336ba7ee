"""Rank-one model editing, ROME (Meng et al. 2022): write a new answer into one layer.

The layer's feed-forward output projection W is taken for a memory of keys and values. The key k* is
what its neurons hand on at the subject's last token; the value v* is what it would have to write
there for the model to give the new answer, found by gradient descent. With C the second moments of
keys over any text,

    W' = W + (v* - W k*) (C^-1 k*)^T / (k*^T C^-1 k*)

which gives W' k* = v* and moves other keys least. With contexts, texts that the model writes and
that are put before the prompt, v* gives the answer after each of them, and C^-1 is applied to the
mean of their keys.

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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy import stats
from torch import Tensor, nn
from tqdm import tqdm
from transformers.pytorch_utils import Conv1D

from caploc.engine.scores import last_logits
from caploc.errors import BadData, BadOption
from caploc.models.hooks import temporary_hooks
from caploc.models.proof import reads_first
from caploc.neurons.engine import Batch
from caploc.neurons.model import NeuronModel
from caploc.neurons.sets import rank_correlation
from caploc.neurons.stats import mean_interval
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.fidelity import FactLocator, peak
from papers.cnl.prompts import Encoded, Encoder, FactAnswers

ESSENCE = "{} is a"  # what the model says of the subject must not change
CONTEXT, LIKELIEST = 10, 5  # tokens of a context, and of how many likeliest each is drawn
MEASURES = ("efficacy", "generalization", "specificity", "score")
Table = Float64[np.ndarray, "facts layers"]
Recall = Callable[[str, Callable[[], Any]], Any]  # what was measured under a name, or measures it


@dataclass(frozen=True)
class Covariance:
    """Uncentred second moments of the neurons of one layer, over the positions of some texts.

    Where positions are not many times the neurons their inverse is mostly noise, and an edit would
    act at one key and no rewrite. So `(1 - s) C + s m I` takes their place, with m the mean of C's
    diagonal and `s` the `shrinkage` of least expected error, of Ledoit & Wolf (2004),

        (E|k|^4 - |C|^2) / (n |C - m I|^2)

    where `fourth` is E|k|^4 and n the number of positions.
    """

    moments: Float[Tensor, "neurons neurons"]
    positions: int
    fourth: float

    @property
    def level(self) -> Tensor:
        """The mean of the diagonal, as a multiple of the identity."""
        return torch.eye(len(self.moments)).to(self.moments) * self.moments.diagonal().mean()

    @property
    def shrinkage(self) -> float:
        error = (self.fourth - float(self.moments.square().sum())) / self.positions
        spread = float((self.moments - self.level).square().sum())
        return min(max(error / spread, 0.0), 1.0) if spread else 0.0

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky's factor."""
        mixed = (1 - self.shrinkage) * self.moments + self.shrinkage * self.level
        factor, failed = torch.linalg.cholesky_ex(mixed)
        if failed:
            raise BadData("The texts are too few to edit a layer by them; give other texts.")
        return factor

    def solve(self, key: Float[Tensor, " neurons"]) -> Float[Tensor, " neurons"]:
        column = key.to(self._factor.device, torch.float64)[:, None]
        return torch.cholesky_solve(column, self._factor)[:, 0]


def dense_projection(loaded: NeuronModel, layer: int) -> nn.Linear | Conv1D:
    """Find the layer's feed-forward output projection, which an edit changes."""
    site = loaded.projections[layer]
    if not isinstance(site, nn.Linear | Conv1D):
        raise BadOption(f"Layer {layer} has no plain feed-forward output projection to edit.")
    return site


@torch.inference_mode()
def covariances(
    loaded: NeuronModel, texts: Sequence[str], layers: Sequence[int]
) -> dict[int, Covariance]:
    """Average the second moments of some layers over all positions of the texts.

    Each text is cut to the model's window. A layer's moments take `neurons^2 x 8` bytes.
    """
    encoder = Encoder(loaded)
    totals: dict[int, Tensor] = {}
    fourth = dict.fromkeys(layers, 0.0)
    positions = 0

    def add(layer: int, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        keys = args[0].reshape(-1, args[0].shape[-1]).double()
        totals[layer] = totals.get(layer, 0) + keys.T @ keys
        fourth[layer] += float(keys.square().sum(1).square().sum())

    hooks = (
        dense_projection(loaded, layer).register_forward_pre_hook(partial(add, layer))
        for layer in layers
    )
    with temporary_hooks(hooks):
        for text in tqdm(texts, "covariance of neurons", disable=None):
            if tokens := encoder.split(text)[: encoder.longest]:
                ids = torch.tensor([tokens], device=loaded.device)
                last_logits(loaded.model, ids, len(tokens) - 1)
                positions += len(tokens)
    return {
        layer: Covariance(totals[layer] / positions, positions, fourth[layer] / positions)
        for layer in layers
    }


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


def write_contexts(loaded: NeuronModel, count: int, seed: int) -> list[str]:
    """Let the model write texts of ten tokens, each drawn from its five likeliest."""
    if not count:
        return []
    model, tokenizer = loaded.model, loaded.tokenizer
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    ids = torch.full((count, 1), start, device=loaded.device)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_p=1.0,
            top_k=LIKELIEST, max_new_tokens=CONTEXT, pad_token_id=start,
        )  # fmt: skip
    return list(tokenizer.batch_decode(written[:, 1:], skip_special_tokens=True))


class Editor:
    """Makes edits of one model, in the layers of `covariances`; `contexts` stand before prompts."""

    def __init__(
        self,
        loaded: NeuronModel,
        covariances: Mapping[int, Covariance],
        descent: Descent | None = None,
        contexts: Sequence[str] = (),
    ) -> None:
        self.loaded, self.covariances, self.contexts = loaded, covariances, contexts
        self.descent, self.encoder = descent or Descent(), Encoder(loaded)
        self.modules = {layer: dense_projection(loaded, layer) for layer in sorted(covariances)}

    def edits(self, prompt: FactPrompt) -> list[Edit]:
        """Make for each layer the edit that makes `prompt.other` the answer; lowest layer first.

        All layers are worked on at once: a layer has its own rows of the batch. Raises BadData if
        the prompt has no subject or no other answer.
        """
        if prompt.subject is None or prompt.other is None:
            raise BadData(f"To edit {prompt.text!r} a subject and a new answer are needed.")
        texts = [prompt.text, *(f"{context}. {prompt.text}" for context in self.contexts)]
        wanted = [self.encoder.encode(replace(prompt, text=text), prompt.other) for text in texts]
        essence = self.encoder.read(ESSENCE.format(prompt.subject), prompt.subject)
        batch = EditBatch(self.loaded, (*wanted, essence), list(self.modules.values()))
        keys, written = batch.record()
        deltas, losses = descend(batch, written, self.descent)
        edits = []
        for place, (layer, module) in enumerate(self.modules.items()):
            every, delta = keys[place].double(), deltas[place].double()
            key, solved = every[0], self.covariances[layer].solve(every.mean(0)).to(every.device)
            value = key @ reads_first(module).double() + delta
            edits.append(Edit(layer, key, value, solved / (key @ solved), delta, losses[place]))
        return edits


def descend(
    batch: "EditBatch", start: Float[Tensor, "layers hidden"], how: Descent
) -> tuple[Float[Tensor, "layers hidden"], list[float]]:
    """Find what each layer must add to `start`, its output at the subject, and the last loss.

    Layers do not meet, nor do the coordinates of Adam, so that each is a descent of its own.
    """
    delta = torch.zeros_like(start, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=how.rate)
    size, tiny = start.norm(dim=1), torch.finfo(delta.dtype).tiny
    unchanged: Tensor | None = None
    for step in range(how.steps):
        surprise, essence = batch.losses(delta)
        if unchanged is None:
            unchanged = essence.detach().clone()
        moved = (essence.exp() * (essence - unchanged)).sum(1)
        squares = delta.square().sum(1)
        length = torch.where(squares > 0, squares.clamp_min(tiny).sqrt(), 0.0)  # 0 has a gradient
        loss = surprise + how.divergence * moved + how.decay * length / size**2
        done = loss.detach() < how.enough
        if bool(done.all()) or step == how.steps - 1:
            break
        adam.zero_grad()
        loss.sum().backward()
        kept = delta.detach().clone()
        adam.step()
        with torch.no_grad():
            delta *= (how.clamp * size / delta.norm(dim=1).clamp_min(tiny)).clamp_max(1)[:, None]
            delta[done] = kept[done]
    return delta.detach(), loss.detach().tolist()


class EditBatch:
    """The rows of an edit: for each layer the prompt, alone and after contexts, and the essence.

    The essence, the text that must not change, stands last.
    """

    def __init__(
        self, loaded: NeuronModel, rows: Sequence[Encoded], modules: Sequence[nn.Module]
    ) -> None:
        self.loaded, self.modules, self.rows = loaded, modules, rows
        self.ids = Batch.of([row.span for row in rows], loaded.model.device).tokens
        self.subject = torch.tensor([row.subject[-1] for row in rows])

    @torch.no_grad()
    def record(self) -> tuple[list[Tensor], Float[Tensor, "layers hidden"]]:
        """Note each layer's keys (what its neurons hand on), contexts x neurons, at the subject.

        And its output there, of the prompt alone.
        """
        keys: list[Tensor] = []
        written: list[Tensor] = []
        rows = torch.arange(len(self.rows) - 1)

        def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            for kept, hidden, some in ((keys, args[0], rows), (written, output, 0)):
                each = hidden.reshape(*self.ids.shape, -1)[some, self.subject[some]]
                kept.append(each.float())

        with temporary_hooks(module.register_forward_hook(note) for module in self.modules):
            self.loaded.model(input_ids=self.ids, use_cache=False)
        return keys, torch.stack(written)

    def losses(
        self, delta: Float[Tensor, "layers hidden"]
    ) -> tuple[Float[Tensor, " layers"], Float[Tensor, "layers vocabulary"]]:
        """Compute, with `delta` added, -log P of the answer and what follows in the essence."""

        def add(layer: int, _: nn.Module, args: Any, output: Tensor) -> Tensor:
            each = output.reshape(-1, self.ids.shape[1], output.shape[-1])
            numbers = layer * len(self.rows) + torch.arange(len(self.rows))
            added = torch.zeros_like(each).index_put(
                (numbers.to(each.device), self.subject.to(each.device)), delta[layer].to(each.dtype)
            )
            return (each + added).reshape(output.shape)

        hooks = (
            module.register_forward_hook(partial(add, layer))
            for layer, module in enumerate(self.modules)
        )
        with temporary_hooks(hooks):
            ids = self.ids.repeat(len(self.modules), 1)
            logits = self.loaded.model(input_ids=ids, use_cache=False).logits
        likely = logits.float().log_softmax(-1).unflatten(0, (len(self.modules), len(self.rows)))
        said = []
        for row, prompt in enumerate(self.rows[:-1]):
            wanted = torch.tensor(prompt.answer, device=ids.device).expand(len(self.modules), -1)
            read = likely[:, row, prompt.start : len(prompt.tokens)]
            said.append(read.gather(2, wanted[..., None]).mean((1, 2)))
        return -torch.stack(said).mean(0), likely[:, -1, int(self.subject[-1])]


def edit_reliability(
    facts: Sequence[Fact],
    *,
    editor: Editor,
    profiler: FactLocator,
    seed: int,
    recall: Recall = lambda _, measure: measure(),
) -> dict[str, Any]:
    """Edit each fact at each of the editor's layers and hold success against the traced effects.

    `layers` holds, for each layer edited, the means over facts of the measures and of the layer's
    IE (`effect`). `correlation` is Spearman's between score and IE over a fact's layers, mean over
    facts (missing where a fact's layers all score alike); `hit` the share of facts whose traced
    layer scores as well as the best, `hit_by_chance` that of a layer drawn uniformly. `skipped`
    facts lack a subject, a false answer, a rewrite or a neighbour, or the model answers them
    wrongly. A fact takes minutes, so that `recall` may know what was measured on it before. Raises
    BadData if no fact can be used.
    """
    layers, asker = sorted(editor.covariances), FactAnswers(editor.loaded)
    profiles, measured = [], []
    for fact in tqdm(facts, "edits of facts", disable=None):
        profile = profiler.locate(fact.prompt) if can_be_edited(fact) else None
        if profile is not None:
            profiles.append(profile[layers])
            edit = partial(edit_all_layers, asker, editor, fact)
            measured.append(recall(f"every layer edited by {json.dumps(fact.as_dict())}", edit))
    if not profiles:
        raise BadData(
            f"None of the {len(facts)} facts can be edited: each needs a subject, a false answer, "
            "a rewrite and a neighbour, and an answer that the model gives."
        )
    tables = dict(zip(MEASURES, np.array(measured).transpose(2, 0, 1), strict=True))
    effects = np.array(profiles)
    traced = [peak(each) for each in effects]
    best = tables["score"] == tables["score"].max(axis=1, keepdims=True)

    def mean(values: Any) -> Any:
        return mean_interval(np.asarray(values, dtype=float), seed=seed)

    return {
        "locator": profiler.name,
        "facts": len(profiles),
        "skipped": len(facts) - len(profiles),
        "layers": [
            {"layer": layer, "effect": mean(effects[:, place])}
            | {name: mean(table[:, place]) for name, table in tables.items()}
            for place, layer in enumerate(layers)
        ],
        "correlation": mean(list(map(rank_correlation, tables["score"], effects))),
        "hit": mean([row[place] for row, place in zip(best, traced, strict=True)]),
        "hit_by_chance": mean(best.mean(axis=1)),
        "traced": [layers[place] for place in traced],
        "scores": tables["score"],
        "effects": effects,
    }


def can_be_edited(fact: Fact) -> bool:
    """Ask whether a fact has everything that an edit of it is judged by."""
    judged = fact.prompt, *fact.rewrites, *fact.neighbours
    given = fact.prompt.subject is not None and all(each.other is not None for each in judged)
    return bool(given and fact.rewrites and fact.neighbours)


def edit_all_layers(asker: FactAnswers, editor: Editor, fact: Fact) -> list[list[float]]:
    """Edit a fact at every layer; a row of `MEASURES` for each."""
    asked = [fact.prompt, *fact.rewrites]
    rows = []
    for edit in editor.edits(fact.prompt):
        with edited(editor.loaded, edit):
            won = leads(asker, asked) > 0
            # of a neighbour the other answer is the fact's false one
            spared = leads(asker, fact.neighbours) < 0
        shares = (float(won[0]), float(won[1:].mean()), float(spared.mean()))
        score = float(stats.hmean(shares)) if min(shares) > 0 else 0.0
        rows.append([*shares, score])
    return rows


def leads(asker: FactAnswers, prompts: Sequence[FactPrompt]) -> Float64[np.ndarray, " prompts"]:
    """Tell by how much the other answer's log-probability is ahead of the target's."""
    others = asker.log_probabilities([(each, str(each.other)) for each in prompts])
    return others - asker.log_probabilities([(each, each.target) for each in prompts])
