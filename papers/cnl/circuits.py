"""Circuits: what each edge does for an answer, and what the model answers when only some work.

A clean and a corrupted prompt of the same number of tokens ask for two answers, gold and other.

*Edge attribution patching with integrated gradients* (EAP-IG). With the loss `-(logit gold - logit
other)` at the last position, the score of an edge is

    sum over positions (corrupted - clean output of the source) . gradient at the target's input,

the gradient averaged over m steps of the input embedding from the corrupted to the clean prompt. It
estimates how much the loss rises when the edge alone carries what it carries for the corrupted
prompt: a positive edge works for the gold answer. Hanna, Pezzelle and Belinkov (2024), "Have faith
in faithfulness"; used for knowledge circuits by Yao et al. (2024). The steps lie at the middle of m
equal parts of the way, which is our choice: of all rules with m points it integrates best.

*Running a circuit* is edge-wise patching. Every target's input is put together as

    its input for the corrupted prompt
    + sum over its edges in the circuit of (what the source writes now - wrote for the corrupted),

so that edges outside the circuit carry what they carry for the corrupted prompt, and a source in
the circuit writes what it makes of its own patched input. All edges give the clean run, none the
corrupted one.

*Reliability*: is a fact's circuit the fact's own? For each fact the model knows these are run: the
located circuit (the strongest edges), all edges but these, the located ones of another fact of the
same relation and of another relation, and random ones. All but the complement have as many edges,
none is pruned: edges on no path change nothing, in whichever circuit. Random circuits have as many
edges into the queries, keys, values and MLP of each layer as the located one. Reliable evidence
would be a located circuit that keeps the fact, a complement that loses it, and other facts'
circuits that do not keep it. The design of these comparisons is ours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from tqdm import tqdm

from caploc.errors import BadData
from caploc.models.loading import LoadedModel
from caploc.neurons.chance import draw_in_blocks
from caploc.neurons.stats import mean_interval
from papers.cnl.edges import (
    EdgeGrid,
    Edges,
    EdgeStage,
    OpenModel,
    Visitor,
    copied,
    open_model,
    prune,
)
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.prompts import Encoder

STEPS = 20  # a hundred are used for large models; small ones need no more
BATCH = 20  # steps, or circuits, run at a time
HITS = (1, 5, 10)
FULL, EMPTY, LOCATED, COMPLEMENT = "full", "empty", "located", "complement"
RELATION, UNRELATED, RANDOM = "same relation", "other relation", "random"
ARMS = (FULL, EMPTY, LOCATED, COMPLEMENT, RELATION, UNRELATED, RANDOM)
METRICS = ("logit_difference", "probability", "faithfulness")


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal length, as token ids, and the token that each asks for."""

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    gold: int
    other: int


class Recording(Visitor):
    """Keeps what every source writes and every stage can read in a run of one prompt."""

    def __init__(self, opened: OpenModel, prompt: tuple[int, ...]) -> None:
        self.written: list[Tensor] = []
        self.residuals: list[Float[Tensor, "time width"]] = []
        with torch.no_grad():
            self.logits = opened.run(torch.tensor([prompt]), self)[0]
        # (sources, time, width)
        self.outputs = torch.cat(self.written, dim=2)[0].transpose(0, 1).contiguous()

    def enter(self, hidden: Tensor) -> Tensor:
        self.written.append(hidden[:, :, None])
        return hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        self.residuals.append(residual[0])
        return copied(stage, residual)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        self.written.append(output())


class Walk(Visitor):
    """Sends points between two embeddings through the model, and keeps each target's copy."""

    def __init__(self, hidden: Float[Tensor, "rows time width"]) -> None:
        self.hidden = hidden.requires_grad_()
        self.copies: list[Tensor] = []

    def enter(self, hidden: Tensor) -> Tensor:
        return self.hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        self.copies.append(copied(stage, residual))
        return self.copies[-1]


