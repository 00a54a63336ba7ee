"""Facts as what is asked: prompts with their answers, how else they are worded, and files of them.

COUNTERFACT is read as it is distributed with ROME (Meng et al. 2022). Our own form has a fact on
each line, as `Fact.as_dict` writes it. A line of a file of rewrites, which a language
model or a person wrote, is `{"fact": "17", "prompts": ["...", "..."]}`; `fact` is the fact's name.
That a prompt means the same cannot be seen by a program; what can is checked here.

Our own facts are countries and their capitals, each in several wordings.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from caploc import tasks
from caploc.errors import BadData
from caploc.stats import JsonRecord


@dataclass(frozen=True)
class FactPrompt(JsonRecord):
    """A text, the answer that continues it, and a false answer to hold against it.

    `subject` is what the fact is about, as it stands in the text; None where it is not known, and
    then the prompt serves as a control only. `target` and `other` follow the text directly: where
    words are parted by a space, they begin with it. Raises BadData if the text or the target is
    empty, the subject is not in the text, or both answers are the same.
    """

    text: str
    subject: str | None
    target: str
    other: str | None = None

    def __post_init__(self) -> None:
        if not self.text or not self.target:
            raise BadData(
                f"The prompt {self.text!r} with the answer {self.target!r} lacks one of the two; "
                "give both."
            )
        if self.subject is not None and (not self.subject or self.subject not in self.text):
            raise BadData(
                f"The subject {self.subject!r} does not occur in the prompt {self.text!r}; give "
                "it as it is written there, or null."
            )
        if self.target == self.other:
            raise BadData(
                f"The prompt {self.text!r} has {self.target!r} both as its answer and as the false "
                "one; give another false answer, or null."
            )


@dataclass(frozen=True)
class Fact(JsonRecord):
    """One fact, asked in several ways.

    `rewrites` mean the same as `prompt`; `neighbours` ask for other facts that an edit must leave
    as they are, their `other` being the false answer of this fact. `relation` is None where it is
    not known. `name` is unique among the facts of a study.
    """

    name: str
    relation: str | None
    prompt: FactPrompt
    rewrites: tuple[FactPrompt, ...] = ()
    neighbours: tuple[FactPrompt, ...] = ()


def check_names(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Take facts, if there are any and no two have one name; raises BadData."""
    if not facts:
        raise BadData("There is no fact to study; give at least one.")
    names: set[str] = set()
    for fact in facts:
        if fact.name in names:
            raise BadData(f"Two facts are named {fact.name!r}; give each a name of its own.")
        names.add(fact.name)
    return tuple(facts)


@dataclass(frozen=True)
class Counterpart:
    """Another subject that the prompt could be about, and an answer, if can be the one `right`."""

    subject: str
    answer: str
    right: bool = True


Record = Mapping[str, Any]
OWN_FORM: TypeAdapter[Fact] = TypeAdapter(Fact)


def read_facts(path: Path) -> tuple[Fact, ...]:
    """Read the facts of a file: a list is COUNTERFACT's, else each line is a fact of our own form.

    Raises BadData, saying where.
    """
    if _text(path).lstrip().startswith("["):
        records, build = _read_list(path), _counterfact
    else:
        records, build = read_lines(path), _own
    return check_names([_build(build, record, where) for where, record in records])


def read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield where each record of a file with one a line stands, and the record; none is blank."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            yield _placed(line, f"{path}, line {number}")


def _read_list(path: Path) -> Iterator[tuple[str, Record]]:
    for number, record in enumerate(_parse(_text(path), str(path))):
        yield f"{path}, record {number}", record


