"""Facts as what is asked: prompts with their answers, how else they are worded, and files of them.

COUNTERFACT and zsRE are read as they are distributed with ROME (Meng et al. 2022). Our own form has
a fact on each line, as `Fact.as_dict` writes it. A line of a file of rewrites, which a language
model or a person wrote, is `{"fact": "17", "prompts": ["...", "..."]}`; `fact` is the fact's name.
That a prompt means the same cannot be seen by a program; what can is checked here.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from caploc.errors import BadData
from caploc.files import read_text
from caploc.lookup import pick
from caploc.stats.intervals import JsonRecord


@dataclass(frozen=True)
class FactPrompt(JsonRecord):
    """A text, the answer that continues it, and a false answer to hold against it.

    `subject` is what the fact is about, as it stands in the text; None where it is not known, and
    then the prompt serves as a control only. `target` and `other` follow the text directly: where
    words are parted by a space, they begin with it.

    Raises:
        BadData: if the text or the target is empty, the subject is not in the text, or both answers
            are the same.
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
    """Take facts, if there are any and no two have one name.

    Raises:
        BadData: if there are none, or a name comes twice.
    """
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
LONGEST = 2**30  # bytes of a file of facts, or of texts
NATURAL_QUESTION = "nq question: "  # how zsRE's file marks its unrelated questions
OWN_FORM: TypeAdapter[Fact] = TypeAdapter(Fact)


def read_facts(path: Path, form: str = "lines") -> tuple[Fact, ...]:
    """Read the facts of a file; `form` is `counterfact`, `zsre` or `lines`."""
    records, build = pick(FORMS, form, "form of facts")
    return check_names([_build(build, record, where) for where, record in records(Path(path))])


def read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield where each record of a file with one a line stands, and the record; none is blank."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            yield _placed(_parse(line, where := f"{path}, line {number}"), where)


def _read_list(path: Path) -> Iterator[tuple[str, Record]]:
    records = _parse(_text(path), str(path))
    if not isinstance(records, list):
        raise BadData(f"{path} holds no list of records; give the file as it is distributed.")
    for number, record in enumerate(records):
        yield _placed(record, f"{path}, record {number}")


def _text(path: Path) -> str:
    try:
        return read_text(path, LONGEST, follow=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read ({error}); give a file of facts.") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is not valid JSON ({error}); correct it.") from error


def _placed(record: Any, where: str) -> tuple[str, Record]:
    if not isinstance(record, dict):
        raise BadData(f"{where} is no JSON object but {type(record).__name__}; write one.")
    return where, record


def _build(build: Callable[[Record, str], Fact], record: Record, where: str) -> Fact:
    try:
        return build(record, where)
    except KeyError as error:
        raise BadData(f"{where} has no field {error}; its fields are {sorted(record)}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadData(
            f"{where} is not of the form expected ({place}: {first['msg'].lower()}); correct it."
        ) from None
    except (TypeError, AttributeError, IndexError) as error:
        raise BadData(f"{where} is not of the form expected ({error}); correct it.") from None
    except BadData as error:
        raise BadData(f"{where}: {error}") from None


def _counterfact(record: Record, where: str) -> Fact:
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


def _zsre(record: Record, where: str) -> Fact:
    subject, target = record["subject"], " " + record["answers"][0].strip()
    other = " " + (record.get("alt") or "").strip()
    wrong = other if other.strip() and other != target else None
    again, spared = record["rephrase"], " " + record["loc_ans"].strip()
    unrelated = record["loc"].removeprefix(NATURAL_QUESTION).rstrip("?") + "?"
    return Fact(
        # the file has neither names nor relations: a record's place, and its question's wording
        name=where.rpartition(" ")[2],
        relation=record["src"].replace(subject, "{}"),
        prompt=FactPrompt(record["src"], subject, target, wrong),
        rewrites=(FactPrompt(again, subject if subject in again else None, target, wrong),),
        neighbours=(FactPrompt(unrelated, None, spared, wrong),) if spared != wrong else (),
    )


def _own(record: Record, where: str) -> Fact:
    def asked(prompt: Any) -> Any:
        return {"subject": None, **prompt} if isinstance(prompt, dict) else prompt

    fields = {"relation": None, **record, "name": str(record["name"])}
    fields["prompt"] = asked(record["prompt"])
    for name in ("rewrites", "neighbours"):
        fields[name] = list(map(asked, record.get(name, ())))
    return OWN_FORM.validate_python(fields)


FORMS: dict[str, tuple[Callable[[Path], Iterator[tuple[str, Record]]], Any]] = {
    "counterfact": (_read_list, _counterfact),
    "zsre": (_read_list, _zsre),
    "lines": (read_lines, _own),
}


def read_rewrites(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the prompts of each fact named in the file; lines of one fact add up.

    Raises:
        BadData: if the file cannot be read, or a line is not of the form; says which.
    """
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
    """Give facts these rewrites in place of their own, and count what became of each rewrite.

    A rewrite is kept if the fact's subject is in it, if it differs from the prompt and from the
    rewrites before it by more than case and spacing, and if the model answers it `right`. A fact
    that the texts do not name is left without rewrites; `strangers` are names that no fact has,
    whose prompts are not counted.
    """
    counts = dict.fromkeys(
        ("given", "kept", "without_subject", "unchanged", "repeated", "answered_wrongly"), 0
    )
    changed = []
    for fact in facts:
        kept: list[FactPrompt] = []
        before = {_plain(fact.prompt.text): "unchanged"}
        for text in texts.get(fact.name, ()):
            reason = before.get(_plain(text), "kept")
            if (fact.prompt.subject or "") not in text or not text.strip():
                reason = "without_subject"
            elif reason == "kept" and not right(replace(fact.prompt, text=text)):
                reason = "answered_wrongly"
            before.setdefault(_plain(text), "repeated")
            counts["given"] += 1
            counts[reason] += 1
            if reason == "kept":
                kept.append(replace(fact.prompt, text=text))
        changed.append(replace(fact, rewrites=tuple(kept)))
    strangers = set(texts) - {fact.name for fact in facts}
    return tuple(changed), counts | {"strangers": len(strangers)}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
