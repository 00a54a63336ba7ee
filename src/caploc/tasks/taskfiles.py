"""Task files: lm-eval's YAML at a path, and whether reading it would run Python.

lm-eval reads them, with all that they include and name. A file is as trusted as a Python module
where the user names it. Where a run's folder or a study file does, its text is searched for code
before anything is loaded.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api import metrics  # noqa: F401  (fills the registry)
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml

from caploc.errors import BadData, UnknownName
from caploc.naming import YAML, at_home, check_tasks, is_file

FUNCTION = "!function"
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # lm-eval's parser
UNREADABLE = (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError)


def open_task_file(path: Path) -> tuple[TaskManager, str]:
    """Return lm-eval's manager of the tasks in a file, and the name of the task or group there.

    The members of a group are looked for in its folder and below. Raises UnknownName if there is no
    such file or member, BadData if the file cannot be read as a task.
    """
    check_tasks([str(path)])
    try:
        config = load_yaml(path, resolve_func=False)
    except UNREADABLE as error:
        said = " ".join(str(error).split())[:300]
        raise BadData(f"{path} is not a task YAML: {said}.") from error
    kind = Kind.GROUP if "group" in config else Kind.PY_TASK if "class" in config else Kind.TASK
    name = config.get("group" if kind is Kind.GROUP else "task")
    if not isinstance(name, str):
        raise BadData(f"{path} names neither a task nor a group (`task: my_task`).")
    folder = path.absolute().parent if kind is Kind.GROUP else None
    manager = TaskManager(include_path=folder, include_defaults=False)
    manager.task_index[name] = Entry(name, kind, path, config)
    check_definition(manager, path, config, kind)
    return manager, name


def check_definition(
    manager: TaskManager, path: Path, config: Mapping[str, Any], kind: Kind
) -> None:
    """Refuse a group without tasks, or with one that is nowhere beside it, and a task without data.

    Raises BadData or UnknownName.
    """
    if kind is Kind.TASK and not (config.get("dataset_path") or config.get("custom_dataset")):
        raise BadData(
            f"{path} does not say where its data are (`dataset_path: json`, with files under "
            "`dataset_kwargs`; docs/tasks.md has an example)."
        )
    if kind is not Kind.GROUP:
        return
    members = config.get("task")
    if not isinstance(members, list) or not members:
        raise BadData(f"{path} is a group without a list of tasks (`task: [one, two]`).")
    for member in members:
        if isinstance(member, str) and member not in manager.task_index:
            raise UnknownName(
                f"The group in {path} names the task {member!r}, which no YAML beside it defines; "
                "correct the name, or write the task's file."
            )


def has_mark(config: Mapping[str, Any], mark: str) -> bool:
    """Tell whether the `metadata` of a definition says `mark: true`."""
    metadata = config.get("metadata")
    return isinstance(metadata, dict) and metadata.get(mark) is True


def find_code(task: str) -> str | None:
    """Return the first Python that a task given as a file could run, None if there is none.

    The file is searched, what it includes, and for a group, whose members lie there, the YAML files
    of its folder and below.
    """
    path = at_home(task)
    if not (task.endswith(YAML) and is_file(path)):
        return None
    waiting, seen = [path, *list_members(path)], set[Path]()
    while waiting:
        try:
            file = waiting.pop(0).resolve()
            if file in seen:
                continue
            seen.add(file)
            config = load_yaml(file, resolve_func=False, recursive=False)
            events = list(yaml.parse(file.read_bytes(), Loader=Loader))
        except UNREADABLE:  # lm-eval reads it no better
            continue
        for event in events:  # their tags are resolved, however they are spelled
            if getattr(event, "tag", None) == FUNCTION:
                return f"{FUNCTION} {getattr(event, 'value', '')} in {file.name}"
        for metric in fetched_metrics(config):
            return f"metric {metric} in {file.name}"
        included = config.get("include")
        names = included if isinstance(included, list) else [included]
        waiting += [file.parent / name for name in names if isinstance(name, str)]
    return None


def list_members(path: Path) -> list[Path]:
    """List the files among which a group's members are looked for; none for a task."""
    try:
        if "group" not in load_yaml(path, resolve_func=False):
            return []
    except UNREADABLE:
        return []
    return sorted(file for ending in YAML for file in path.absolute().parent.rglob(f"*{ending}"))


def fetched_metrics(config: Any) -> Iterator[str]:
    """Yield the metrics of a definition that lm-eval does not have: it would fetch a program."""
    waiting, seen = [config], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, dict | list):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            name = str(value.get("metric", "acc"))
            if value.get("hf_evaluate") or name not in METRIC_REGISTRY:
                yield name
        waiting.extend(value.values() if isinstance(value, dict) else value)