def _text(path: Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read ({error}); give a file of facts.") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadData(f"{where} is not valid JSON ({error}); correct it.") from error


def _placed(line: str, where: str) -> tuple[str, Record]:
    record = _parse(line, where)
    if not isinstance(record, dict):
        raise BadData(f"{where} is no JSON object but {type(record).__name__}; write one.")
    return where, record


def _build(build: Callable[[Record], Fact], record: Any, where: str) -> Fact:
    """Build a fact of whatever a file holds at this place."""
    try:
        return build(record)
    except KeyError as error:
        raise BadData(f"{where} has no field {error}; its fields are {sorted(record)}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadData(
            f"{where} is not of the form expected ({place}: {first['msg'].lower()}); correct it."
        ) from None
    except (TypeError, AttributeError) as error:
        raise BadData(f"{where} is not of the form expected ({error}); correct it.") from None
    except BadData as error:
        raise BadData(f"{where}: {error}") from None


def _counterfact(record: Record) -> Fact:
    asked = record["requested_rewrite"]
    subject = asked["subject"]
    old, new = (" " + asked[name]["str"].strip() for name in ("target_true", "target_new"))

    def about(text: str) -> FactPrompt:
        return FactPrompt(text, subject if subject in text else None, old, new)

    return Fact(
        name=str(record["case_id"]),
        relation=asked.get("relation_id"),
        prompt=FactPrompt(asked["prompt"].replace("{}", subject), subject, old, new),
        rewrites=tuple(map(about, record.get("paraphrase_prompts", ()))),
        # other subjects with the same true answer
        neighbours=tuple(
            FactPrompt(text, None, old, new) for text in record.get("neighborhood_prompts", ())
        ),
    )


def _own(record: Record) -> Fact:
    def asked(prompt: Any) -> Any:
        return {"subject": None, **prompt} if isinstance(prompt, dict) else prompt

    fields = {"relation": None, **record, "name": str(record["name"])}
    fields["prompt"] = asked(record["prompt"])
    for name in ("rewrites", "neighbours"):
        fields[name] = list(map(asked, record.get(name, ())))
    return OWN_FORM.validate_python(fields)


def read_rewrites(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the prompts of each fact named in the file; lines of one fact add up. Raises BadData."""
    found: dict[str, tuple[str, ...]] = {}
    for where, record in read_lines(Path(path)):
        prompts = record.get("prompts")
        texts = isinstance(prompts, list) and all(isinstance(each, str) for each in prompts)
        if "fact" not in record or not texts or not prompts:
            raise BadData(
                f'{where} must be {{"fact": NAME, "prompts": [TEXT, ...]}} with one text or more.'
            )
        name = str(record["fact"])
        found[name] = found.get(name, ()) + tuple(prompts)
    return found


def with_rewrites(
    facts: Sequence[Fact],
    texts: Mapping[str, Sequence[str]],
    right: Callable[[FactPrompt], bool] = lambda _: True,
) -> tuple[tuple[Fact, ...], dict[str, int]]:
    """Give facts these rewrites in place of their own; count those given, and those kept.

    A rewrite is kept if the fact's subject is in it, if it differs from the prompt and from the
    rewrites before it by more than case and spacing, and if the model answers it `right`. A fact
    that the texts do not name is left without rewrites; texts of facts that are not there are not
    counted.
    """
    changed = []
    for fact in facts:
        kept: list[FactPrompt] = []
        seen = {_plain(fact.prompt.text)}
        for text in texts.get(fact.name, ()):
            about = bool(text.strip()) and (fact.prompt.subject or "") in text
            if about and _plain(text) not in seen:
                prompt = replace(fact.prompt, text=text)
                kept += [prompt] if right(prompt) else []
            seen.add(_plain(text))
        changed.append(replace(fact, rewrites=tuple(kept)))
    given = sum(len(texts.get(fact.name, ())) for fact in facts)
    return tuple(changed), {"given": given, "kept": sum(len(f.rewrites) for f in changed)}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


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

    A fact's false answer is another subject's; its neighbours are prompts about further subjects,
    which an edit must leave as they are.
    """
    rng, found = random.Random(seed), list[Fact]()
    for relation, wordings in WORDINGS.items():
        path = WORDS / f"{relation}.csv"
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
