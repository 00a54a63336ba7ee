"""Does what is located for an item follow what is asked, or with what content it is asked?

Every item of a set of contrasts is located on its own; the sets of a base item and of its partners
are held against each other. Only contrasts count of which the model answers all five items rightly:
every gold token is the likeliest one, given those before it.

With J the mean IoU of the sets of base items and of an arm's partners,

    commonality effect = J_SC - J_DD      content effect = J_CD - J_DD
    individual effect  = J_SS - J_SC

That capabilities, and not single facts, can be located would show as a large first and a third near
0: rewording an item keeps no more neurons than putting other content into it. An item is located by
any score of neurons and a rule, or by a method for single facts: knowledge neurons, the layer where
causal tracing peaks, or a circuit, for which it is corrupted by another item of as many tokens with
the same commonality and wording and another answer. How, and all figures, are ours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from caploc.cache import Cache
from caploc.designs import generator
from caploc.engine.api import Ask
from caploc.errors import BadData, BadOption, pick
from caploc.folder import LEDGER, claim
from caploc.neurons.attribution import METHODS, STEPS, Attribution
from caploc.neurons.finding import score_examples
from caploc.neurons.study import NeuronBench, write_result
from caploc.progress import Progress, Silent
from caploc.stats import Interval, JsonRecord, mean_interval, paired_interval
from caploc.stats.threshold import Rule
from caploc.tasks.task import LogLikelihood, Scored
from caploc.workbench import ModelOptions
from papers.cnl import contrasts as kinds
from papers.cnl.circuits import PromptPair, attribute, strongest
from papers.cnl.contrasts import ARMS, CONTRASTS, ContrastSet, Item, draw_contrasts
from papers.cnl.edges import open_model, prune
from papers.cnl.facts import FactPrompt
from papers.cnl.fidelity import peak
from papers.cnl.knowledge_neurons import KnowledgeNeurons, Tracer, noise_level
from papers.exhibits import Exhibit, Value, dots, interval, write_all

CIRCUIT_SHARE, CIRCUIT_STEPS = 0.05, 20  # of the edges that are kept; of their scores
Text = tuple[str, str]  # prompt and answer
Similarity = Float64[np.ndarray, " contrasts"]
Packed = UInt8[np.ndarray, "items bytes"]  # a bit for each unit


def key(item: Item) -> Text:
    """Tell items apart: different contrasts may share some."""
    return item.prompt, item.answer


@dataclass(frozen=True)
class ItemLocator:
    """How a single item is located: by a score and a rule, or by a method for single facts."""

    method: str = "gradient"
    steps: int = STEPS
    rule: Rule = field(default_factory=Rule)

    def check(self) -> "ItemLocator":
        pick(
            dict.fromkeys([*METHODS, *BY_FACT]), self.method, "neuron score or way to locate facts"
        )
        Attribution(steps=self.steps).check()
        if self.rule.check().votes is not None:
            raise BadOption("--votes counts items, and each item is located alone: leave it out.")
        return self

    def __str__(self) -> str:
        return self.method if self.method in BY_FACT else f"{self.method}, {self.rule}"

    def locate(
        self, bench: NeuronBench, items: Sequence[Item], progress: Progress
    ) -> Iterator[tuple[int, Bool[np.ndarray, " units"]]]:
        """Yield the number of each item and what is located for it, in any order."""
        if self.method in BY_FACT:
            find = BY_FACT[self.method](bench, items)
            progress.start(str(self), len(items))
            for number, item in enumerate(items):
                yield number, find(item)
                progress.advance(1, 1)
            return
        model, rule = bench.neurons, self.rule
        spans = [bench.wording.spans(LogLikelihood(*key(item)))[0] for item in items]
        asked = Attribution(self.method, steps=self.steps)
        for numbers, rows in score_examples(model, spans, asked, progress=progress, what=str(self)):
            for number, scores in zip(numbers, rows, strict=True):
                moments = rule.moments(model.grid.size).added(scores[None])
                yield number, rule.choose(moments, model.grid)


Find = Callable[[Item], Bool[np.ndarray, " units"]]


def as_prompt(item: Item) -> FactPrompt:
    """Ask an item as a fact about its subject."""
    return FactPrompt(item.prompt, item.subject, item.answer)


def find_knowledge_neurons(bench: NeuronBench, items: Sequence[Item]) -> Find:
    """Locate an item's knowledge neurons."""
    locator = KnowledgeNeurons(bench.neurons)
    return lambda item: locator.locate(as_prompt(item))


