"""The examples of a finished run: found by what became of them, and each of them whole."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from caploc.contents import Answers, read_file
from caploc.errors import BadOption
from caploc.folder import ANSWERS, RESULT
from caploc.playground.runs import Stamp, stamp_of
from caploc.result import AnswerPair, Result, Status
from caploc.wording import Unit, called, clipped, inline, outcome_unit, visible

AT_ONCE = 50  # examples of a page
KEPT = 4  # runs whose answers stay in memory
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
        status = answer.status
        found = {"all", status.value}
        if status in CHANGED:
            found.add("changed")
        if self.unit.sign == "%" and answer.intact_outcome in (0, 1):
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

        def short(text: str | None) -> str | None:
            return None if text is None else visible(text.strip()[:CELL]).replace("\n", " ↵ ")

        # of a prompt with other examples before it, the last one
        prompt = answer.prompt and answer.prompt.strip().rpartition("\n\n")[2][-CELL:]
        return {
            "place": place,
            "example": answer.example,
            "status": answer.status.value,
            "prompt": short(prompt),
            "gold": short(answer.gold),
            "intact": short(answer.intact),
            "knocked_out": short(answer.knocked_out),
            "kind": inline(answer.kind or "")[:CELL],
        }

    def whole(self, place: int) -> dict[str, Any]:
        """Return one example: the whole prompt, both answers and the heads.

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
