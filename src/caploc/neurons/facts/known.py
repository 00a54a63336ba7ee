"""Which facts the model knows: whether its likeliest tokens, one by one, are the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from caploc.commonality.result import Result
from caploc.engine.plain import PaddedText, PaddingCheck, score_padded
from caploc.errors import BadData
from caploc.models.loading import CutModel
from caploc.neurons.facts.encoding import Encoded, Encoder
from caploc.neurons.facts.facts import Fact, Prompt
from caploc.progress import Progress, Silent

TOGETHER = 64  # prompts in a forward pass


@dataclass(frozen=True)
class Known(Result):
    """How many facts and rewrites the model answers rightly.

    `rewrites_known` is None where rewrites were not asked.
    """

    facts: int
    facts_known: int
    rewrites: int
    rewrites_known: int | None


@dataclass(frozen=True)
class Answer:
    """What the model makes of an answer.

    `log_probability` is the mean over the answer's tokens; `right` whether each was the likeliest.
    """

    log_probability: float
    right: bool


class Answers:
    """Asks a model for the probability of answers."""

    def __init__(self, loaded: CutModel) -> None:
        """Take the model as it is when asked, edits included."""
        self.loaded, self.encoder = loaded, Encoder(loaded)
        self.padding = PaddingCheck(loaded, left=False)

    def right(self, prompt: Prompt) -> bool:
        """Whether the model answers the prompt rightly.

        Raises:
            BadData: if the prompt does not fit the model's window.
        """
        return self.to([self.encoder.encode(prompt)])[0].right

    def log_probabilities(
        self, asked: Sequence[tuple[Prompt, str]]
    ) -> Float64[np.ndarray, " asked"]:
        """Mean log-probability of the tokens of each answer after its prompt."""
        found = self.to([self.encoder.encode(*each) for each in asked])
        return np.array([each.log_probability for each in found], dtype=float)

    def to(self, encoded: Sequence[Encoded]) -> list[Answer]:
        """What the model makes of each prompt's answer, in the order given."""
        results: dict[int, Answer] = {}
        intact = np.zeros(self.loaded.grid.size, dtype=bool)
        for alike in self.padding.groups(range(len(encoded)), lambda at: encoded[at].tokens):
            for first in range(0, len(alike), TOGETHER):
                places = alike[first : first + TOGETHER]
                some = [encoded[place] for place in places]
                asked = [PaddedText(each.tokens, intact, [each.answer]) for each in some]
                read = score_padded(self.loaded, asked)
                for place, each, ((logprob, greedy),) in zip(places, some, read, strict=True):
                    results[place] = Answer(logprob / len(each.answer), greedy)
        return [results[place] for place in range(len(encoded))]


def known_facts(
    loaded: CutModel,
    facts: Sequence[Fact],
    *,
    rewrites: bool = False,
    progress: Progress | None = None,
) -> tuple[tuple[Fact, ...], Known]:
    """The facts whose prompt the model answers rightly; with `rewrites`, only its right ones too.

    Raises:
        BadData: if a prompt does not fit the model's window, or no fact is known.
    """
    shown, asker = progress or Silent(), Answers(loaded)
    shown.start("facts known", len(facts))
    kept, given, rewrites_known = [], 0, 0
    for fact in facts:
        given += len(fact.rewrites)
        prompts = [fact.prompt, *(fact.rewrites if rewrites else ())]
        encoded = [asker.encoder.encode(prompt) for prompt in prompts]
        first, *others = asker.to(encoded)
        shown.advance(1, sum(len(each.tokens) for each in encoded))
        right = tuple(p for p, found in zip(fact.rewrites, others, strict=False) if found.right)
        rewrites_known += len(right)
        if first.right:
            kept.append(replace(fact, rewrites=right) if rewrites else fact)
    if not kept:
        raise BadData(
            f"The model answers none of the {len(facts)} facts rightly, so nothing can be located; "
            "give facts that it knows."
        )
    counts = Known(len(facts), len(kept), given, rewrites_known if rewrites else None)
    return tuple(kept), counts
