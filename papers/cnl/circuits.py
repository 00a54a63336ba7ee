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

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData, BadOption
from caploc.models.loading import LoadedModel
from caploc.progress import Progress, Silent
from caploc.stats import Interval, JsonRecord, mean_interval
from caploc.stats.chance import FEWEST, Specificity, draw_in_blocks, specificity
from caploc.tasks.task import LogLikelihood
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
from papers.cnl.facts import Counterpart, Fact, FactPrompt

STEPS = 100  # as released code takes for large models; small ones need no more than 20
BATCH = 20  # steps, or circuits, run at a time
DRAWS = 20
HITS = (1, 5, 10)
FULL, EMPTY, LOCATED, COMPLEMENT = "full", "empty", "located", "complement"
RELATION, UNRELATED, RANDOM = "same relation", "other relation", "random"
ARMS = (FULL, EMPTY, LOCATED, COMPLEMENT, RELATION, UNRELATED, RANDOM)
METRICS = ("logit_difference", "probability", "faithfulness")


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal length, as token ids, and the token that each asks for.

    Raises BadOption if the lengths differ or are 0, or the answers begin alike.
    """

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    gold: int
    other: int

    def __post_init__(self) -> None:
        if len(self.clean) != len(self.corrupted) or not self.clean:
            raise BadOption(
                f"The clean prompt has {len(self.clean)} tokens and the corrupted one "
                f"{len(self.corrupted)}; both need the same number, at least 1."
            )
        if self.gold == self.other:
            raise BadOption(
                f"Both answers are token {self.gold}; a circuit is found by telling them apart."
            )


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


class _Steps(Visitor):
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
    that of the clean one, but for the error of the steps. Raises BadOption if `steps` or `batch` is
    below 1.
    """
    if min(steps, batch) < 1:
        raise BadOption(f"steps and batch must be 1 or more; got {steps} and {batch}.")
    clean, corrupted = (Recording(opened, each).outputs for each in (pair.clean, pair.corrupted))
    change, grid = corrupted - clean, opened.grid
    change = change.to(torch.promote_types(change.dtype, torch.float32))
    scores = change.new_zeros(grid.n_targets, grid.n_sources)
    first, last = corrupted[0], clean[0]
    shares = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    for some in shares.split(batch):
        with torch.enable_grad():
            walk = _Steps(first + some.to(first)[:, None, None] * (last - first))
            logits = opened.run(torch.tensor([pair.clean] * len(some)), walk)
            loss = -(logits[:, pair.gold] - logits[:, pair.other]).sum()
            found = torch.autograd.grad(loss, walk.copies)
        for stage, each in zip(grid.stages, found, strict=True):
            gradient = each.sum(0).transpose(0, 1).to(change).flatten(1)
            before = change[: stage.reach].flatten(1)
            scores[stage.targets, : stage.reach] += gradient @ before.T
    return grid.as_columns((scores / steps).double().cpu().numpy())


def strongest(scores: Float64[np.ndarray, " edges"], share: float) -> Edges:
    """Choose the edges of largest |score|: a share of all, rounded up.

    Of equal scores the earlier column goes first. Raises BadOption if the share is out of range.
    """
    if not 0 < share <= 1:
        raise BadOption(f"The share of edges to keep is above 0 and at most 1; got {share:g}.")
    chosen = np.zeros(len(scores), dtype=bool)
    kept = int(np.ceil(share * len(scores)))
    chosen[np.argsort(-np.abs(scores), kind="stable")[:kept]] = True
    return chosen


class _Patching(Visitor):
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
    """Compute the logits after the clean prompt with only a circuit's edges at work, for each.

    Raises BadOption if the circuits are not of this model.
    """
    if circuits.shape[1] != opened.grid.size:
        raise BadOption(
            f"The circuits have {circuits.shape[1]:,} columns and the model {opened.grid.size:,} "
            "edges; give circuits that were found in this model."
        )
    baseline = Recording(opened, pair.corrupted)
    found = [baseline.logits[None][:0]]
    for start in range(0, len(circuits), rows):
        some = circuits[start : start + rows]
        tokens = torch.tensor([pair.clean] * len(some))
        found.append(opened.run(tokens, _Patching(opened.grid, some, baseline)))
    return torch.cat(found)


@dataclass(frozen=True)
class CircuitOutcome(JsonRecord):
    """What a run answers: logit of gold less that of other; gold's probability and rank.

    The rank counts from 1, the best; tokens with the same logit as gold do not push it back.
    """

    logit_difference: float
    probability: float
    rank: int


def outcomes_of(logits: Float[Tensor, "runs vocabulary"], pair: PromptPair) -> list[CircuitOutcome]:
    """Say what each run answers."""
    wide = logits.double()
    rank = 1 + (wide > wide[:, pair.gold, None]).sum(dim=-1)
    difference = wide[:, pair.gold] - wide[:, pair.other]
    probability = wide.softmax(dim=-1)[:, pair.gold]
    figures = (each.tolist() for each in (difference, probability, rank))
    return [CircuitOutcome(*each) for each in zip(*figures, strict=True)]