def find_traced_layer(bench: NeuronBench, items: Sequence[Item]) -> Find:
    """Locate the layer in which an item's tracing peaks; none if it is not traced."""
    tracer = Tracer(bench.neurons, noise_level(bench.neurons, list(map(as_prompt, items))))

    def find(item: Item) -> Bool[np.ndarray, " layers"]:
        profile, chosen = tracer.locate(as_prompt(item)), np.zeros(tracer.layers, dtype=bool)
        if profile is not None:
            chosen[peak(profile)] = True
        return chosen

    return find


def find_circuit(bench: NeuronBench, items: Sequence[Item]) -> Find:
    """Locate an item's circuit; none where no other item can corrupt it."""
    opened, random = open_model(bench.engine.loaded), generator(0)
    encoded = {key(item): bench.wording.pair(LogLikelihood(*key(item))) for item in items}
    alike: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        prompt, _ = encoded[key(item)]
        alike[item.commonality, item.wording, len(prompt)].append(item)

    def find(item: Item) -> Bool[np.ndarray, " edges"]:
        clean, gold = encoded[key(item)]
        pool = [encoded[key(each)] for each in alike[item.commonality, item.wording, len(clean)]]
        others = [(prompt, other) for prompt, other in pool if other[0] != gold[0]]
        if not others:
            return np.zeros(opened.grid.size, dtype=bool)
        corrupted, other = others[int(random.integers(len(others)))]
        pair = PromptPair(tuple(clean), tuple(corrupted), gold[0], other[0])
        scores = attribute(opened, pair, steps=CIRCUIT_STEPS)
        return prune(opened.grid, strongest(scores, CIRCUIT_SHARE))

    return find


BY_FACT: dict[str, Callable[[NeuronBench, Sequence[Item]], Find]] = {
    "neurons": find_knowledge_neurons,
    "tracing": find_traced_layer,
    "circuits": find_circuit,
}


@dataclass(frozen=True)
class LocatedItems:
    """What was located for many items; `rows` says which row of `bits` is an item's."""

    bits: Packed
    rows: Mapping[Text, int]

    @classmethod
    def by(
        cls, locator: ItemLocator, bench: NeuronBench, items: Sequence[Item], progress: Progress
    ) -> "LocatedItems":
        """Locate each different item once; of its scores nothing else is kept."""
        different = list({key(item): item for item in items}.values())
        packed: dict[int, np.ndarray] = {}
        for number, chosen in locator.locate(bench, different, progress):
            packed[number] = np.packbits(chosen)
        bits = np.stack([packed[number] for number in range(len(different))])
        return cls(bits, {key(item): row for row, item in enumerate(different)})

    def iou(self, first: Sequence[Item], second: Sequence[Item]) -> Float64[np.ndarray, " pairs"]:
        """Compute the IoU of each item's set with that of the item beside it; NaN if both empty."""
        one, other = (
            self.bits[[self.rows[key(item)] for item in each]] for each in (first, second)
        )
        both, either = (
            np.bitwise_count(each).sum(axis=1, dtype=np.int64)
            for each in (one & other, one | other)
        )
        return np.divide(both, either, out=np.full(len(both), np.nan), where=either > 0)


def answer_rightly(
    bench: NeuronBench, items: Sequence[Item], progress: Progress
) -> dict[Text, bool]:
    """Ask of each different item whether every gold token is the likeliest, given those before."""
    names = list(dict.fromkeys(map(key, items)))
    intact = np.zeros(bench.engine.grid.size, dtype=bool)
    asks = [Ask((n, 0), LogLikelihood(*name), intact) for n, name in enumerate(names)]
    progress.start("items answered", len(asks))
    passing = {}
    for answers in bench.engine.answer(asks):
        for answer in answers:
            assert isinstance(answer.response, Scored), "the answer to a LogLikelihood"
            passing[names[answer.key[0]]] = answer.response.greedy
        progress.advance(len(answers), sum(each.forward_tokens for each in answers))
    return passing


