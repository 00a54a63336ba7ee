"""The locator of circuits: a prompt in, the edges that carry its answer out.

A prompt is corrupted by another subject of as many tokens. Where that comes from is a function from
a prompt to counterparts, each a subject and the answer that is right for it: `others_of(prompts)`
for facts of any source, `demo_counterparts` for the demo model's.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import numpy as np

from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData
from caploc.models.loading import LoadedModel
from caploc.neurons.circuits.circuit import BATCH, STEPS, PromptPair, attribute, strongest
from caploc.neurons.circuits.graph import EdgeGrid, Edges, prune
from caploc.neurons.circuits.opening import OpenModel, open_model
from caploc.neurons.facts.prompts import FactPrompt
from caploc.tasks.demo.data import CAPITALS, ELEMENTS
from caploc.tasks.task import LogLikelihood

OFFERED = re.compile(r"^(\S+) ([A-D])$", re.MULTILINE)  # a line of a quiz: an answer, its letter
DEMO = {"capital of": CAPITALS, "symbol of": ELEMENTS}


@dataclass(frozen=True)
class Counterpart:
    """Another subject that the prompt could be about, and an answer, if can be the one `right`."""

    subject: str
    answer: str
    right: bool = True


Counterparts = Callable[[FactPrompt], Sequence[Counterpart]]


def others_of(prompts: Iterable[FactPrompt]) -> Counterparts:
    """Take counterparts from other prompts of the same words but for the subject."""
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for prompt in prompts:
        if prompt.subject:
            known.setdefault(_frame(prompt), {})[prompt.subject] = prompt.target

    def counterparts(prompt: FactPrompt) -> list[Counterpart]:
        if not prompt.subject:
            return []
        alike = known.get(_frame(prompt), {})
        return [Counterpart(*each) for each in alike.items() if each[0] != prompt.subject]

    return counterparts


def _frame(prompt: FactPrompt) -> tuple[str, ...]:
    return tuple(prompt.text.split(prompt.subject or "", 1))


def demo_counterparts(prompt: FactPrompt) -> list[Counterpart]:
    """Take other countries or elements with their answers.

    In a quiz the answer is the letter of what is offered; a subject whose answer is not offered
    is no right question, and stands for the letter of the prompt's own false answer.
    """
    letters = dict(OFFERED.findall(prompt.text))
    facts = next((facts for name, facts in DEMO.items() if name in prompt.text), [])
    found = []
    for subject, answer in facts:
        if subject == prompt.subject:
            continue
        if not letters:
            found.append(Counterpart(subject, answer))
        elif answer in letters:
            found.append(Counterpart(subject, letters[answer]))
        elif prompt.other:
            found.append(Counterpart(subject, prompt.other, right=False))
    return found


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
    for counterpart in _ordered(prompt, counterparts(prompt), seed):
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


def _ordered(prompt: FactPrompt, found: Sequence[Counterpart], seed: int) -> list[Counterpart]:
    digest = blake2b(str(prompt.subject).encode(), digest_size=4).digest()
    order = np.random.default_rng([seed, int.from_bytes(digest, "big")]).permutation(len(found))
    drawn = [found[place] for place in order]
    return sorted(drawn, key=lambda each: (not each.right, each.answer != prompt.other))


@dataclass(frozen=True)
class CircuitLocator:
    """Finds the circuit of a prompt: a `share` of the edges, scored by EAP-IG in `steps` steps.

    `batch` rows (steps, circuits) are run at a time; a model of billions of parameters may have
    memory for one or two. The seed chooses among counterparts.
    """

    opened: OpenModel
    wording: RequestEncoder
    counterparts: Counterparts
    share: float
    steps: int = STEPS
    batch: int = BATCH
    seed: int = 0

    name = "circuit"
    units = "edges"

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        counterparts: Counterparts,
        *,
        share: float,
        steps: int = STEPS,
        seed: int = 0,
    ) -> "CircuitLocator":
        """Open a model to find circuits in it."""
        wording = RequestEncoder(loaded.model, loaded.tokenizer)
        return cls(open_model(loaded), wording, counterparts, share, steps, seed=seed)

    @property
    def grid(self) -> EdgeGrid:
        return self.opened.grid

    def pair(self, prompt: FactPrompt) -> PromptPair | None:
        """Find the prompt's clean and corrupted tokens; None if no other subject is as long."""
        return find_pair(self.wording, prompt, self.counterparts, seed=self.seed)

    def strongest(self, pair: PromptPair) -> Edges:
        """Choose the edges kept for a pair, those that lead nowhere included."""
        scores = attribute(self.opened, pair, steps=self.steps, batch=self.batch)
        return strongest(scores, self.share)

    def locate(self, prompt: FactPrompt) -> Edges:
        """Locate the circuit of a prompt: the strongest edges, less those on no path to the logits.

        Raises:
            BadData: if there is no counterpart to corrupt the prompt with.
        """
        pair = self.pair(prompt)
        if pair is None:
            raise BadData(
                f"There is no other subject with as many tokens as {prompt.subject!r} and an "
                f"answer of its own for {prompt.text!r}; supply more counterparts, or leave the "
                "prompt out."
            )
        return prune(self.grid, self.strongest(pair))
