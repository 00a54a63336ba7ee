"""Does what is located for an item follow what is asked, or with what content it is asked?

Every item of a set of contrasts is located on its own; the sets of a base item and of its partners
are held against each other. Only contrasts count of which the model answers all five items rightly:
every gold token is the likeliest one, given those before it.

With J the mean IoU of the sets of base items and of an arm's partners,

    commonality effect = J_SC - J_DD      content effect = J_CD - J_DD
    individual effect  = J_SS - J_SC

That capabilities, and not single facts, can be located would show as a large first and a third near
0: rewording an item keeps no more neurons than putting other content into it. A rewording keeps the
answer too, so it is also held against another item of the same commonality, wording and answer. An
item is located by any score of neurons and a rule, or by a method for single facts: knowledge
neurons, the layer where causal tracing peaks, or a circuit, for which it is corrupted by another
item of as many tokens with the same commonality and wording and another answer. How, and all
figures, are ours.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from tqdm import tqdm

from caploc.designs import generator
from caploc.errors import BadData
from caploc.models.loading import LoadedModel
from caploc.neurons.finding import score_examples
from caploc.neurons.model import NeuronModel
from caploc.neurons.options import SCORES, Attribution, Rule
from caploc.progress import Silent
from caploc.stats import mean_interval, paired_interval
from papers.cnl.circuits import PromptPair, attribute, strongest
from papers.cnl.contrasts import ARMS, ContrastSet, Item, kept
from papers.cnl.edges import open_model, prune
from papers.cnl.facts import FactPrompt
from papers.cnl.fidelity import peak
from papers.cnl.knowledge_neurons import KnowledgeNeurons
from papers.cnl.prompts import Encoder, FactAnswers
from papers.cnl.tracing import Tracer, noise_level

CIRCUIT_SHARE = 0.05  # of the edges that are kept
Text = tuple[str, str]  # prompt and answer
Similarity = Float64[np.ndarray, " contrasts"]
Sets = dict[Text, np.ndarray]  # what was located for each item, a bit for each unit
Find = Callable[[Item], Bool[np.ndarray, " units"]]


def key(item: Item) -> Text:
    """Tell items apart: different contrasts may share some."""
    return item.prompt, item.answer


def as_prompt(item: Item) -> FactPrompt:
    """Ask an item as a fact about its subject."""
    return FactPrompt(item.prompt, item.subject, item.answer)


@dataclass(frozen=True)
class ItemLocator:
    """How a single item is located: by a score and a rule, or by a method for single facts."""

    method: str
    attribution: Attribution
    rule: Rule

    @classmethod
    def of(cls, method: str, rule: Rule, **score: Any) -> "ItemLocator":
        """Locate by the score of this name, or by a method for single facts, which reads none."""
        return cls(method, Attribution("gradient" if method in BY_FACT else method, **score), rule)

    def __str__(self) -> str:
        return self.method if self.method in BY_FACT else f"{self.method}, {self.rule}"

    def locate(
        self, loaded: LoadedModel, neurons: NeuronModel, items: Sequence[Item]
    ) -> Iterator[tuple[int, Bool[np.ndarray, " units"]]]:
        """Yield the number of each item and what is located for it, in any order."""
        if self.method in BY_FACT:
            find = BY_FACT[self.method](loaded, neurons, items)
            yield from enumerate(map(find, tqdm(items, self.method, disable=None)))
            return
        encoder = Encoder(neurons)
        spans = [encoder.encode(as_prompt(item)).span for item in items]
        scored = score_examples(neurons, spans, self.attribution, progress=Silent(), what="")
        for numbers, rows in scored:
            for number, scores in zip(numbers, rows, strict=True):
                moments = self.rule.moments(neurons.grid.size).added(scores[None])
                yield number, self.rule.choose(moments, neurons.grid)

    def sets(self, loaded: LoadedModel, neurons: NeuronModel, items: Sequence[Item]) -> Sets:
        """Locate each different item once; of its scores nothing else is kept."""
        different = list({key(item): item for item in items}.values())
        found = self.locate(loaded, neurons, different)
        return {key(different[number]): np.packbits(chosen) for number, chosen in found}


def find_knowledge_neurons(_: LoadedModel, neurons: NeuronModel, items: Sequence[Item]) -> Find:
    """Locate an item's knowledge neurons."""
    locator = KnowledgeNeurons(neurons)
    return lambda item: locator.locate(as_prompt(item))


def find_traced_layer(_: LoadedModel, neurons: NeuronModel, items: Sequence[Item]) -> Find:
    """Locate the layer in which an item's tracing peaks; none if it is not traced."""
    tracer = Tracer(neurons, noise_level(neurons, list(map(as_prompt, items))))

    def find(item: Item) -> Bool[np.ndarray, " layers"]:
        profile, chosen = tracer.locate(as_prompt(item)), np.zeros(tracer.layers, dtype=bool)
        if profile is not None:
            chosen[peak(profile)] = True
        return chosen

    return find


def find_circuit(loaded: LoadedModel, _: NeuronModel, items: Sequence[Item]) -> Find:
    """Locate an item's circuit; none where no other item can corrupt it."""
    opened, random, encoder = open_model(loaded), generator(0), Encoder(loaded)
    encoded = {key(item): encoder.encode(as_prompt(item)) for item in items}
    alike: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        alike[item.commonality, item.wording, len(encoded[key(item)].context)].append(item)

    def find(item: Item) -> Bool[np.ndarray, " edges"]:
        own = encoded[key(item)]
        pool = alike[item.commonality, item.wording, len(own.context)]
        others = [other for other in (encoded[key(each)] for each in pool)
                  if other.answer[0] != own.answer[0]]  # fmt: skip
        if not others:
            return np.zeros(opened.grid.size, dtype=bool)
        other = others[int(random.integers(len(others)))]
        pair = PromptPair(own.context, other.context, own.answer[0], other.answer[0])
        return prune(opened.grid, strongest(attribute(opened, pair), CIRCUIT_SHARE))

    return find


