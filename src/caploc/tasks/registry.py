"""Which definition a task's name stands for: caploc's own, lm-eval's, or a file of the user's."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind

from caploc.errors import BadData
from caploc.naming import ZERO_SHOT, are_twins, at_home
from caploc.tasks.datafiles import definition
from caploc.tasks.names import OURS, unknown_task
from caploc.tasks.taskfiles import ENDINGS, has_mark, open_family
from caploc.tasks.templates import confine_templates

confine_templates()
HERE = Path(__file__).parent


# Tasks that caploc brings: of the model inside the package, both papers' that lm-eval lacks, and
# few-shot ones on words, countries and numbers for pretrained models. Every YAML there is one.
OWN = ("demo", "paper", "words")


@cache
def own_manager(folder: str) -> TaskManager:
    """Return the tasks of a folder of `OWN`."""
    return TaskManager(include_path=HERE / folder, include_defaults=False)


@cache
def harness_manager() -> TaskManager:
    """Everything lm-eval registers; reading it takes seconds."""
    return TaskManager()


def own_names() -> list[str]:
    """Return every task that caploc brings: the demo's, the paper's, then those on words."""
    return [name for folder in OWN for name in own_manager(folder).all_tasks]


def list_twins(name: str) -> list[str]:
    """List a task's twins that caploc brings, but those without examples.

    Of `words/past` it is `words/past_twin`.
    """
    twins = [other for other in own_names() if other != name and are_twins(other, name)]
    return [other for other in twins if not other.endswith(ZERO_SHOT)]


def find_task(name: str) -> tuple[TaskManager, str]:
    """Return which manager knows the task, and by what name.

    Raises UnknownName, naming the nearest task there is; BadData if it is a file that defines no
    task.
    """
    for folder in OWN:
        if name in own_manager(folder).task_index:
            return own_manager(folder), name
    if name.endswith(ENDINGS) and not name.startswith(OURS):
        return open_family(at_home(name))
    if name.startswith(OURS) or name not in harness_manager().task_index:
        raise unknown_task(name)
    return harness_manager(), name


def mixture_parts(manager: TaskManager, name: str) -> list[tuple[TaskManager, str]]:
    """Return the tasks of a group marked `mixture: true`, each with its own metric; else none.

    They are looked for beside the mixture first, then wherever a task may be. Raises UnknownName if
    there is no such task; BadData if the members are not the names of two or more tasks that are
    not mixtures.
    """
    entry = manager.task_index.get(name)
    if entry is None or entry.kind is not Kind.GROUP or not has_mark(definition(entry), "mixture"):
        return []
    members = definition(entry).get("task")
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        raise BadData(f"Mixture {name} must list its tasks by their names (`task: [boolq, mmlu]`).")
    if files := [member for member in members if member.endswith(ENDINGS)]:
        raise BadData(
            f"Mixture {name} names the file {files[0]!r}; put it beside the mixture, and name the "
            "task in it."
        )
    parts = [(manager, m) if m in manager.task_index else find_task(m) for m in members]
    if len(parts) < 2 or any(
        has_mark(definition(beside.task_index[part]), "mixture") for beside, part in parts
    ):
        raise BadData(f"Mixture {name} must list two or more tasks, none of them a mixture.")
    return parts


def leaf_entries(manager: TaskManager, name: str) -> Iterator[Entry]:
    """Yield the tasks behind a name: itself, or a group's, tag's or mixture's, however deep."""
    entry = manager.task_index.get(name)
    if entry is None:
        return
    if parts := mixture_parts(manager, name):
        for beside, part in parts:
            yield from leaf_entries(beside, part)
        return
    members = sorted(entry.tags) if entry.kind is Kind.TAG else definition(entry).get("task")
    if not isinstance(members, list):
        yield entry
        return
    waiting = list(reversed(members))
    while waiting:
        member = waiting.pop()
        if isinstance(member, str):
            yield from leaf_entries(manager, member)
        elif isinstance(member.get("task"), list):  # a group defined in place
            waiting += reversed(member["task"])
        else:
            yield from leaf_entries(manager, member.get("task") or member.get("group"))
