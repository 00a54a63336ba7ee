"""Examples that cannot be asked or judged as they stand, found before the first row."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caploc.errors import BadData
from caploc.tasks.task import LogLikelihood, Request, Task, prompt_of

NAMED = 5  # defects that a message names
EXACT = {"acc", "exact_match"}  # metrics by which one prompt has one right answer


@dataclass(frozen=True)
class Defect:
    """An example's number, counted from 0, and what is wrong with it."""

    example: int
    why: str


def find_defects(
    task: Task, examples: Sequence[int], misfit: Callable[[Request], str | None]
) -> list[Defect]:
    """Find what is wrong with any of these examples; `misfit` says why a model cannot read one."""
    found: dict[int, str] = {}
    answers: dict[str, dict[str, int]] = defaultdict(dict)
    for example in examples:
        requests = task.requests(example)
        empty = [r for r in requests if isinstance(r, LogLikelihood) and not r.continuation]
        if empty:
            found[example] = "an empty choice" if len(requests) > 1 else "an empty answer"
        elif why := task.lacks(example) or next(filter(None, map(misfit, requests)), None):
            found[example] = why
        elif len(requests) == 1 and task.metric in EXACT and (gold := task.gold(example)):
            same = answers[prompt_of(requests[0])]
            other = next((number for text, number in same.items() if text != gold), None)
            same.setdefault(gold, example)
            if other is not None:
                found[example] = f"another answer than example {other}, which has the same prompt"
    return [Defect(*each) for each in found.items()]


def without_defects(
    task: Task, examples: Sequence[int], misfit: Callable[[Request], str | None], most: float
) -> Task:
    """Return the task without the examples that have a defect, if these are a small enough share.

    `most` is the share of the examples that may be left out. Raises BadData, which names them all
    at once, if there are more.
    """
    defects = find_defects(task, examples, misfit)
    if not defects:
        return task
    if len(defects) <= most * len(examples):
        return task.without({each.example for each in defects})
    named = "; ".join(f"example {each.example} has {each.why}" for each in defects[:NAMED])
    more = f"; and {len(defects) - NAMED} more" if len(defects) > NAMED else ""
    share = len(defects) / len(examples)
    raise BadData(
        f"Task {task.name} has {len(defects)} of {len(examples)} examples that cannot be asked as "
        f"they stand: {named}{more}. Correct them, or leave them out with --leave-out {share:.2g}."
        if len(defects) > 1
        else f"In task {task.name} {named} and cannot be asked as it stands. Correct it, or leave "
        f"it out with --leave-out {max(share, 0.01):.2g}."
    )


def count_questions(task: Task, examples: Sequence[int]) -> int:
    """Count the examples that ask different questions."""
    return len({task.question(example) for example in examples})
