"""Examples that cannot be asked or judged as they stand, found before the first row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from caploc.errors import BadData
from caploc.progress import Progress
from caploc.tasks.task import LogLikelihood, Request, Task
from caploc.wording import called

NAMED = 5  # defects that a message names
EXACT = {"acc", "exact_match"}  # metrics by which one question has one right answer


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
    for example in examples:
        requests = task.requests(example)
        blank = [r for r in requests if isinstance(r, LogLikelihood) and not r.continuation.strip()]
        if blank:
            found[example] = "an empty choice" if len(requests) > 1 else "an empty answer"
        elif why := task.example(example).lacks or next(filter(None, map(misfit, requests)), None):
            found[example] = why
    return [Defect(*each) for each in found.items()]


def without_defects(
    task: Task,
    examples: Sequence[int],
    misfit: Callable[[Request], str | None],
    most: float,
) -> Task:
    """Return the task without the examples that have a defect, if these are a small enough share.

    `most` is the share of the examples that may be left out. Raises BadData, which lists them
    all at once, if there are more.
    """
    defects = find_defects(task, examples, misfit)
    check_share(task, defects, len(examples), most)
    return task.without({each.example for each in defects}) if defects else task


def one_of_each_question(task: Task, most: float, progress: Progress) -> Task:
    """Leave out copies, so that no question is searched on and held out as well, and say so.

    Raises BadData if more than the share `most` of the examples repeat a question with another
    answer, where only one can be right.
    """
    first: dict[str, int] = {}
    copies = {
        e: f for e in range(task.size) if (f := first.setdefault(task.example(e).question, e)) != e
    }
    unlike = [
        Defect(copy, f"another answer than example {original}, which has the same prompt")
        for copy, original in copies.items()
        if task.metric.name in EXACT and task.example(copy).gold != task.example(original).gold
    ]
    check_share(task, unlike, task.size, most)
    if not copies:
        return task
    kept = task.without(copies.keys())
    progress.tell(
        f"{called(task.name)}: {task.size:,} examples put {kept.size:,} different questions; one "
        "of each is asked.",
    )
    return kept


def ask_once(tasks: Mapping[str, Task], most: float, progress: Progress) -> dict[str, Task]:
    """Leave the copies of questions out of every task (`one_of_each_question`)."""
    return {name: one_of_each_question(task, most, progress) for name, task in tasks.items()}


def check_share(task: Task, defects: Sequence[Defect], count: int, most: float) -> None:
    """Raise BadData, which names them, if more than the share `most` of so many have a defect."""
    if len(defects) <= most * count:
        return
    named = "; ".join(f"example {each.example} has {each.why}" for each in defects[:NAMED])
    more = f"; and {len(defects) - NAMED} more" if len(defects) > NAMED else ""
    stand, them = ("it stands", "it") if len(defects) == 1 else ("they stand", "them")
    share = ceil(100 * len(defects) / count) / 100
    leave = f", or leave {them} out with --leave-out {share:g}" if share < 1 else ""
    raise BadData(
        f"In {called(task.name)} {len(defects)} of {count} examples cannot be asked as {stand}: "
        f"{named}{more}. Correct {them}{leave}."
    )
