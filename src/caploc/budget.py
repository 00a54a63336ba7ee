"""How many rows a study takes at most."""

from collections.abc import Mapping

from caploc.declaration import CHECKED, CURVED, JUDGED, SEARCHED, Study
from caploc.search import METHODS, Problem
from caploc.tasks.task import Task
from caploc.validation.frontier import CONFIRMED

ELSEWHERE = 24  # examples of each other task, to tell heads that break everything
SETS = 20  # that a search for a specific one hands to its check, at most as a rule


def most_searched(study: Study, tasks: Mapping[str, Task], heads: int) -> int:
    """Bound the rows of a search: its budget, and the intact model on all that it may ask."""
    method, draw = METHODS[study.method], study.draw(tasks[study.task].size)
    fresh = [] if method.masks else draw.fresh
    intact = len(draw.searched) + len(fresh)
    if method.has_goals:  # how likely right answers are
        intact *= 2
    # what else a head breaks: the intact model; and the heads, which the default search counts
    intact += len(study.beside) * ELSEWHERE
    if not method.has_goals:
        intact += len(study.beside) * ELSEWHERE * study.settings.top
    if study.seeks_specific:
        intact += 2 * SEARCHED * len({*study.twins, *study.spare})
    return method.most_rows(Problem(heads, draw.searched, study.settings, fresh=fresh)) + intact


def most_checked(
    study: Study, tasks: Mapping[str, Task], named: int | None = None, sets: int | None = None
) -> int:
    """Bound the rows of all stages after a search.

    Once it has ended, `named` is the number of heads that it found, `sets` that of the sets.
    """
    if not study.seeks_specific:
        sets = 0
    elif sets is None:
        sets = SETS
    named = max(study.settings.top if named is None else named, 1)
    # each head alone, all but each; all but each again after every head that leaves
    tried = 2 * named + named**2
    if study.seeks_specific:
        tried += CONFIRMED * (named**2 + named)
    sizes = {name: task.size for name, task in tasks.items()}
    most = study.limit or max(sizes.values())
    checked = min(CHECKED, most, len(study.draw(sizes[study.task]).judged))
    rows = checked * (2 + tried + sets + study.controls)
    # before and after, and without the strongest head alone
    rows += sum(3 * min(most, size) for size in sizes.values())
    if not study.quick:
        rows += (1 + named) * sum(min(CURVED, most, size) for size in sizes.values())
    if study.seeks_specific:
        judged = sum(min(JUDGED, most, sizes[name]) for name in study.beside)
        rows += (1 + sets + CONFIRMED) * judged
    return rows