def attribute(
    opened: OpenModel, pair: PromptPair, *, steps: int = STEPS, batch: int = BATCH
) -> Float64[np.ndarray, " edges"]:
    """Score every edge, in logits.

    One forward and one backward pass for each step, `batch` of them at a time, whatever the number
    of edges. The scores of the edges from the input sum to the loss of the corrupted prompt less
    that of the clean one, but for the error of the steps.
    """
    clean, corrupted = (Recording(opened, each).outputs for each in (pair.clean, pair.corrupted))
    change, grid = corrupted - clean, opened.grid
    change = change.to(torch.promote_types(change.dtype, torch.float32))
    scores = change.new_zeros(grid.n_targets, grid.n_sources)
    first, last = corrupted[0], clean[0]
    shares = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    for some in shares.split(batch):
        with torch.enable_grad():
            walk = Walk(first + some.to(first)[:, None, None] * (last - first))
            logits = opened.run(torch.tensor([pair.clean] * len(some)), walk)
            loss = -(logits[:, pair.gold] - logits[:, pair.other]).sum()
            found = torch.autograd.grad(loss, walk.copies)
        for stage, each in zip(grid.stages, found, strict=True):
            gradient = each.sum(0).transpose(0, 1).to(change).flatten(1)
            before = change[: stage.reach].flatten(1)
            scores[stage.targets, : stage.reach] += gradient @ before.T
    return grid.as_columns((scores / steps).double().cpu().numpy())


def strongest(scores: Float64[np.ndarray, " edges"], share: float) -> Edges:
    """Choose the edges of largest |score|, a share of all, rounded up; of equals the earlier."""
    chosen = np.zeros(len(scores), dtype=bool)
    kept = int(np.ceil(share * len(scores)))
    chosen[np.argsort(-np.abs(scores), kind="stable")[:kept]] = True
    return chosen


class Patching(Visitor):
    """Puts every target's input together from what flows along its edges, circuit by circuit."""

    def __init__(
        self, grid: EdgeGrid, circuits: Bool[np.ndarray, "rows edges"], baseline: Recording
    ) -> None:
        self.baseline = baseline
        self.edges = torch.from_numpy(grid.as_matrix(circuits))
        # (rows, sources, time, width): what each source writes now, less what the baseline has
        self.changes = baseline.outputs.new_zeros(len(circuits), *baseline.outputs.shape)
        self.residuals = iter(baseline.residuals)

    def enter(self, hidden: Tensor) -> Tensor:
        self.changes[:, 0] = hidden - self.baseline.outputs[0]
        return hidden

    def read(self, stage: EdgeStage, residual: Tensor) -> Tensor:
        """Take the baseline's residual stream, and what the circuit's edges change in it."""
        edges = self.edges[:, stage.targets, : stage.reach].to(self.changes)
        changes = self.changes[:, : stage.reach]
        changed = torch.bmm(edges, changes.flatten(2)).unflatten(2, changes.shape[2:])
        return (next(self.residuals) + changed).transpose(1, 2)

    def wrote(self, stage: EdgeStage, output: Callable[[], Tensor]) -> None:
        before = self.baseline.outputs[stage.sources]
        self.changes[:, stage.sources] = output().transpose(1, 2) - before


@torch.no_grad()
def run_circuits(
    opened: OpenModel,
    pair: PromptPair,
    circuits: Bool[np.ndarray, "circuits edges"],
    *,
    rows: int = BATCH,
) -> Float[Tensor, "circuits vocabulary"]:
    """Compute the logits after the clean prompt with only a circuit's edges at work, for each."""
    baseline = Recording(opened, pair.corrupted)
    found = [baseline.logits[None][:0]]
    for start in range(0, len(circuits), rows):
        some = circuits[start : start + rows]
        tokens = torch.tensor([pair.clean] * len(some))
        found.append(opened.run(tokens, Patching(opened.grid, some, baseline)))
    return torch.cat(found)


