"""Single items asked of a model: are they answered rightly, and which neurons are theirs?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from caploc.commonality import Item, Result
from caploc.engine import Ask
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.neurons.attribution import Attribution
from caploc.neurons.bench import NeuronBench
from caploc.neurons.grid import Chosen
from caploc.neurons.rule import Rule
from caploc.neurons.scores import score_examples
from caploc.progress import Progress
from caploc.tasks.requests import LogLikelihood, Scored

Sets = Bool[np.ndarray, "items neurons"]
Text = tuple[str, str]  # prompt and answer


@dataclass(frozen=True)
class Locator:
    """How a single item's neurons are found: by what scores, and which of them."""

    asked: Attribution = field(default_factory=Attribution)
    rule: Rule = field(default_factory=Rule)

    def check(self) -> "Locator":
        """Refuse what cannot locate a single item.

        Raises:
            UserError: if a part does not exist, or the rule needs several items.
        """
        self.asked.check()
        if self.rule.check().votes is not None:
            raise BadOption("--votes counts items, and each item is located alone: leave it out.")
        return self

    def chosen(self, scores: Float64[np.ndarray, " neurons"], grid: Grid) -> Chosen:
        """The neurons of an item, from its scores."""
        return self.rule.chosen(self.rule.moments(grid.size).added(scores[None]), grid)

    def __str__(self) -> str:
        return f"{self.asked.method}, {self.rule}"


@dataclass(frozen=True)
class Sizes(Result):
    """Number of neurons located for an item: mean, extremes, and items for which there is none."""

    mean: float
    fewest: int
    most: int
    none: int


def key(item: Item) -> Text:
    """What tells items apart: different contrasts may share some."""
    return item.prompt, item.answer


@dataclass(frozen=True)
class Packed:
    """The sets of many items, a bit for each neuron; `rows` says which row is an item's."""

    bits: UInt8[np.ndarray, "items bytes"]
    neurons: int
    rows: Mapping[Text, int]

    def sets(self, items: Sequence[Item]) -> Sets:
        """The sets of some items."""
        chosen = self.bits[[self.rows[key(item)] for item in items]]
        return np.unpackbits(chosen, axis=1, count=self.neurons).astype(bool)

    @property
    def sizes(self) -> Sizes:
        """How large they are."""
        counts = np.bitwise_count(self.bits).sum(axis=1, dtype=np.int64)
        return Sizes(
            mean=float(counts.mean()),
            fewest=int(counts.min()),
            most=int(counts.max()),
            none=int((counts == 0).sum()),
        )


@dataclass(frozen=True)
class Items:
    """Asks a model about items, each different one once."""

    bench: NeuronBench
    progress: Progress

    def length(self, text: str) -> int:
        """Number of tokens of a text by itself."""
        tokenizer = self.bench.engine.loaded.tokenizer
        return len(tokenizer.encode(text, add_special_tokens=False))

    def rightly(self, items: Sequence[Item]) -> dict[Text, bool]:
        """Whether every gold token of an item is the likeliest one, given those before it."""
        engine = self.bench.engine
        names = list(dict.fromkeys(map(key, items)))
        intact = np.zeros(engine.grid.size, dtype=bool)
        asks = [Ask((n, 0), LogLikelihood(*name), intact) for n, name in enumerate(names)]
        self.progress.start("items answered", len(asks))
        passing = {}
        for answers in engine.answer(asks):
            for answer in answers:
                assert isinstance(answer.response, Scored), "the answer to a LogLikelihood"
                passing[names[answer.key[0]]] = answer.response.greedy
            self.progress.advance(len(answers), sum(each.forward_tokens for each in answers))
        return passing

    def located(self, items: Sequence[Item], locator: Locator) -> Packed:
        """Every item's own neurons; of its scores nothing else is kept."""
        model, wording = self.bench.neurons, self.bench.wording
        names = list(dict.fromkeys(map(key, items)))
        spans = [wording.spans(LogLikelihood(*name))[0] for name in names]
        bits = np.zeros((len(names), -(-model.grid.size // 8)), dtype=np.uint8)
        scored = score_examples(
            model, spans, locator.asked, progress=self.progress, what=str(locator)
        )
        for numbers, rows in scored:
            for number, scores in zip(numbers, rows, strict=True):
                bits[number] = np.packbits(locator.chosen(scores, model.grid))
        return Packed(bits, model.grid.size, {name: row for row, name in enumerate(names)})
