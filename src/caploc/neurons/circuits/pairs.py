"""Clean and corrupted prompts: a prompt, and the same with another subject of as many tokens.

Where another subject comes from is a function from a prompt to counterparts, each a subject and the
answer that is right for it: `others_of(prompts)` for facts of any source, `demo_counterparts` for
the demo model's.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile

import numpy as np

from caploc.engine.encoding import RequestEncoder
from caploc.neurons.circuits.recording import Pair
from caploc.neurons.facts.facts import Prompt
from caploc.tasks.demo.data import CAPITALS, ELEMENTS
from caploc.tasks.requests import LogLikelihood

OFFERED = re.compile(r"^(\S+) ([A-D])$", re.MULTILINE)  # a line of a quiz: an answer, its letter
DEMO = {"capital of": CAPITALS, "symbol of": ELEMENTS}


@dataclass(frozen=True)
class Counterpart:
    """Another subject that the prompt could be about, and an answer, if can be the one `right`."""

    subject: str
    answer: str
    right: bool = True


Counterparts = Callable[[Prompt], Sequence[Counterpart]]


def others_of(prompts: Iterable[Prompt]) -> Counterparts:
    """Counterparts from other prompts of the same words but for the subject."""
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for prompt in prompts:
        if prompt.subject:
            known.setdefault(_frame(prompt), {})[prompt.subject] = prompt.target

    def counterparts(prompt: Prompt) -> list[Counterpart]:
        if not prompt.subject:
            return []
        alike = known.get(_frame(prompt), {})
        return [Counterpart(*each) for each in alike.items() if each[0] != prompt.subject]

    return counterparts


def _frame(prompt: Prompt) -> tuple[str, ...]:
    return tuple(prompt.text.split(prompt.subject or "", 1))


def demo_counterparts(prompt: Prompt) -> list[Counterpart]:
    """Other countries or elements with their answers.

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
    wording: RequestEncoder, prompt: Prompt, counterparts: Counterparts, *, seed: int = 0
) -> Pair | None:
    """The prompt beside itself with another subject of as many tokens; None if there is no such.

    The two are asked for the first tokens in which their answers differ; tokens that both answers
    begin with join the prompts. Counterparts with right answers go first, of these one whose answer
    is the prompt's own false one; else the order depends on the seed and the subject alone.
    """
    if not prompt.subject:
        return None
    for counterpart in _ordered(prompt, counterparts(prompt), seed):
        text = prompt.text.replace(prompt.subject, counterpart.subject, 1)
        clean, gold = wording.pair(LogLikelihood(prompt.text, prompt.target))
        corrupted, other = wording.pair(LogLikelihood(text, counterpart.answer))
        pairs = zip(gold, other, strict=False)
        alike = sum(1 for _ in takewhile(lambda both: both[0] == both[1], pairs))
        if (
            len(clean) != len(corrupted)
            or clean == corrupted
            or alike >= min(len(gold), len(other))
        ):
            continue
        return Pair(
            clean=(*clean, *gold[:alike]),
            corrupted=(*corrupted, *other[:alike]),
            gold=gold[alike],
            other=other[alike],
        )
    return None


def _ordered(prompt: Prompt, found: Sequence[Counterpart], seed: int) -> list[Counterpart]:
    digest = blake2b(str(prompt.subject).encode(), digest_size=4).digest()
    order = np.random.default_rng([seed, int.from_bytes(digest, "big")]).permutation(len(found))
    drawn = [found[place] for place in order]
    return sorted(drawn, key=lambda each: (not each.right, each.answer != prompt.other))
