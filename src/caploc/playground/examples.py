"""The examples of a finished run: found by what became of them, and each of them whole."""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from caploc.contents import Answers, read_file
from caploc.errors import BadOption, CaplocError
from caploc.folder import ANSWERS, RESULT, rows_file
from caploc.playground.runs import Stamp, stamp_of
from caploc.report.answers import Status, status_of
from caploc.result import AnswerPair, Result, number
from caploc.store import Question, Row, pack, reading
from caploc.store.rows import FIELDS, as_row, stored_questions
from caploc.tasks.task import Generated, Scored, responses_from_json
from caploc.wording import ScoreKind, Unit, called, clipped, inline, outcome_unit, visible

AT_ONCE = 50  # examples of a page
KEPT = 4  # runs whose answers stay in memory
MOST_PARTS = 20_000  # heads up to which each is looked up alone; more than any model has
SHOWN_SHIFTS = 12  # heads of a first look, those that change an example most
CELL, WHOLE = 160, 200_000  # characters of a text in the list, and of one shown whole
CHANGED = {Status.LOST, Status.GAINED, Status.REWORDED}
# What a list can be narrowed to, by its name in addresses.
FILTERS = ("all", "changed", "lost", "gained", "reworded", "unchanged", "right", "wrong")


@dataclass(frozen=True)
class RunExamples:
    """A run's result and the answers to its examples, both as files have them."""

    result: Result
    answers: Sequence[AnswerPair]

    @cached_property
    def unit(self) -> Unit:
        return outcome_unit(self.result)

    @cached_property
    def tags(self) -> list[set[str]]:
        """The filters that let each example through."""
        return [self.tag(answer) for answer in self.answers]

    def tag(self, answer: AnswerPair) -> set[str]:
        """Return the filters that let an example through; right and wrong are of the intact one."""
        status = status_of(answer, self.unit)
        found = {"all", status.value}
        if status in CHANGED:
            found.add("changed")
        if self.unit.kind is ScoreKind.SHARE and answer.intact_outcome in (0, 1):
            found.add("right" if answer.intact_outcome == 1 else "wrong")
        return found

    @cached_property
    def texts(self) -> list[str]:
        """What is searched: prompt and answers, in lower case."""
        return [
            "\n".join(text or "" for text in (a.prompt, a.gold, a.intact, a.knocked_out)).lower()
            for a in self.answers
        ]

    def page(self, only: str, text: str, first: int) -> dict[str, Any]:
        """Return some examples from the `first` on, of those that pass a filter and hold a text.

        Raises BadOption if there is no such filter.
        """
        if only not in FILTERS:
            raise BadOption(f"There is no filter {only[:40]!r}; there are {', '.join(FILTERS)}.")
        counts = Counter(tag for tags in self.tags for tag in tags)
        wanted = text.lower()
        places = [
            place
            for place, tags in enumerate(self.tags)
            if only in tags and (not wanted or wanted in self.texts[place])
        ]
        return {
            "counts": {name: counts[name] for name in FILTERS},
            "total": len(places),
            "first": first,
            "at_once": AT_ONCE,
            "rows": [self.row(place) for place in places[first : first + AT_ONCE]],
        }

    def row(self, place: int) -> dict[str, Any]:
        answer = self.answers[place]
        status = status_of(answer, self.unit)

        def short(text: str | None) -> str | None:
            return None if text is None else visible(text.strip()[:CELL]).replace("\n", " ↵ ")

        # of a prompt with other examples before it, the last one
        prompt = answer.prompt and answer.prompt.strip().rpartition("\n\n")[2][-CELL:]
        return {
            "place": place,
            "example": answer.example,
            "status": status.value,
            "prompt": short(prompt),
            "gold": short(answer.gold),
            "intact": short(answer.intact),
            "knocked_out": short(answer.knocked_out),
            "kind": inline(answer.kind or "")[:CELL],
        }

    def whole(self, place: int, folder: Path) -> dict[str, Any]:
        """Return one example: the whole prompt, both answers and where they differ, the heads.

        Raises BadOption if there is no such example.
        """
        if not 0 <= place < len(self.answers):
            raise BadOption(f"The run has {len(self.answers):,} examples; there is no {place}.")
        answer = self.answers[place]
        texts = answer.prompt, answer.gold, answer.intact, answer.knocked_out
        prompt, *said = (None if each is None else clipped(visible(each), WHOLE) for each in texts)
        gold, intact, knocked_out = (each and each.replace("\n", "↵\n") for each in said)
        outcomes = answer.intact_outcome, answer.knocked_out_outcome
        return {
            **self.row(place),
            "prompt": prompt,
            "gold": gold,
            "intact": intact,
            "knocked_out": knocked_out,
            "outcomes": " → ".join("–" if each is None else f"{each:.3g}" for each in outcomes),
            "task": self.result.task.name,
            "title": called(self.result.task.name),
            "top": self.result.top,
            "of": len(self.answers),
            "stored": stored_of(folder, self.result, answer.example),
        }