def outcomes_of(logits: Float[Tensor, "runs vocabulary"], pair: PromptPair) -> pd.DataFrame:
    """Say what each run answers: logit of gold less that of other; gold's probability and rank.

    The rank counts from 1, the best; tokens with the same logit as gold do not push it back.
    """
    wide = logits.double()
    rank = 1 + (wide > wide[:, pair.gold, None]).sum(dim=-1)
    difference = wide[:, pair.gold] - wide[:, pair.other]
    figures = {
        "logit_difference": difference,
        "probability": wide.softmax(dim=-1)[:, pair.gold],
        "rank": rank,
    }
    return pd.DataFrame({name: each.cpu().numpy() for name, each in figures.items()})


Counterparts = Callable[[FactPrompt], Sequence[tuple[str, str]]]  # other subjects, their answers


def others_of(prompts: Iterable[FactPrompt]) -> Counterparts:
    """Take counterparts from other prompts of the same words but for the subject."""

    def frame(prompt: FactPrompt) -> tuple[str, ...]:
        return tuple(prompt.text.split(prompt.subject or "", 1))

    known: dict[tuple[str, ...], dict[str, str]] = {}
    for prompt in prompts:
        if prompt.subject:
            known.setdefault(frame(prompt), {})[prompt.subject] = prompt.target

    def counterparts(prompt: FactPrompt) -> list[tuple[str, str]]:
        alike = known.get(frame(prompt), {}) if prompt.subject else {}
        return [each for each in alike.items() if each[0] != prompt.subject]

    return counterparts


def find_pair(
    encoder: Encoder, prompt: FactPrompt, counterparts: Counterparts, *, seed: int = 0
) -> PromptPair | None:
    """Put beside a prompt the same with another subject of as many tokens; None if there is none.

    The two are asked for the first tokens in which their answers differ; tokens that both answers
    begin with join the prompts. Counterparts whose answer is the prompt's own false one go first;
    else the order depends on the seed and the subject alone.
    """
    if not prompt.subject:
        return None
    clean = encoder.encode(prompt)
    known = counterparts(prompt)
    digest = blake2b(prompt.subject.encode(), digest_size=4).digest()
    order = np.random.default_rng([seed, int.from_bytes(digest, "big")]).permutation(len(known))
    drawn = sorted((known[place] for place in order), key=lambda each: each[1] != prompt.other)
    for subject, answer in drawn:
        text = prompt.text.replace(prompt.subject, subject, 1)
        corrupted = encoder.encode(FactPrompt(text, subject, answer))
        if len(clean.context) != len(corrupted.context) or clean.context == corrupted.context:
            continue
        gold, other = clean.answer, corrupted.answer
        pairs = zip(gold, other, strict=False)
        alike = sum(1 for _ in takewhile(lambda both: both[0] == both[1], pairs))
        if alike < min(len(gold), len(other)):
            return PromptPair(
                clean=(*clean.context, *gold[:alike]),
                corrupted=(*corrupted.context, *other[:alike]),
                gold=gold[alike],
                other=other[alike],
            )
    return None


@dataclass(frozen=True)
class CircuitLocator:
    """Finds the circuit of a prompt: a `share` of the edges, scored by EAP-IG in `steps` steps.

    A prompt is corrupted by another subject of as many tokens, one of its `counterparts`; the seed
    chooses among them.
    """

    loaded: LoadedModel
    counterparts: Counterparts
    share: float
    steps: int = STEPS
    seed: int = 0

    name = "circuit"
    units = "edges"

    @cached_property
    def opened(self) -> OpenModel:
        return open_model(self.loaded)

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    @property
    def grid(self) -> EdgeGrid:
        return self.opened.grid

    def pair(self, prompt: FactPrompt) -> PromptPair | None:
        """Find the prompt's clean and corrupted tokens; None if no other subject is as long."""
        return find_pair(self.encoder, prompt, self.counterparts, seed=self.seed)

    def strongest(self, pair: PromptPair) -> Edges:
        """Choose the edges kept for a pair, those that lead nowhere included."""
        return strongest(attribute(self.opened, pair, steps=self.steps), self.share)

    def locate(self, prompt: FactPrompt) -> Edges | None:
        """Locate the circuit of a prompt, less edges on no path; None without a counterpart."""
        pair = self.pair(prompt)
        return None if pair is None else prune(self.grid, self.strongest(pair))


