"""Read facts from files: COUNTERFACT, zsRE, and our own lines of JSON.

    read_facts(path, "counterfact")

COUNTERFACT and zsRE are read as they are distributed with ROME (Meng et al. 2022). Our own form has
a fact on each line, as `Fact.as_dict` writes it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from caploc.errors import BadData
from caploc.files import read_text
from caploc.lookup import pick
from caploc.neurons.facts.facts import Fact, Prompt, check_names

Record = Mapping[str, Any]
LONGEST = 2**30  # bytes of a file of facts, or of texts
NATURAL_QUESTION = "nq question: "  # how zsRE's file marks its unrelated questions


def read_facts(path: Path, form: str = "lines") -> tuple[Fact, ...]:
    """The facts of a file; `form` is `counterfact`, `zsre` or `lines`.

    Raises:
        UnknownName: if there is no such form.
        BadData: if the file cannot be read, or a record lacks something; says which.
    """
    records, build = pick(FORMS, form, "form of facts")
    return check_names(tuple(_built(build, record, where) for where, record in records(Path(path))))


def read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Where each record of a file with one a line stands, and the record; blank lines are none.

    Raises:
        BadData: if the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _object(_parsed(line, where), where)


def _listed(path: Path) -> Iterator[tuple[str, Record]]:
    records = _parsed(_text(path), str(path))
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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is not valid JSON ({error}); correct it.") from error


def _object(record: Any, where: str) -> Record:
    if not isinstance(record, dict):
        raise BadData(f"{where} is no JSON object but {type(record).__name__}; write one.")
    return record


def _built(build: Callable[[Record, str], Fact], record: Record, where: str) -> Fact:
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
    subject, old, new = asked["subject"], _after(asked["target_true"]), _after(asked["target_new"])

    def about(text: str) -> Prompt:
        return Prompt(text, subject if subject in text else None, old, new)

    return Fact(
        name=str(record["case_id"]),
        relation=asked.get("relation_id"),
        prompt=Prompt(asked["prompt"].replace("{}", subject), subject, old, new),
        rewrites=tuple(about(text) for text in record.get("paraphrase_prompts", ())),
        # other subjects with the same true answer
        neighbours=tuple(
            Prompt(text, None, old, new) for text in record.get("neighborhood_prompts", ())
        ),
    )


def _after(answer: Record) -> str:
    return " " + answer["str"].strip()


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
        prompt=Prompt(record["src"], subject, target, other),
        rewrites=(Prompt(again, subject if subject in again else None, target, other),),
        neighbours=(Prompt(unrelated, None, " " + record["loc_ans"].strip(), other),)
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


def _prompt(record: Record) -> Prompt:
    for name in ("text", "target"):
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is {record[name]!r} and must be a text")
    return Prompt(record["text"], record.get("subject"), record["target"], record.get("other"))


FORMS: dict[str, tuple[Callable[[Path], Iterator[tuple[str, Record]]], Any]] = {
    "counterfact": (_listed, _counterfact),
    "zsre": (_listed, _zsre),
    "lines": (read_lines, _own),
}