@dataclass(frozen=True)
class ContrastEffects(JsonRecord):
    """Mean IoU of each arm, and the effects, with paired bootstrap intervals over base items.

    Only base items whose IoU is known in all four arms count; `items` is their number and
    `undefined` that of the others (nothing located for either item of a pair).
    """

    items: int
    undefined: int
    similarity: dict[str, Interval]
    commonality: Interval
    individual: Interval
    content: Interval

    @classmethod
    def of(cls, similarity: Mapping[str, Similarity], *, seed: int = 0) -> "ContrastEffects":
        """Compute the effects from each arm's IoU with the base, item by item."""
        table = np.stack([similarity[arm] for arm in ARMS])
        known = ~np.isnan(table).any(axis=0)
        arms = dict(zip(ARMS, table[:, known], strict=True))
        return cls(
            items=int(known.sum()),
            undefined=int((~known).sum()),
            similarity={arm: mean_interval(each, seed=seed) for arm, each in arms.items()},
            commonality=paired_interval(arms["SC"], arms["DD"], seed=seed),
            individual=paired_interval(arms["SS"], arms["SC"], seed=seed),
            content=paired_interval(arms["CD"], arms["DD"], seed=seed),
        )


@dataclass(frozen=True)
class Decoupled(JsonRecord):
    """Contrasts, what the model knows of them, and what a locator's sets follow.

    `contrasts` were given, and of `right` all five items were answered rightly; those were located.
    `answered` is the share of items answered rightly, by arm; `size` the mean number of units of an
    item. `effects` compares the arms. A rewording keeps the answer, other content may not:
    `same_answer` is the mean IoU of base items with another item of the same commonality, wording
    and answer, and `beyond_answer` by how much a rewording's is above it, over base items that have
    such a one.
    """

    contrasts: int
    right: int
    answered: dict[str, float]
    size: float
    effects: ContrastEffects
    same_answer: Interval
    beyond_answer: Interval


def decouple(
    bench: NeuronBench,
    contrasts: Sequence[ContrastSet],
    locator: ItemLocator,
    *,
    progress: Progress | None = None,
    seed: int = 0,
) -> Decoupled:
    """Locate every item on its own, and tell what the sets follow.

    Raises UserError if the locator does not exist, or there is no contrast; BadData if no contrast
    is left.
    """
    locator.check()
    if not contrasts:
        raise BadOption("There is no contrast to locate; draw at least one.")
    progress = progress or Silent()
    passing = answer_rightly(bench, [item for each in contrasts for item in each.items], progress)
    answered = {
        arm: float(np.mean([passing[key(item)] for item in items]))
        for arm, items in list_arms(contrasts).items()
    }
    right = kinds.kept(contrasts, lambda item: passing[key(item)])
    if not right:
        told = ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in answered.items())
        raise BadData(
            f"The model answers all five items of none of {len(contrasts)} contrasts "
            f"(alone: {told}); draw more, or contrasts that it was trained for."
        )
    items = [item for each in right for item in each.items]
    found = LocatedItems.by(locator, bench, items, progress)
    size = np.bitwise_count(found.bits).sum(axis=1, dtype=np.int64).mean()
    return Decoupled(
        len(contrasts), len(right), answered, float(size), *follow_contrasts(found, right, seed)
    )


def list_arms(contrasts: Sequence[ContrastSet]) -> dict[str, list[Item]]:
    """List the base items, and the partners of each arm."""
    partners = {arm: [each.partners[arm] for each in contrasts] for arm in ARMS}
    return {"base": [each.base for each in contrasts]} | partners


def follow_contrasts(
    found: LocatedItems, contrasts: Sequence[ContrastSet], seed: int = 0
) -> tuple[ContrastEffects, Interval, Interval]:
    """Compare the sets of the items of some contrasts: effects, and what an equal answer gives."""
    base, *partners = list_arms(contrasts).values()
    similarity = {arm: found.iou(base, each) for arm, each in zip(ARMS, partners, strict=True)}
    alike = same_answer(found, contrasts, seed)
    beyond = paired_interval(similarity["SS"], alike, seed=seed)
    return ContrastEffects.of(similarity, seed=seed), mean_interval(alike, seed=seed), beyond


