"""Is a fact's circuit the fact's own? Held against its complement, other facts' and random ones.

For each fact the model knows, circuits run as edge-wise patching: the located one (the strongest
edges), all edges but these, the located ones of another fact of the same relation and of another
relation, and random ones. All but the complement have as many edges, none is pruned: edges on no
path change nothing, in whichever circuit. Random circuits have as many edges into the queries,
keys, values and MLP of each layer as the located one. Reliable evidence would be a located circuit
that keeps the fact, a complement that loses it, and other facts' circuits that do not keep it. The
design of these comparisons is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64

from caploc.errors import BadData, BadOption
from caploc.neurons.circuits.circuit import (
    CircuitOutcome,
    PromptPair,
    faithfulness,
    outcomes_of,
    record_prompt,
    run_circuits,
)
from caploc.neurons.circuits.graph import Edges, prune
from caploc.neurons.circuits.locator import CircuitLocator
from caploc.neurons.circuits.opening import OpenModel
from caploc.neurons.facts.prompts import Fact
from caploc.progress import Progress, Silent
from caploc.stats.chance import FEWEST, Specificity, draw_in_blocks, specificity
from caploc.stats.intervals import Interval, JsonRecord, mean_interval, paired_interval

DRAWS = 20
HITS = (1, 5, 10)
FULL, EMPTY, LOCATED, COMPLEMENT = "full", "empty", "located", "complement"
RELATION, UNRELATED, RANDOM = "same relation", "other relation", "random"
DIFFERENCE, PROBABILITY = "logit_difference", "probability"
ARMS = (FULL, EMPTY, LOCATED, COMPLEMENT, RELATION, UNRELATED, RANDOM)


@dataclass(frozen=True)
class UsableFact:
    """A fact that can be studied: its pair of prompts and its located edges, not pruned."""

    fact: Fact
    pair: PromptPair
    located: Edges


@dataclass(frozen=True)
class CircuitSize(JsonRecord):
    """How large a circuit is: edges, nodes and parameters it touches, and their shares of all.

    A node is the input, a head, an MLP or the logits; a head is touched if an edge leaves it or
    enters its query. Parameters are those of touched heads (query and output weights, and keys and
    values of the key-value heads they read or an edge enters) and MLPs, as a share of those of all
    heads and MLPs. What is counted by a published share of a model is often not said: see which.
    """

    edges: int
    nodes: int
    parameters: int
    share_of_edges: float
    share_of_nodes: float
    share_of_parameters: float


@dataclass(frozen=True)
class CircuitArm(JsonRecord):
    """What the model answers with one kind of circuit, over the facts that have one.

    `hits` is the share of facts with gold among the best k tokens, by k; `rank` the median rank of
    gold (1 is best). For random circuits each fact counts with its mean over draws. `faithfulness`
    is the mean of the facts' own in the logit difference, which facts with empty and full close
    together dominate; the pooled ones are that of the mean logit difference and mean probability.
    """

    name: str
    facts: int
    logit_difference: Interval
    probability: Interval
    faithfulness: Interval
    pooled_faithfulness: float
    pooled_faithfulness_of_probability: float
    rank: float
    hits: dict[int, float]


@dataclass(frozen=True)
class FactOutcome(JsonRecord):
    """One fact: the arms it has, its random draws, and the size of its circuit once pruned."""

    name: str
    arms: dict[str, CircuitOutcome]
    random: tuple[CircuitOutcome, ...]
    size: CircuitSize

    def value(self, arm: str, metric: str) -> float:
        """Take a metric in an arm, the mean of draws for the random one; NaN without the arm."""
        if arm == RANDOM:
            return float(np.mean([getattr(each, metric) for each in self.random]))
        return float(getattr(self.arms[arm], metric)) if arm in self.arms else float("nan")

    def faithful(self, arm: str) -> float:
        circuit, empty, full = (self.value(each, DIFFERENCE) for each in (arm, EMPTY, FULL))
        return faithfulness(circuit, empty=empty, full=full)

    def hit(self, arm: str, within: int) -> float:
        """Tell whether gold is among the best k; the share of the draws for the random arm."""
        if arm == RANDOM:
            return float(np.mean([each.rank <= within for each in self.random]))
        return float(self.arms[arm].rank <= within) if arm in self.arms else float("nan")


@dataclass(frozen=True)
class CircuitReliability(JsonRecord):
    """Reliability of circuits over facts.

    `edges` is how many each circuit has before pruning; sizes after it are in `facts`. `gains` are
    specificity gains in the logit difference, which are the same in its faithfulness: of the
    located circuit, and of other facts' circuits in its place; one as large for another fact's
    says that the circuit is not the fact's own. `gain_of_log_probability` is the located one's in
    the log-probability of gold. `differences` are located less another arm in faithfulness, paired
    by fact. `unpaired` facts had no counterpart of equal length, the answers of `unknown` ones were
    not what the model thinks likeliest; both are left out.
    """

    locator: str
    edges: int
    share_of_edges: float
    draws: int
    arms: tuple[CircuitArm, ...]
    gains: dict[str, Specificity]
    gain_of_log_probability: Specificity
    differences: dict[str, Interval]
    facts: tuple[FactOutcome, ...]
    unpaired: tuple[str, ...]
    unknown: tuple[str, ...]


def circuit_reliability(
    locator: CircuitLocator,
    facts: Sequence[Fact],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> CircuitReliability:
    """Locate each fact's circuit and run it beside all the others.

    Raises:
        BadOption: if there are fewer than 5 draws.
        BadData: if no fact is left that the model knows and that has a counterpart.
    """
    if draws < FEWEST:
        raise BadOption(f"At least {FEWEST} random circuits are needed; got {draws}.")
    watcher = progress or Silent()
    watcher.start("circuits", 2 * len(facts))
    usable, unpaired, unknown = _usable(locator, facts, watcher)
    if not usable:
        raise BadData(
            f"None of the {len(facts)} facts can be studied: {len(unpaired)} have no counterpart "
            f"of equal length, {len(unknown)} are not what the model answers; give other facts."
        )
    found = []
    for place in range(len(usable)):
        found.append(_outcome(locator, usable, place, draws, seed))
        watcher.advance(1, 0)
    edges = int(np.count_nonzero(usable[0].located))
    return CircuitReliability(
        locator=locator.name,
        edges=edges,
        share_of_edges=edges / locator.grid.size,
        draws=draws,
        arms=tuple(_arm(name, found, seed) for name in ARMS),
        gains={arm: _gain(found, arm, DIFFERENCE, seed) for arm in ARMS[2:6]},
        gain_of_log_probability=_gain(found, LOCATED, "log_probability", seed),
        differences={
            arm: paired_interval(_faithful(found, LOCATED), _faithful(found, arm), seed=seed)
            for arm in ARMS[3:]
        },
        facts=tuple(found),
        unpaired=tuple(unpaired),
        unknown=tuple(unknown),
    )


def _usable(
    locator: CircuitLocator, facts: Sequence[Fact], watcher: Progress
) -> tuple[list[UsableFact], list[str], list[str]]:
    """Find the facts that can be studied, and the names of those without counterpart or unknown."""
    usable, unpaired, unknown = [], [], []
    for fact in facts:
        pair = locator.pair(fact.prompt)
        if pair is None:
            unpaired.append(fact.name)
        elif outcomes_of(record_prompt(locator.opened, pair.clean).logits[None], pair)[0].rank > 1:
            unknown.append(fact.name)
        else:
            usable.append(UsableFact(fact, pair, locator.strongest(pair)))
        watcher.advance(1, 0)
    return usable, unpaired, unknown


def _outcome(
    locator: CircuitLocator, usable: list[UsableFact], place: int, draws: int, seed: int
) -> FactOutcome:
    """Run every arm of one fact, in one batch."""
    grid, own = locator.grid, usable[place]
    every = np.ones(grid.size, dtype=bool)
    arms: dict[str, Bool[np.ndarray, " edges"]] = {
        FULL: every,
        EMPTY: ~every,
        LOCATED: own.located,
        COMPLEMENT: ~own.located,
    }
    for arm, same in ((RELATION, True), (UNRELATED, False)):
        other = _another(usable, place, same, seed)
        if other is not None:
            arms[arm] = other.located
    # Uniform among all edges, located ones too: to leave those out would make chance look worse.
    random = draw_in_blocks(own.located, grid.blocks, draws, seed + place, False)
    circuits = np.concatenate([np.stack(list(arms.values())), random])
    found = outcomes_of(
        run_circuits(locator.opened, own.pair, circuits, rows=locator.batch), own.pair
    )
    return FactOutcome(
        own.fact.name,
        dict(zip(arms, found, strict=False)),
        tuple(found[len(arms) :]),
        measure_size(locator.opened, prune(grid, own.located)),
    )


def _another(usable: list[UsableFact], place: int, same: bool, seed: int) -> UsableFact | None:
    """Draw another fact of the same relation, or of another one; None if there is none."""
    own = usable[place]
    others = [
        each
        for each in usable
        if each is not own and (each.fact.relation == own.fact.relation) is same
    ]
    generator = np.random.default_rng([seed, place, same])
    return others[generator.integers(len(others))] if others else None


def _faithful(found: list[FactOutcome], arm: str) -> Float64[np.ndarray, " facts"]:
    return np.array([each.faithful(arm) for each in found], dtype=float)


def _values(found: list[FactOutcome], arm: str, metric: str) -> Float64[np.ndarray, " facts"]:
    return np.array([each.value(arm, metric) for each in found], dtype=float)


def _arm(name: str, found: list[FactOutcome], seed: int) -> CircuitArm:
    present = [each for each in found if name == RANDOM or name in each.arms]
    hits = {k: [each.hit(name, k) for each in present] for k in HITS}
    return CircuitArm(
        name=name,
        facts=len(present),
        logit_difference=mean_interval(_values(present, name, DIFFERENCE), seed=seed),
        probability=mean_interval(_values(present, name, PROBABILITY), seed=seed),
        faithfulness=mean_interval(_faithful(present, name), seed=seed),
        pooled_faithfulness=_pooled(present, name, DIFFERENCE),
        pooled_faithfulness_of_probability=_pooled(present, name, PROBABILITY),
        rank=float(np.median(_values(present, name, "rank"))) if present else float("nan"),
        hits={k: float(np.mean(each)) if each else float("nan") for k, each in hits.items()},
    )


def _pooled(present: list[FactOutcome], name: str, metric: str) -> float:
    """Faithfulness of the means over facts; NaN without facts."""
    if not present:
        return float("nan")
    means = (float(_values(present, arm, metric).mean()) for arm in (name, EMPTY, FULL))
    circuit, empty, full = means
    return faithfulness(circuit, empty=empty, full=full)


def _gain(found: list[FactOutcome], arm: str, metric: str, seed: int) -> Specificity:
    values = _values(found, arm, metric)
    random = np.array([[getattr(draw, metric) for draw in each.random] for each in found])
    return specificity(values, random.T, seed=seed)


def measure_size(opened: OpenModel, chosen: Edges) -> CircuitSize:
    """Measure a circuit; `prune` it before, or edges that lead nowhere count too."""
    everything = _touched(opened, np.ones_like(chosen))
    nodes, parameters = _touched(opened, chosen)
    edges = int(np.count_nonzero(chosen))
    shares = edges / len(chosen), nodes / everything[0], parameters / everything[1]
    return CircuitSize(edges, nodes, parameters, *shares)


def _touched(opened: OpenModel, chosen: Edges) -> tuple[int, int]:
    """Count the nodes touched, and their parameters."""
    grid = opened.grid
    edges = grid.as_matrix(chosen)
    leaves: np.ndarray = np.asarray(edges.any(axis=0))
    enters: np.ndarray = np.asarray(edges.any(axis=1))
    nodes = int(leaves[0]) + int(enters[-1])
    parameters = 0
    for stage in grid.stages[:-1]:
        layer = opened.decoder[stage.layer]
        out, into = leaves[stage.sources], enters[stage.targets]
        if stage.kind == "mlp":
            touched = out | into
            parameters += int(touched[0]) * _count(layer.mlp)
        else:
            touched = out | into[: grid.heads]
            serves = (grid.feeds & touched).any(axis=1)
            serves[grid.heads :] |= into[grid.heads :]
            parameters += _count_attention(opened, stage.layer, touched, serves)
        nodes += int(touched.sum())
    return nodes, parameters


def _count_attention(
    opened: OpenModel,
    number: int,
    heads: Bool[np.ndarray, " heads"],
    readings: Bool[np.ndarray, " readings"],
) -> int:
    layer = opened.decoder[number]
    total = int(heads.sum()) * (layer.output.weight.numel() // opened.grid.heads)
    for reading in layer.reads:
        chosen = int(readings[reading.readings].sum())
        total += chosen * (_count(reading.module) // len(reading.order))
    return total


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
