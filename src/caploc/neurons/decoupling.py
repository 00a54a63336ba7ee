"""Do the neurons located for an item follow what is asked, or with what content it is asked?

Every item of a set of contrasts is located on its own; the sets of a base item and of its partners
are held against each other. Only contrasts count of which the model answers all five items rightly:
every gold token is the likeliest one, given those before it.

With J the mean IoU of the sets of base items and of an arm's partners,

    commonality effect = J_SC - J_DD      content effect = J_CD - J_DD
    individual effect  = J_SS - J_SC

That capabilities, and not single facts, can be located would show as a large first and a third near
0: rewording an item keeps no more neurons than putting other content into it. How neurons are
chosen from a single item's scores, and all figures, are ours.

    found = decouple(bench, draw_contrasts("demo/sums", 200), ItemLocator())
    found.followed[0].effects.commonality
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from caploc.cache import Cache
from caploc.designs import generator
from caploc.engine import Ask
from caploc.errors import BadData, BadOption
from caploc.folder import DECOUPLING, LEDGER, claim
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.neurons import contrasts as kinds
from caploc.neurons.attribution import Attribution
from caploc.neurons.contrasts import ARMS, ContrastSet, Item
from caploc.neurons.finding import Rule, score_examples
from caploc.neurons.sites import Chosen
from caploc.neurons.study import (
    Finding,
    NamedRow,
    NeuronBench,
    Reported,
    bounds,
    ranged,
    run_command,
)
from caploc.progress import Progress, Silent
from caploc.report import drawing
from caploc.report.exhibits import Exhibit, Value
from caploc.stats.intervals import Interval, JsonRecord, mean_interval, paired_interval
from caploc.stats.sets import jaccards
from caploc.tasks.demo.data import CAPITALS, ELEMENTS
from caploc.tasks.task import LogLikelihood, Scored
from caploc.workbench import ModelOptions

BASE = "base"
EFFECTS = ("commonality", "individual", "content")
STRETCH = 64  # contrasts whose sets are unpacked at a time
Sets = Bool[np.ndarray, "items neurons"]
Text = tuple[str, str]  # prompt and answer
Similarity = Float64[np.ndarray, " contrasts"]
CONTRASTS: dict[str, Callable[[int, int], list[ContrastSet]]] = {
    "arithmetic": lambda items, seed: kinds.arithmetic(items, seed=seed),
    "sentiment": lambda items, seed: kinds.sentiment(items, seed=seed),
    "demo/sums": lambda items, seed: kinds.sums(items, seed=seed),
    "demo/capitals": lambda items, seed: kinds.quizzes(CAPITALS, "capital of", items, seed=seed),
    "demo/elements": lambda items, seed: kinds.quizzes(ELEMENTS, "symbol of", items, seed=seed),
}


def draw_contrasts(name: str, items: int = kinds.ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts by the name of their set; those of `demo/` are in the demo model's wording."""
    return pick(CONTRASTS, name, "set of contrasts")(items, seed)


@dataclass(frozen=True)
class ItemLocator:
    """How a single item's neurons are found: by what scores, and which of them."""

    asked: Attribution = field(default_factory=Attribution)
    rule: Rule = field(default_factory=Rule)

    def check(self) -> "ItemLocator":
        """Refuse what cannot locate a single item."""
        self.asked.check()
        if self.rule.check().votes is not None:
            raise BadOption("--votes counts items, and each item is located alone: leave it out.")
        return self

    def choose(self, scores: Float64[np.ndarray, " neurons"], grid: Grid) -> Chosen:
        return self.rule.choose(self.rule.moments(grid.size).added(scores[None]), grid)

    def __str__(self) -> str:
        return f"{self.asked.method}, {self.rule}"


def key(item: Item) -> Text:
    """Tell items apart: different contrasts may share some."""
    return item.prompt, item.answer


@dataclass(frozen=True)
class PackedSets:
    """The sets of many items, a bit for each neuron; `rows` says which row is an item's."""

    bits: UInt8[np.ndarray, "items bytes"]
    neurons: int
    rows: Mapping[Text, int]

    def of(self, items: Sequence[Item]) -> Sets:
        chosen = self.bits[[self.rows[key(item)] for item in items]]
        return np.unpackbits(chosen, axis=1, count=self.neurons).astype(bool)

    @property
    def sizes(self) -> dict[str, float]:
        """Number of neurons of an item: mean, extremes, and the items for which there is none."""
        counts = np.bitwise_count(self.bits).sum(axis=1, dtype=np.int64)
        return {
            "mean": float(counts.mean()),
            "fewest": int(counts.min()),
            "most": int(counts.max()),
            "none": int((counts == 0).sum()),
        }


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


