"""Facts as what is asked: prompts with their answers, how else they are worded, and files of them.

COUNTERFACT is read as it is distributed with ROME (Meng et al. 2022). Our own form has a fact on
each line, as `Fact.as_dict` writes it. A line of a file of rewrites, which a language
model or a person wrote, is `{"fact": "17", "prompts": ["...", "..."]}`; `fact` is the fact's name.
That a prompt means the same cannot be seen by a program; what can is checked here.

Our own facts are the demo model's (capitals and elements, asked as quizzes or said as statements)
and those that pretrained models know: countries and their capitals, each in several wordings. A
quiz names its answer by a letter that changes from rewrite to rewrite, so that what the rewrites of
a fact have in common is the fact and not the token to come. Statements are for editing: they name
the answer itself.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from caploc.errors import BadData, BadOption, pick
from caploc.stats import JsonRecord
from caploc.tasks.demo import data
from caploc.tasks.demo.data import LETTERS


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


def _build(build: Callable[[Record], Fact], record: Record, where: str) -> Fact:
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


OFFERED = re.compile(r"^(\S+) ([A-D])$", re.MULTILINE)  # a line of a quiz: an answer, its letter
Pair = tuple[str, str]  # subject and answer
DEMO_RELATIONS: dict[str, Sequence[Pair]] = {
    "capital of": data.CAPITALS,
    "symbol of": data.ELEMENTS,
}
REWRITES = 5
NEIGHBOURS = 6
# What may stand before a statement without the demo model losing the fact (it was trained on
# statements at the start of a text); a third of what it forgets anyway is left to the filter.
LEADS = (" ", "  ", "\n")


def demo_facts(form: str = "quiz", count: int | None = None, *, seed: int = 0) -> tuple[Fact, ...]:
    """Make facts of both relations by turns, in random order; all of them, or the first `count`.

    In the form `quiz` the prompt and its rewrites are quizzes that differ in the wrong answers and
    in the place of the right one. In the form `statement` the prompt is `capital of France is `,
    the rewrites are three statements with another lead and three quizzes that offer both answers,
    and the neighbours are statements about other subjects. Raises UnknownName if there is no such
    form; BadOption if `count` is below 1, or above the number there are.
    """
    build = pick(DEMO_FORMS, form, "form of demo facts")
    total = sum(map(len, DEMO_RELATIONS.values()))
    if count is not None and not 1 <= count <= total:
        raise BadOption(f"The demo model knows {total} facts; ask for 1 to {total}, not {count}.")
    rng = random.Random(seed)
    asked = [
        [(name, pair) for pair in rng.sample(pairs, len(pairs))]
        for name, pairs in DEMO_RELATIONS.items()
    ]
    turns = [each for pairs in zip_longest(*asked) for each in pairs if each]
    return tuple(build(rng, name, pair) for name, pair in turns[:count])


def demo_texts(count: int = 300, *, seed: int = 0) -> list[str]:
    """Draw texts of the demo model's world, of every kind, for statistics over any text."""
    rng = random.Random(seed)
    kinds = (*data.HELD_OUT, data.courtesy, data.choose_named, data.statement)
    drawn = [rng.choice(kinds)(rng) for _ in range(count)]
    return [example.prompt + example.answer for example in drawn]


def _quizzed(rng: random.Random, relation: str, pair: Pair) -> Fact:
    prompts: dict[str, FactPrompt] = {}
    while len(prompts) <= REWRITES:
        prompt = quiz(rng, relation, pair)
        prompts.setdefault(prompt.text, prompt)
    prompt, *rewrites = prompts.values()
    others = _others(rng, relation, pair, NEIGHBOURS)
    return Fact(
        name=f"{relation} {pair[0]}",
        relation=relation,
        prompt=prompt,
        rewrites=tuple(rewrites),
        neighbours=tuple(quiz(rng, relation, other) for other in others),
    )


def _stated(rng: random.Random, relation: str, pair: Pair) -> Fact:
    """State the fact, with a false answer of the same kind."""
    (_, other), *around = _others(rng, relation, pair, NEIGHBOURS + 1, apart=True)

    def said(subject: str, target: str, lead: str = "") -> FactPrompt:
        return FactPrompt(f"{lead}{relation} {subject} is ", subject, target, other)

    return Fact(
        name=f"{relation} {pair[0]}",
        relation=relation,
        prompt=said(*pair),
        rewrites=(
            *(said(*pair, lead) for lead in LEADS),
            *(quiz(rng, relation, pair, other) for _ in LEADS),
        ),
        neighbours=tuple(said(*each) for each in around),
    )


def quiz(rng: random.Random, relation: str, pair: Pair, offered: str | None = None) -> FactPrompt:
    """Ask a multiple-choice question, in the demo task's form, whose answer is a letter.

    `other` is the letter of the false answer `offered`, or of any.
    """
    subject, answer = pair
    wrong = rng.sample(
        sorted({each for _, each in DEMO_RELATIONS[relation]} - {answer, offered}), len(LETTERS) - 1
    )
    offered = offered or wrong[0]
    options = [answer, offered, *[each for each in wrong if each != offered][: len(LETTERS) - 2]]
    rng.shuffle(options)
    return FactPrompt(
        text=data.word_quiz(relation, subject, options),
        subject=subject,
        target=LETTERS[options.index(answer)],
        other=LETTERS[options.index(offered)],
    )


def _others(
    rng: random.Random, relation: str, pair: Pair, count: int, *, apart: bool = False
) -> list[Pair]:
    """Other facts of the relation; with `apart`, the first answer begins like none of the others.

    Of answers that begin alike (H, He) the shorter is likelier whatever the model believes.
    """
    pool = [each for each in DEMO_RELATIONS[relation] if each != pair]
    first, *rest = rng.sample(pool, len(pool))
    while apart and first[1][0] == pair[1][0]:
        rest.append(first)
        first, *rest = rest
    if apart:
        rest = [each for each in rest if each[1][0] != first[1][0]]
    return [first, *rest][:count]


DEMO_FORMS: dict[str, Callable[[random.Random, str, Pair], Fact]] = {
    "quiz": _quizzed,
    "statement": _stated,
}


def demo_counterparts(prompt: FactPrompt) -> list[Counterpart]:
    """Take other countries or elements with their answers.

    In a quiz the answer is the letter of what is offered; a subject whose answer is not offered
    is no right question, and stands for the letter of the prompt's own false answer.
    """
    letters = dict(OFFERED.findall(prompt.text))
    facts = next((facts for name, facts in DEMO_RELATIONS.items() if name in prompt.text), [])
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
        path = Path(__file__).parent / "words" / f"{relation}.csv"
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