def circuit_reliability(
    locator: CircuitLocator, facts: Sequence[Fact], *, draws: int = 20, seed: int = 0
) -> dict[str, Any]:
    """Locate each fact's circuit and run it beside all the others.

    `arms` says what the model answers with one kind of circuit, over the facts that have one; for
    random circuits each fact counts with its mean over draws. `faithfulness` is `(circuit - empty)
    / (full - empty)` in the logit difference: 0 as the empty circuit, 1 as the full model. `hits`
    is the share of facts with gold among the best k tokens, `rank` the median rank of gold.
    `unpaired` facts had no counterpart of equal length, the answers of `unknown` ones were not what
    the model thinks likeliest; both are left out. Raises BadData if none is left.
    """
    usable, unpaired, unknown = [], [], []
    for fact in tqdm(facts, "circuits located", disable=None):
        pair = locator.pair(fact.prompt)
        if pair is None:
            unpaired.append(fact.name)
        elif outcomes_of(Recording(locator.opened, pair.clean).logits[None], pair)["rank"][0] > 1:
            unknown.append(fact.name)
        else:
            usable.append((fact, pair, locator.strongest(pair)))
    if not usable:
        raise BadData(
            f"None of the {len(facts)} facts can be studied: {len(unpaired)} have no counterpart "
            f"of equal length, {len(unknown)} are not what the model answers; give other facts."
        )
    places = tqdm(range(len(usable)), "circuits run", disable=None)
    runs = pd.concat([run_arms(locator, usable, place, draws, seed) for place in places])
    edges = int(np.count_nonzero(usable[0][2]))
    return {
        "locator": locator.name,
        "edges": edges,
        "share_of_edges": edges / locator.grid.size,
        "draws": draws,
        **summarize_runs(runs, seed),
        "runs": runs.to_dict("records"),
        "unpaired": unpaired,
        "unknown": unknown,
    }


def run_arms(
    locator: CircuitLocator,
    usable: Sequence[tuple[Fact, PromptPair, Edges]],
    place: int,
    draws: int,
    seed: int,
) -> pd.DataFrame:
    """Run every arm of one fact, in one batch; a row for each run."""
    grid, (fact, pair, located) = locator.grid, usable[place]
    every = np.ones(grid.size, dtype=bool)
    arms = {FULL: every, EMPTY: ~every, LOCATED: located, COMPLEMENT: ~located}
    for arm, same in ((RELATION, True), (UNRELATED, False)):
        others = [
            circuit
            for other, _, circuit in usable
            if other is not fact and (other.relation == fact.relation) is same
        ]
        if others:
            random = np.random.default_rng([seed, place, same])
            arms[arm] = others[random.integers(len(others))]
    # Uniform among all edges, located ones too: to leave those out would make chance look worse.
    drawn = draw_in_blocks(located, grid.blocks, draws, seed + place, False)
    circuits = np.concatenate([np.stack(list(arms.values())), drawn])
    found = outcomes_of(run_circuits(locator.opened, pair, circuits), pair)
    return found.assign(fact=fact.name, arm=[*arms, *[RANDOM] * draws])


def summarize_runs(runs: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Average the runs of each fact and arm, then over facts; missing where no fact has an arm."""
    for k in HITS:
        runs = runs.assign(**{f"hit {k}": (runs["rank"] <= k).astype(float)})
    facts, means = runs["fact"].unique(), runs.groupby(["arm", "fact"]).mean()
    table = {name: means[name].unstack("fact").reindex(ARMS, columns=facts) for name in means}
    metric = table["logit_difference"]
    span = metric.loc[FULL] - metric.loc[EMPTY]
    table["faithfulness"] = (metric - metric.loc[EMPTY]) / span.where(span != 0)
    arms = [
        {"name": arm, "facts": int(metric.loc[arm].count())}
        | {name: mean_interval(table[name].loc[arm].to_numpy(), seed=seed) for name in METRICS}
        | {"rank": table["rank"].loc[arm].median()}
        | {"hits": {k: table[f"hit {k}"].loc[arm].mean() for k in HITS}}
        for arm in ARMS
    ]
    return {"arms": arms}
