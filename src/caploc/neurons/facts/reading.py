"""Read facts and rewrites from files: COUNTERFACT, zsRE, and our own lines of JSON.

    read_facts(path, "counterfact")

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

from caploc.errors import BadData
from caploc.files import read_text
from caploc.lookup import pick
from caploc.neurons.facts.prompts import Fact, FactPrompt, check_names
from caploc.stats.intervals import JsonRecord

Record = Mapping[str, Any]
LONGEST = 2**30  # bytes of a file of facts, or of texts
NATURAL_QUESTION = "nq question: "  # how zsRE's file marks its unrelated questions


def read_facts(path: Path, form: str = "lines") -> tuple[Fact, ...]:
    """Read the facts of a file; `form` is `counterfact`, `zsre` or `lines`."""
    records, build = pick(FORMS, form, "form of facts")
    return check_names([_build(build, record, where) for where, record in records(Path(path))])


def read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield where each record of a file with one a line stands, and the record; none is blank."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _object(_parse(line, where), where)


def _read_list(path: Path) -> Iterator[tuple[str, Record]]:
    records = _parse(_text(path), str(path))
    if not isinstance(records, list):
        raise BadData(f"{path} holds no list of records; give the file as it is distributed.")
    for number, record in enumerate(records):
        where = f"{path}, record {number}"
        yield where, _object(record, where)


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


def _object(record: Any, where: str) -> Record:
    if not isinstance(record, dict):
        raise BadData(f"{where} is no JSON object but {type(record).__name__}; write one.")
    return record


def _build(build: Callable[[Record, str], Fact], record: Record, where: str) -> Fact:
    try:
        return build(record, where)
    except KeyError as error:
        raise BadData(f"{where} has no field {error}; its fields are {sorted(record)}.") from None
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
        rewrites=tuple(about(text) for text in record.get("paraphrase_prompts", ())),
        # other subjects with the same true answer
        neighbours=tuple(
            FactPrompt(text, None, old, new) for text in record.get("neighborhood_prompts", ())
        ),
    )


def _zsre(record: Record, where: str) -> Fact:
    subject, target = record["subject"], " " + record["answers"][0].strip()
    # absent, or no other answer than the true one
    other = " " + record["alt"].strip() if record.get("alt") else None
    other = None if other == target else other
    again = record["rephrase"]
    unrelated = record["loc"].removeprefix(NATURAL_QUESTION).rstrip("?") + "?"
    return Fact(
        # the file has neither names nor relations: a record's place, and its question's wording
        name=where.rpartition(" ")[2],
        relation=record["src"].replace(subject, "{}"),
        prompt=FactPrompt(record["src"], subject, target, other),
        rewrites=(FactPrompt(again, subject if subject in again else None, target, other),),
        neighbours=(FactPrompt(unrelated, None, " " + record["loc_ans"].strip(), other),)
        if record["loc_ans"].strip() != (other or "").strip()
        else (),
    )


def _own(record: Record, where: str) -> Fact:
    return Fact(
        name=str(record["name"]),
        relation=record.get("relation"),
        prompt=_prompt(record["prompt"]),
        rewrites=tuple(_prompt(each) for each in record.get("rewrites", ())),
        neighbours=tuple(_prompt(each) for each in record.get("neighbours", ())),
    )


def _prompt(record: Record) -> FactPrompt:
    for name in ("text", "target"):
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is {record[name]!r} and must be a text")
    return FactPrompt(record["text"], record.get("subject"), record["target"], record.get("other"))


FORMS: dict[str, tuple[Callable[[Path], Iterator[tuple[str, Record]]], Any]] = {
    "counterfact": (_read_list, _counterfact),
    "zsre": (_read_list, _zsre),
    "lines": (read_lines, _own),
}


@dataclass(frozen=True)
class Filtered(JsonRecord):
    """How many rewrites a file gave and why some were dropped; `share_kept` is None without any.

    `strangers` are facts named in the file that the study does not have; their prompts do not
    count as given.
    """

    given: int
    kept: int
    without_subject: int
    unchanged: int
    repeated: int
    answered_wrongly: int
    facts: int
    facts_without: int
    strangers: int

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {"share_kept": self.kept / self.given if self.given else None}


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
    right: Callable[[FactPrompt], bool] | None = None,
) -> tuple[tuple[Fact, ...], Filtered]:
    """Give facts these rewrites in place of their own, and count what became of each rewrite.

    A rewrite is kept if the fact's subject is in it, if it differs from the prompt and from the
    rewrites before it by more than case and spacing, and, with `right`, if the model answers it
    rightly. A fact that the texts do not name is left without rewrites.
    """
    dropped = dict.fromkeys(("without_subject", "unchanged", "repeated", "answered_wrongly"), 0)
    changed = []
    for fact in facts:
        kept: list[FactPrompt] = []
        before = {_plain(fact.prompt.text): "unchanged"}
        for text in texts.get(fact.name, ()):
            reason = before.get(_plain(text))
            if (fact.prompt.subject or "") not in text or not text.strip():
                reason = "without_subject"
            elif not reason and right and not right(replace(fact.prompt, text=text)):
                reason = "answered_wrongly"
            before.setdefault(_plain(text), "repeated")
            if reason:
                dropped[reason] += 1
            else:
                kept.append(replace(fact.prompt, text=text))
        changed.append(replace(fact, rewrites=tuple(kept)))
    names = {fact.name for fact in facts}
    counts = Filtered(
        given=sum(len(texts[name]) for name in texts if name in names),
        kept=sum(len(fact.rewrites) for fact in changed),
        facts=len(changed),
        facts_without=sum(not fact.rewrites for fact in changed),
        strangers=len(set(texts) - names),
        **dropped,
    )
    return tuple(changed), counts


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
