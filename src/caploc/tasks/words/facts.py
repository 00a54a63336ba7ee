"""Facts that pretrained models know: countries and their capitals, each in several wordings."""

import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from caploc.tasks.facts import Fact, FactPrompt

# The first wording is a fact's prompt, the others its rewrites; all of them end where the answer
# follows. Of the wordings tried, those that SmolLM2 and Gemma complete most often.
WORDINGS = {
    "capital": (
        "The capital city of {} is",
        "The capital of {} is",
        "The name of the capital of {} is",
        "The government of {} sits in its capital,",
        "What is the capital of {}? It is",
        "{}'s capital is",
    ),
    "country": (
        "The capital {} belongs to the country of",
        "The city of {} is the capital of",
        "{} is the capital city of",
        "{} is the capital of",
        "Where is {}? It is in",
    ),
}
NEIGHBOURS = 6
Pair = tuple[str, str]  # subject and answer


def word_facts(*, seed: int = 0) -> tuple[Fact, ...]:
    """Make the facts of both relations, capital of a country and country of a capital, shuffled.

    A fact's false answer is another subject's; its neighbours are prompts about further subjects,
    which an edit must leave as they are.
    """
    rng, found = random.Random(seed), list[Fact]()
    for relation, wordings in WORDINGS.items():
        path = Path(__file__).with_name(f"{relation}.csv")
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        pairs = list(zip(rows["question"], rows["answer"], strict=True))
        found += [_word(rng, relation, wordings, pair, pairs) for pair in pairs]
    rng.shuffle(found)
    return tuple(found)


def _word(
    rng: random.Random, relation: str, wordings: Sequence[str], pair: Pair, pairs: Sequence[Pair]
) -> Fact:
    """Put one fact into words; no answer beside its own begins with the same letter."""
    apart = [each for each in pairs if each[1][0] != pair[1][0] and each[0] != pair[0]]
    (_, other), *around = rng.sample(apart, NEIGHBOURS + 1)

    def say(wording: str, subject: str, answer: str) -> FactPrompt:
        return FactPrompt(wording.format(subject), subject, f" {answer}", f" {other}")

    prompt, *rewrites = (say(wording, *pair) for wording in wordings)
    neighbours = (say(wordings[0], *each) for each in around if each[1] != other)
    return Fact(
        f"{relation} of {pair[0]}", f"{relation} of", prompt, tuple(rewrites), tuple(neighbours)
    )