def same_answer(found: LocatedItems, contrasts: Sequence[ContrastSet], seed: int) -> Similarity:
    """Compute the IoU of each base item with another of its commonality, wording and answer.

    That one is drawn from all contrasts; NaN where there is none with other content.
    """
    alike: dict[tuple[str, str, str], dict[Text, Item]] = defaultdict(dict)
    for each in contrasts:
        for item in each.items:
            alike[item.commonality, item.wording, item.answer][key(item)] = item
    random = generator(seed)
    similarity = np.full(len(contrasts), np.nan)
    for number, each in enumerate(contrasts):
        base = each.base
        members = alike[base.commonality, base.wording, base.answer].values()
        others = [item for item in members if item.content != base.content]
        if others:
            other = others[int(random.integers(len(others)))]
            similarity[number] = found.iou([base], [other])[0]
    return similarity


@dataclass(frozen=True)
class DecouplingStudy:
    """Which contrasts of which model, and how single items are located."""

    model: ModelOptions
    contrasts: str
    items: int = kinds.ITEMS
    methods: tuple[str, ...] = ("gradient",)
    steps: int = STEPS
    rule: Rule = field(default_factory=Rule)
    seed: int = 0

    def check(self) -> None:
        """Refuse, before weights are loaded, unknown contrasts and locators."""
        pick(CONTRASTS, self.contrasts, "set of contrasts")
        for locator in self.locators:
            locator.check()
        self.model.check()

    @property
    def locators(self) -> list[ItemLocator]:
        return [ItemLocator(method, self.steps, self.rule) for method in self.methods]


def measure_decoupling(
    study: DecouplingStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Locate every item of the contrasts on its own; writes `decoupling.json`."""
    study.check()
    with claim(folder, asdict(study) | {"kind": "decoupling"}, command) as store:
        bench = NeuronBench.of(study.model.engine(), store, folder)
        cache = Cache(folder / LEDGER)
        contrasts = draw_contrasts(study.contrasts, study.items, seed=study.seed)
        asking: dict[str, Any] = {"progress": progress, "seed": study.seed}
        found = {}
        for locator in study.locators:
            asked = {
                "study": asdict(study) | {"methods": None},
                "locator": asdict(locator),
                "model": bench.neurons.fingerprint,
            }
            measure = partial(decouple, bench, contrasts, locator, **asking)
            found[str(locator)] = cache.recall(asked, measure)
        results = {"model": study.model.name, "contrasts": study.contrasts, "locators": found}
        result = write_result(folder / "decoupling.json", results, command)
        shown = [show_decoupling(study.contrasts, found)]
        write_all(shown, folder, f"Capability and content apart in {study.model.name}", command)
    return result, shown


def show_decoupling(contrasts: str, found: dict[str, Any]) -> Exhibit:
    """Show how alike an item and each partner are located, and the effects."""
    effects = "commonality", "individual", "content"
    rows = [
        {
            "locator": name,
            "items used": f"{each['right']} of {each['contrasts']}",
            "units an item": Value(each["size"], digits=1),
        }
        | {arm: interval(each["effects"]["similarity"][arm]) for arm in ARMS}
        | {f"{effect} effect": interval(each["effects"][effect]) for effect in effects}
        | {"rewording beyond the answer": interval(each["beyond_answer"])}
        for name, each in found.items()
    ]
    notes = [
        "Mean IoU of what is located for an item and for its partner: reworded (SS), of the same "
        "capability (SC), of the same content (CD), of neither (DD); only contrasts of which the "
        "model answers all five items rightly. Commonality is SC less DD, individual SS less SC, "
        "content CD less DD, with paired 95 % intervals over items. A rewording keeps the answer "
        "and other content does not, so the last column compares it with another item of the same "
        "answer. The design is ours: the paper's is not known to us."
    ]
    title = f"Capability and content apart: {contrasts}"
    table = Exhibit.of(f"decoupling-{contrasts.replace('/', '-')}", title, rows, notes)
    columns = [f"{effect} effect" for effect in effects]
    return replace(table, chart=dots(table.frame, "locator", columns))
