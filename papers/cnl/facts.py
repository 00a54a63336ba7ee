"""Facts as what is asked: prompts with their answers, and how else they are worded.

A file of facts is COUNTERFACT's list, as ROME (Meng et al. 2022) distributes it, or has a fact of
our own form on each line, with the fields of `Fact`. That a rewrite means the same no program sees.

`words/facts` are countries and their capitals, each in several wordings.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from caploc import tasks
from caploc.errors import BadData
from caploc.neurons.stats import JsonRecord


@dataclass(frozen=True)
class FactPrompt(JsonRecord):
    """A text, the answer that continues it, and a false answer to hold against it.

    `subject` is what the fact is about, as it stands in the text; None where it is not known.
    `target` and `other` follow the text directly: where words are parted by a space, they begin
    with it.
    """

    text: str
    subject: str | None
    target: str
    other: str | None = None

    def __post_init__(self) -> None:
        named = self.subject is None or (self.subject and self.subject in self.text)
        if not (self.text and self.target and named and self.target != self.other):
            raise ValueError(
                f"{self} cannot be asked; a prompt needs a text that its subject occurs in, an "
                "answer, and another false one or null."
            )


@dataclass(frozen=True)
class Fact(JsonRecord):
    """One fact, asked in several ways.

    `rewrites` mean the same as `prompt`; `neighbours` ask for other facts that an edit must leave
    as they are, their `other` being the false answer of this fact. `relation` is None where it is
    not known. `name` is unique among the facts of a file.
    """

    name: str
    relation: str | None
    prompt: FactPrompt
    rewrites: tuple[FactPrompt, ...] = ()
    neighbours: tuple[FactPrompt, ...] = ()


OWN_FORM: TypeAdapter[Fact] = TypeAdapter(Fact)


def read_facts(name: str, seed: int = 0) -> tuple[Fact, ...]:
    """Read `words/facts`, shuffled by the seed, or a file; raises BadData if it holds no facts."""
    if name == "words/facts":
        return word_facts(seed=seed)
    try:
        text = Path(name).read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            return tuple(map(from_counterfact, json.loads(text)))
        return tuple(OWN_FORM.validate_json(line) for line in text.splitlines() if line.strip())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"{name} cannot be read as facts ({error!r}); docs/cnl.md has one.") from None


def from_counterfact(record: Mapping[str, Any]) -> Fact:
    """Take a record of COUNTERFACT; its neighbours are other subjects with the same true answer."""
    asked = record["requested_rewrite"]
    subject = asked["subject"]
    old, new = (" " + asked[name]["str"].strip() for name in ("target_true", "target_new"))

    def about(text: str) -> FactPrompt:
        return FactPrompt(text, subject if subject in text else None, old, new)

    return Fact(
        str(record["case_id"]),
        asked.get("relation_id"),
        about(asked["prompt"].replace("{}", subject)),
        tuple(map(about, record.get("paraphrase_prompts", ()))),
        tuple(FactPrompt(text, None, old, new) for text in record.get("neighborhood_prompts", ())),
    )


Pair = tuple[str, str]  # subject and answer
WORDS = Path(tasks.__file__).parent / "words"  # the tables of the tasks on words
NEIGHBOURS = 6
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


def word_facts(*, seed: int = 0) -> tuple[Fact, ...]:
    """Make the facts of both relations, capital of a country and country of a capital, shuffled.

    A fact's false answer is another subject's; its neighbours are prompts about further subjects.
    No answer beside its own begins with the same letter.
    """
    rng, found = random.Random(seed), list[Fact]()
    for relation, wordings in WORDINGS.items():
        rows = pd.read_csv(WORDS / f"{relation}.csv", dtype=str, keep_default_na=False)
        pairs = list(zip(rows["question"], rows["answer"], strict=True))
        for pair in pairs:
            apart = [each for each in pairs if each[1][0] != pair[1][0] and each[0] != pair[0]]
            (_, other), *around = rng.sample(apart, NEIGHBOURS + 1)

            def say(wording: str, subject: str, answer: str, other: str = other) -> FactPrompt:
                return FactPrompt(wording.format(subject), subject, f" {answer}", f" {other}")

            prompt, *rewrites = (say(wording, *pair) for wording in wordings)
            spared = [say(wordings[0], *each) for each in around if each[1] != other]
            name = f"{relation} of"
            found.append(Fact(f"{name} {pair[0]}", name, prompt, tuple(rewrites), tuple(spared)))
    rng.shuffle(found)
    return tuple(found)