def locate_items(
    bench: NeuronBench, items: Sequence[Item], locator: ItemLocator, progress: Progress
) -> PackedSets:
    """Locate each different item's own neurons; of its scores nothing else is kept."""
    model, wording = bench.neurons, bench.wording
    names = list(dict.fromkeys(map(key, items)))
    spans = [wording.spans(LogLikelihood(*name))[0] for name in names]
    bits = np.zeros((len(names), -(-model.grid.size // 8)), dtype=np.uint8)
    scored = score_examples(model, spans, locator.asked, progress=progress, what=str(locator))
    for numbers, rows in scored:
        for number, scores in zip(numbers, rows, strict=True):
            bits[number] = np.packbits(locator.choose(scores, model.grid))
    return PackedSets(bits, model.grid.size, {name: row for row, name in enumerate(names)})


@dataclass(frozen=True)
class ContrastEffects(JsonRecord):
    """Mean IoU of each arm, and the effects, with paired bootstrap intervals over base items.

    Only base items whose IoU is known in all four arms count; `items` is their number and
    `undefined` that of the others (no neuron located for either item of a pair).
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
class Followed(JsonRecord):
    """What one locator's sets follow.

    `effects` compares the arms. A rewording keeps the answer, other content may not: `same_answer`
    is the mean IoU of base items with another item of the same commonality, wording and answer, and
    `beyond_answer` by how much a rewording's is above it, over base items that have such a one.
    """

    locator: str
    settings: dict[str, Any]
    sizes: dict[str, float]
    effects: ContrastEffects
    same_answer: Interval
    beyond_answer: Interval


@dataclass(frozen=True)
class Decoupled(JsonRecord):
    """Contrasts, what the model knows of them, and what the locator's sets follow.

    `contrasts` were given, and of `right` all five items were answered rightly; those were located.
    `answered` is the share of items answered rightly, by arm.
    """

    contrasts: int
    right: int
    answered: dict[str, float]
    followed: tuple[Followed, ...]


def decouple(
    bench: NeuronBench,
    contrasts: Sequence[ContrastSet],
    locator: ItemLocator,
    *,
    progress: Progress | None = None,
    seed: int = 0,
) -> Decoupled:
    """Locate every item on its own, and tell what the sets follow.

    Raises:
        UserError: if the locator does not exist, or there is no contrast.
        BadData: if no contrast is left.
    """
    locator.check()
    if not contrasts:
        raise BadOption("There is no contrast to locate; draw at least one.")
    progress = progress or Silent()
    passing = answer_rightly(bench, [item for each in contrasts for item in each.items], progress)
    answered = {
        arm: float(np.mean([passing[key(item)] for item in items]))
        for arm, items in _by_arm(contrasts).items()
    }
    right = kinds.kept(contrasts, lambda item: passing[key(item)])
    if not right:
        told = ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in answered.items())
        raise BadData(
            f"The model answers all five items of none of {len(contrasts)} contrasts "
            f"(alone: {told}); draw more, or contrasts that it was trained for."
        )
    found = locate_items(bench, [item for each in right for item in each.items], locator, progress)
    followed = follow_contrasts(found, right, locator, seed=seed)
    return Decoupled(len(contrasts), len(right), answered, (followed,))


def _by_arm(contrasts: Sequence[ContrastSet]) -> dict[str, list[Item]]:
    """List the base items, and the partners of each arm."""
    partners = {arm: [each.partners[arm] for each in contrasts] for arm in ARMS}
    return {BASE: [each.base for each in contrasts]} | partners


def follow_contrasts(
    found: PackedSets,
    contrasts: Sequence[ContrastSet],
    locator: ItemLocator,
    *,
    seed: int = 0,
) -> Followed:
    """Compare the sets of the items of some contrasts."""
    parts: list[dict[str, Similarity]] = []
    for first in range(0, len(contrasts), STRETCH):
        sets = {
            arm: found.of(items)
            for arm, items in _by_arm(contrasts[first : first + STRETCH]).items()
        }
        base = sets.pop(BASE)
        parts.append({arm: jaccards(base, partners) for arm, partners in sets.items()})
    similarity = {arm: np.concatenate([each[arm] for each in parts]) for arm in ARMS}
    alike = same_answer(found, contrasts, seed)
    return Followed(
        locator=str(locator),
        settings={"attribution": asdict(locator.asked), "rule": asdict(locator.rule)},
        sizes=found.sizes,
        effects=ContrastEffects.of(similarity, seed=seed),
        same_answer=mean_interval(alike, seed=seed),
        beyond_answer=paired_interval(similarity["SS"], alike, seed=seed),
    )


def same_answer(found: PackedSets, contrasts: Sequence[ContrastSet], seed: int) -> Similarity:
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
            similarity[number] = jaccards(found.of([base]), found.of([other]))[0]
    return similarity


@dataclass(frozen=True)
class DecouplingStudy:
    """Which contrasts of which model, and how the neurons of single items are located."""

    model: ModelOptions
    contrasts: str
    items: int = kinds.ITEMS
    attributions: tuple[Attribution, ...] = (Attribution(),)
    rule: Rule = field(default_factory=Rule)
    seed: int = 0

    def check(self) -> "DecouplingStudy":
        """Refuse every mistake that can be seen before weights are loaded."""
        pick(CONTRASTS, self.contrasts, "set of contrasts")
        if self.items < 2:
            raise BadOption(f"--items must be 2 or more; got {self.items}.")
        for locator in self.locators:
            locator.check()
        names = list(map(str, self.locators))
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadOption(f"--method names the same locator twice ({twice[0]}); name each once.")
        self.model.check()
        return self

    @property
    def locators(self) -> list[ItemLocator]:
        return [ItemLocator(asked, self.rule) for asked in self.attributions]


@contextmanager
def open_decoupling(study: DecouplingStudy, folder: Path, command: str) -> Iterator[NeuronBench]:
    """Claim a study's folder and load its model."""
    study.check()
    with claim(folder, asdict(study) | {"kind": "decoupling"}, command) as store:
        yield NeuronBench.of(study.model.engine(), store, folder)


def measure_decoupling(
    study: DecouplingStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> Reported:
    """Locate every item of the contrasts on its own; writes `decoupling.json`."""

    def find(bench: NeuronBench) -> Finding:
        cache = Cache(folder / LEDGER)
        contrasts = draw_contrasts(study.contrasts, study.items, seed=study.seed)
        asking: dict[str, Any] = {"progress": progress, "seed": study.seed}
        found = {}
        for locator in study.locators:
            asked = {
                "study": asdict(study) | {"attributions": None},
                "locator": asdict(locator),
                "model": bench.neurons.fingerprint,
            }
            measure = partial(decouple, bench, contrasts, locator, **asking)
            found[str(locator)] = cache.recall(asked, measure)
        results = {
            "model": study.model.name,
            "contrasts": study.contrasts,
            "locators": found,
        }
        title = f"Capability and content apart in {study.model.name}"
        shown = [effects_exhibit(study.contrasts, found)]
        return Finding(DECOUPLING, results, title, decoupling_headline(found), shown)

    return run_command(open_decoupling(study, folder, command), find, folder, command)


def decoupling_headline(found: dict[str, Any]) -> str:
    """Say the answer in a sentence."""
    name, first = next(iter(found.items()))
    effects = first["followed"][0]["effects"]
    return (
        f"Sets of single items ({name}): items of one capability are "
        f"{ranged(effects['commonality'])} more alike than others, rewordings of one item "
        f"{ranged(effects['individual'])} more than that"
    )


def effects_exhibit(contrasts: str, found: dict[str, Any]) -> Exhibit:
    """Show how alike an item's neurons are to its partners', and the effects."""
    followed = {name: each["followed"][0] for name, each in found.items()}
    rows: list[NamedRow] = [
        {
            "locator": name,
            "items used": f"{found[name]['right']} of {found[name]['contrasts']}",
            "neurons an item": Value(each["sizes"]["mean"], digits=1),
            "reworded (SS)": ranged(each["effects"]["similarity"]["SS"]),
            "same capability (SC)": ranged(each["effects"]["similarity"]["SC"]),
            "same content (CD)": ranged(each["effects"]["similarity"]["CD"]),
            "neither (DD)": ranged(each["effects"]["similarity"]["DD"]),
            **{f"{effect} effect": ranged(each["effects"][effect]) for effect in EFFECTS},
            "rewording beyond the answer": ranged(each["beyond_answer"]),
        }
        for name, each in followed.items()
    ]
    note = (
        "Mean IoU of an item's neurons with its partner's; only contrasts of which the model "
        "answers all five items rightly. Commonality is SC less DD, individual SS less SC, content "
        "CD less DD, with paired 95 % intervals over items. A rewording keeps the answer and other "
        "content does not, so the last column compares it with another item of the same answer. "
        "The design is ours: the paper's is not known to us."
    )
    effects = {e: [bounds(each["effects"][e]) for each in followed.values()] for e in EFFECTS}
    draw = partial(drawing.draw_points, list(found), effects, label="effect on IoU")
    name = f"decoupling-{contrasts.replace('/', '-')}"
    return Exhibit.of(name, f"Capability and content apart: {contrasts}", rows, [note], draw)