def faithfulness(circuit: float, *, empty: float, full: float) -> float:
    """Tell how much of a metric's way from the empty circuit to the full model a circuit goes.

    `(circuit - empty) / (full - empty)`: 0 as the empty circuit, 1 as the full model, and outside
    of that where a circuit does worse or better than either; NaN where the two agree.
    """
    return (circuit - empty) / (full - empty) if full != empty else float("nan")


Counterparts = Callable[[FactPrompt], Sequence[Counterpart]]


def others_of(prompts: Iterable[FactPrompt]) -> Counterparts:
    """Take counterparts from other prompts of the same words but for the subject."""

    def frame(prompt: FactPrompt) -> tuple[str, ...]:
        return tuple(prompt.text.split(prompt.subject or "", 1))

    known: dict[tuple[str, ...], dict[str, str]] = {}
    for prompt in prompts:
        if prompt.subject:
            known.setdefault(frame(prompt), {})[prompt.subject] = prompt.target

    def counterparts(prompt: FactPrompt) -> list[Counterpart]:
        alike = known.get(frame(prompt), {}) if prompt.subject else {}
        return [Counterpart(*each) for each in alike.items() if each[0] != prompt.subject]

    return counterparts


def find_pair(
    wording: RequestEncoder, prompt: FactPrompt, counterparts: Counterparts, *, seed: int = 0
) -> PromptPair | None:
    """Put beside a prompt the same with another subject of as many tokens; None if there is none.

    The two are asked for the first tokens in which their answers differ; tokens that both answers
    begin with join the prompts. Counterparts with right answers go first, of these one whose answer
    is the prompt's own false one; else the order depends on the seed and the subject alone.
    """
    if not prompt.subject:
        return None
    clean, gold = wording.pair(LogLikelihood(prompt.text, prompt.target))
    known = counterparts(prompt)
    digest = blake2b(prompt.subject.encode(), digest_size=4).digest()
    order = np.random.default_rng([seed, int.from_bytes(digest, "big")]).permutation(len(known))
    drawn = sorted(
        (known[place] for place in order),
        key=lambda each: (not each.right, each.answer != prompt.other),
    )
    for counterpart in drawn:
        text = prompt.text.replace(prompt.subject, counterpart.subject, 1)
        corrupted, other = wording.pair(LogLikelihood(text, counterpart.answer))
        pairs = zip(gold, other, strict=False)
        alike = sum(1 for _ in takewhile(lambda both: both[0] == both[1], pairs))
        if len(clean) != len(corrupted) or clean == corrupted:
            continue
        if alike < min(len(gold), len(other)):
            return PromptPair(
                clean=(*clean, *gold[:alike]),
                corrupted=(*corrupted, *other[:alike]),
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
    def wording(self) -> RequestEncoder:
        return RequestEncoder(self.loaded.model, self.loaded.tokenizer)

    @property
    def grid(self) -> EdgeGrid:
        return self.opened.grid

    def pair(self, prompt: FactPrompt) -> PromptPair | None:
        """Find the prompt's clean and corrupted tokens; None if no other subject is as long."""
        return find_pair(self.wording, prompt, self.counterparts, seed=self.seed)

    def strongest(self, pair: PromptPair) -> Edges:
        """Choose the edges kept for a pair, those that lead nowhere included."""
        return strongest(attribute(self.opened, pair, steps=self.steps), self.share)

    def locate(self, prompt: FactPrompt) -> Edges:
        """Locate the circuit of a prompt: the strongest edges, less those on no path to the logits.

        Raises BadData if there is no counterpart to corrupt the prompt with.
        """
        pair = self.pair(prompt)
        if pair is None:
            raise BadData(
                f"There is no other subject with as many tokens as {prompt.subject!r} and an "
                f"answer of its own for {prompt.text!r}; supply more counterparts, or leave the "
                "prompt out."
            )
        return prune(self.grid, self.strongest(pair))


@dataclass(frozen=True)
class CircuitArm(JsonRecord):
    """What the model answers with one kind of circuit, over the facts that have one.

    `hits` is the share of facts with gold among the best k tokens, by k; `rank` the median rank of
    gold (1 is best). For random circuits each fact counts with its mean over draws. `faithfulness`
    is the mean of the facts' own in the logit difference, which facts with empty and full close
    together dominate.
    """

    name: str
    facts: int
    logit_difference: Interval
    probability: Interval
    faithfulness: Interval
    rank: float
    hits: dict[int, float]


@dataclass(frozen=True)
class FactOutcome(JsonRecord):
    """One fact: the arms it has, and its random draws."""

    name: str
    arms: dict[str, CircuitOutcome]
    random: tuple[CircuitOutcome, ...]

    def runs(self, arm: str) -> Sequence[CircuitOutcome]:
        """List the runs of an arm: the draws of the random one, else one; none without the arm."""
        return self.random if arm == RANDOM else [self.arms[arm]] if arm in self.arms else []

    def value(self, arm: str, metric: str) -> float:
        """Average a metric, or `faithfulness`, over an arm's runs; NaN without the arm."""
        if metric == "faithfulness":
            circuit, empty, full = (self.value(each, METRICS[0]) for each in (arm, EMPTY, FULL))
            return faithfulness(circuit, empty=empty, full=full)
        runs = [getattr(each, metric) for each in self.runs(arm)]
        return float(np.mean(runs)) if runs else float("nan")


@dataclass(frozen=True)
class CircuitReliability(JsonRecord):
    """Reliability of circuits over facts.

    `edges` is how many each circuit has. `gains` are specificity gains in the logit difference,
    which are the same in its faithfulness: of the located circuit, and of other facts' circuits in
    its place; one as large for another fact's says that the circuit is not the fact's own.
    `unpaired` facts had no counterpart of equal length, the answers of `unknown` ones were not what
    the model thinks likeliest; both are left out.
    """

    locator: str
    edges: int
    share_of_edges: float
    draws: int
    arms: tuple[CircuitArm, ...]
    gains: dict[str, Specificity]
    facts: tuple[FactOutcome, ...]
    unpaired: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class _UsableFact:
    """A fact that can be studied: its pair of prompts and its located edges, not pruned."""

    fact: Fact
    pair: PromptPair
    located: Edges


def circuit_reliability(
    locator: CircuitLocator,
    facts: Sequence[Fact],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> CircuitReliability:
    """Locate each fact's circuit and run it beside all the others.

    Raises BadOption if there are fewer than 5 draws; BadData if no fact is left that the model
    knows and that has a counterpart.
    """
    if draws < FEWEST:
        raise BadOption(f"At least {FEWEST} random circuits are needed; got {draws}.")
    watcher = progress or Silent()
    watcher.start("circuits", 2 * len(facts))
    usable: list[_UsableFact] = []
    unpaired, unknown = [], []
    for fact in facts:
        pair = locator.pair(fact.prompt)
        if pair is None:
            unpaired.append(fact.name)
        elif outcomes_of(Recording(locator.opened, pair.clean).logits[None], pair)[0].rank > 1:
            unknown.append(fact.name)
        else:
            usable.append(_UsableFact(fact, pair, locator.strongest(pair)))
        watcher.advance(1, 0)
    if not usable:
        raise BadData(
            f"None of the {len(facts)} facts can be studied: {len(unpaired)} have no counterpart "
            f"of equal length, {len(unknown)} are not what the model answers; give other facts."
        )
    found = []
    for place in range(len(usable)):
        found.append(_run_arms(locator, usable, place, draws, seed))
        watcher.advance(1, 0)
    edges = int(np.count_nonzero(usable[0].located))
    return CircuitReliability(
        locator=locator.name,
        edges=edges,
        share_of_edges=edges / locator.grid.size,
        draws=draws,
        arms=tuple(_summarize_arm(name, found, seed) for name in ARMS),
        gains={arm: _gain(found, arm, seed) for arm in ARMS[2:6]},
        facts=tuple(found),
        unpaired=tuple(unpaired),
        unknown=tuple(unknown),
    )


def _run_arms(
    locator: CircuitLocator, usable: list[_UsableFact], place: int, draws: int, seed: int
) -> FactOutcome:
    """Run every arm of one fact, in one batch."""
    grid, own = locator.grid, usable[place]
    every = np.ones(grid.size, dtype=bool)
    arms = {FULL: every, EMPTY: ~every, LOCATED: own.located, COMPLEMENT: ~own.located}
    for arm, same in ((RELATION, True), (UNRELATED, False)):
        others = [
            each
            for each in usable
            if each is not own and (each.fact.relation == own.fact.relation) is same
        ]
        if others:
            random = np.random.default_rng([seed, place, same])
            arms[arm] = others[random.integers(len(others))].located
    # Uniform among all edges, located ones too: to leave those out would make chance look worse.
    drawn = draw_in_blocks(own.located, grid.blocks, draws, seed + place, False)
    circuits = np.concatenate([np.stack(list(arms.values())), drawn])
    found = outcomes_of(run_circuits(locator.opened, own.pair, circuits), own.pair)
    named = dict(zip(arms, found, strict=False))
    return FactOutcome(own.fact.name, named, tuple(found[len(arms) :]))


def _by_fact(found: list[FactOutcome], arm: str, metric: str) -> Float64[np.ndarray, " facts"]:
    return np.array([each.value(arm, metric) for each in found], dtype=float)


def _summarize_arm(name: str, found: list[FactOutcome], seed: int) -> CircuitArm:
    present = [each for each in found if each.runs(name)]
    means = {
        metric: mean_interval(_by_fact(present, name, metric), seed=seed) for metric in METRICS
    }
    ranks = [[run.rank for run in each.runs(name)] for each in present]
    return CircuitArm(
        name=name,
        facts=len(present),
        **means,
        rank=float(np.median([np.mean(each) for each in ranks] or np.nan)),
        hits={
            k: float(np.mean([np.less_equal(each, k).mean() for each in ranks] or np.nan))
            for k in HITS
        },
    )


def _gain(found: list[FactOutcome], arm: str, seed: int) -> Specificity:
    random = np.array([[draw.logit_difference for draw in each.random] for each in found])
    return specificity(_by_fact(found, arm, "logit_difference"), random.T, seed=seed)