def examples_of(folder: Path) -> RunExamples:
    """Return a run's examples; raises UserError if it has none, or they cannot be read."""
    return read_examples(folder, stamp_of(folder, RESULT, ANSWERS))


@lru_cache(maxsize=KEPT)
def read_examples(folder: Path, stamp: Stamp) -> RunExamples:
    """Read a run's examples, once for each stamp of its files."""
    there = (folder / ANSWERS).is_file()
    answers = read_file(folder / ANSWERS, Answers).root if there else []
    return RunExamples(read_file(folder / RESULT, Result), answers)


def stored_of(folder: Path, result: Result, example: int | None) -> dict[str, Any]:
    """Say what the run's rows tell of one example: probabilities, and each head alone.

    Of rows that cannot be read, why.
    """
    path = rows_file(folder)
    if example is None or not path.is_file():
        return {}
    try:
        with reading(path) as database:
            return ExampleRows(database, result, example).describe()
    except CaplocError as error:
        return {"failed": inline(error)[:500]}


@dataclass(frozen=True)
class ExampleRows:
    """The stored rows of one example, found by their key: no other row is read."""

    database: sqlite3.Connection
    result: Result
    example: int

    def describe(self) -> dict[str, Any]:
        """Return what the page shows: choices as scored, and each head alone, by outcome."""
        grid = self.result.grid.grid()
        nothing, whole = (pack(grid.cut_mask(grid.mask(e))) for e in ((), self.result.top))
        found: dict[str, Any] = {"choices": None, "alone": []}
        for place, question in stored_questions(self.database).items():
            if not self.is_own(question):
                continue
            intact = self.row(place, nothing)
            if intact is None:
                continue
            if question.outcome == "metric":
                cut = self.row(place, whole, intact.example)
                found["choices"] = found["choices"] or compare_choices(intact, cut)
            alone = self.alone(place, intact) if grid.size <= MOST_PARTS else {}
            if alone:
                found["alone"].append(describe_alone(question, intact, alone))
        return found

    def is_own(self, question: Question) -> bool:
        """Tell whether the run asked a question on its task; studies share their rows."""
        model, mode = self.result.model, self.result.method.mode
        return (
            question.model == model.fingerprint
            and model.dtype in (None, question.dtype)
            and question.task == self.result.task.name
            and question.mode.split()[0] == mode
            and not question.repeat
        )

    def row(self, question: int, mask: bytes, key: str | None = None) -> Row | None:
        """Return the example's row under a mask; without its key it is sought by its number."""
        which, value = ("number", self.example) if key is None else ("example", key)
        found = self.database.execute(
            f"SELECT {FIELDS} FROM rows WHERE question = ? AND mask = ? AND {which} = ? LIMIT 1",
            (question, mask, value),
        ).fetchone()
        return None if found is None else as_row(found)

    def alone(self, question: int, intact: Row) -> dict[str, Row]:
        """Return the example's row without each head that was knocked out alone."""
        grid = self.result.grid.grid()
        found = {}
        for component in grid.components:
            mask = grid.cut_mask(grid.mask([component]))
            row = self.row(question, pack(mask), intact.example)
            if row is not None:
                found[str(component)] = row
        return found


def compare_choices(intact: Row, cut: Row | None) -> list[list[float | None]] | None:
    """Return each choice's log-probability on both sides; None where a text was written."""
    sides = [
        [each.logprob for each in responses_from_json(row.responses) if isinstance(each, Scored)]
        for row in (intact, cut)
        if row is not None
    ]
    if not sides[0]:
        return None
    sides += [[float("nan")] * len(sides[0])] * (2 - len(sides))
    return [[number(before), number(after)] for before, after in zip(*sides, strict=True)]


def describe_alone(question: Question, intact: Row, alone: Mapping[str, Row]) -> dict[str, Any]:
    """Say which heads change an example: its answer, or how likely the right one is."""
    before = said_in(intact)
    heads = []
    for head, row in alone.items():
        after = said_in(row)
        change = row.outcome - intact.outcome
        if question.outcome == "metric" and row.outcome == intact.outcome and after == before:
            continue
        heads.append(
            {
                "head": head,
                "outcome": number(row.outcome),
                "change": number(change),
                "said": None if after is None else inline(clipped(visible(after), CELL)),
            }
        )
    heads.sort(key=lambda each: -abs(each["change"] or 0))  # type: ignore[arg-type]  # numbers
    shown = heads if question.outcome == "metric" else heads[:SHOWN_SHIFTS]
    return {
        "kind": inline(question.outcome),
        "outcome": number(intact.outcome),
        "measured": len(alone),
        "changed": len(heads),
        "heads": shown,
    }


def said_in(row: Row) -> str | None:
    """Return the text that a model wrote in a row, None where it wrote none."""
    texts = [
        each.text for each in responses_from_json(row.responses) if isinstance(each, Generated)
    ]
    return "\n".join(texts) if texts else None