BY_FACT: dict[str, Callable[[LoadedModel, NeuronModel, Sequence[Item]], Find]] = {
    "neurons": find_knowledge_neurons,
    "tracing": find_traced_layer,
    "circuits": find_circuit,
}
LOCATORS = (*SCORES, *BY_FACT)


def similarity(
    sets: Sets, first: Sequence[Item], second: Sequence[Item]
) -> Float64[np.ndarray, " pairs"]:
    """Compute the IoU of each item's set with that of the item beside it; NaN if both are empty."""
    one, other = (np.stack([sets[key(item)] for item in each]) for each in (first, second))
    both, either = (
        np.bitwise_count(each).sum(axis=1, dtype=np.int64) for each in (one & other, one | other)
    )
    return np.divide(both, either, out=np.full(len(both), np.nan), where=either > 0)


def decouple(
    loaded: LoadedModel,
    neurons: NeuronModel,
    contrasts: Sequence[ContrastSet],
    locator: ItemLocator,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Locate every item on its own, and tell what the sets follow.

    Of the `contrasts` those are used that are `right` in all five items; `answered` says what
    share of each arm's items alone is. `size` is the mean number of units located for an item.
    Raises BadData if no contrast is left.
    """
    items = list({key(item): item for each in contrasts for item in each.items}.values())
    asker = FactAnswers(neurons)
    scores = asker.scores([asker.encoder.encode(as_prompt(item)) for item in items])
    passing = {key(item): found.greedy for item, found in zip(items, scores, strict=True)}
    answered = {
        arm: float(np.mean([passing[key(item)] for item in own]))
        for arm, own in list_arms(contrasts).items()
    }
    right = kept(contrasts, lambda item: passing[key(item)])
    if not right:
        told = ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in answered.items())
        raise BadData(
            f"The model answers all five items of none of {len(contrasts)} contrasts "
            f"(alone: {told}); draw more, or contrasts that it was trained for."
        )
    sets = locator.sets(loaded, neurons, [item for each in right for item in each.items])
    size = np.mean([np.bitwise_count(bits).sum(dtype=np.int64) for bits in sets.values()])
    counts = {"contrasts": len(contrasts), "right": len(right), "answered": answered}
    return counts | {"size": float(size)} | follow_contrasts(sets, right, seed)


def list_arms(contrasts: Sequence[ContrastSet]) -> dict[str, list[Item]]:
    """List the base items, and the partners of each arm."""
    partners = {arm: [each.partners[arm] for each in contrasts] for arm in ARMS}
    return {"base": [each.base for each in contrasts]} | partners


def follow_contrasts(sets: Sets, contrasts: Sequence[ContrastSet], seed: int = 0) -> dict[str, Any]:
    """Compare the sets of the items of some contrasts.

    `same_answer` is the mean IoU of base items with another item of the same commonality, wording
    and answer, and `beyond_answer` by how much a rewording's is above it, over base items that have
    such a one.
    """
    base, *partners = list_arms(contrasts).values()
    arms = {arm: similarity(sets, base, each) for arm, each in zip(ARMS, partners, strict=True)}
    alike = same_answer(sets, contrasts, seed)
    return {
        "effects": effects_of(arms, seed),
        "same_answer": mean_interval(alike, seed=seed),
        "beyond_answer": paired_interval(arms["SS"], alike, seed=seed),
    }


def effects_of(arms: Mapping[str, Similarity], seed: int = 0) -> dict[str, Any]:
    """Compute each arm's mean IoU and the effects, with paired intervals over base items.

    Only base items whose IoU is known in all four arms count; `items` is their number and
    `undefined` that of the others (nothing located for either item of a pair).
    """
    table = np.stack([arms[arm] for arm in ARMS])
    known = ~np.isnan(table).any(axis=0)
    each = dict(zip(ARMS, table[:, known], strict=True))
    return {
        "items": int(known.sum()),
        "undefined": int((~known).sum()),
        "similarity": {arm: mean_interval(values, seed=seed) for arm, values in each.items()},
        "commonality": paired_interval(each["SC"], each["DD"], seed=seed),
        "individual": paired_interval(each["SS"], each["SC"], seed=seed),
        "content": paired_interval(each["CD"], each["DD"], seed=seed),
    }


def same_answer(sets: Sets, contrasts: Sequence[ContrastSet], seed: int) -> Similarity:
    """Compute the IoU of each base item with another of its commonality, wording and answer.

    That one is drawn from all contrasts; NaN where there is none with other content.
    """
    alike: dict[tuple[str, str, str], dict[Text, Item]] = defaultdict(dict)
    for each in contrasts:
        for item in each.items:
            alike[item.commonality, item.wording, item.answer][key(item)] = item
    random = generator(seed)
    found = np.full(len(contrasts), np.nan)
    for number, base in enumerate(each.base for each in contrasts):
        members = alike[base.commonality, base.wording, base.answer].values()
        others = [item for item in members if item.content != base.content]
        if others:
            other = others[int(random.integers(len(others)))]
            found[number] = similarity(sets, [base], [other])[0]
    return found
