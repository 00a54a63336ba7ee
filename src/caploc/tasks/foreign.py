"""Which Python code a user's task file would run: it does so with the user's rights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.api import metrics as _  # noqa: F401  (fills the registry)
from lm_eval.api.registry import METRIC_REGISTRY

from caploc.naming import at_home, is_file

FUNCTION = "!function"
KNOWN = (Path(__file__).parent, Path(lm_eval.__file__).parent)
DEEPEST = 20  # files that include one another


class Function(str):
    """The name of a function in a task's YAML."""


class Reader(yaml.SafeLoader):  # type: ignore[misc]  # the package has no types
    """Reads a task's YAML, and keeps the names of functions apart."""


Reader.add_constructor(FUNCTION, lambda loader, node: Function(loader.construct_scalar(node)))


def code_in(name: str) -> str | None:
    """The first piece of Python that a task given as a file names; None if there is none.

    That is a function, or a metric that lm-eval does not have and would fetch as a program. Files
    beside it count where they define the same task, or it is a group that may name theirs. Tasks
    that come with caploc and with lm-eval are trusted, as these are.
    """
    path = at_home(name)
    if not (name.endswith((".yaml", ".yml")) and is_file(path)):
        return None
    content, files = read(path), [path]
    group = isinstance(content.get("task"), list)
    for beside in sorted(path.parent.rglob("*.y*ml")):
        if group or read(beside).get("task") == content.get("task"):
            files.append(beside)
    return next((piece for file in files for piece in pieces(file.absolute(), 0)), None)


def read(path: Path) -> dict[Any, Any]:
    """What a YAML says; nothing if it cannot be read, which whoever loads the task will tell."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=Reader)  # a SafeLoader
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def pieces(path: Path, depth: int) -> Iterator[str]:
    """Every piece of a file, and of those that it includes."""
    if depth > DEEPEST or any(path.resolve().is_relative_to(place) for place in KNOWN):
        return
    content = read(path)
    yield from functions(content)
    yield from metrics(content.get("metric_list"))
    included = content.get("include")
    for each in included if isinstance(included, list) else [included]:
        if isinstance(each, str):
            yield from pieces(path.parent / each, depth + 1)


def functions(content: Any) -> Iterator[str]:
    """Functions that a YAML names, however deep."""
    if isinstance(content, Function):
        yield f"{FUNCTION} {content}"
    elif isinstance(content, dict):
        for value in content.values():
            yield from functions(value)
    elif isinstance(content, list):
        for value in content:
            yield from functions(value)


def metrics(listed: Any) -> Iterator[str]:
    """Metrics that lm-eval would load from elsewhere."""
    for each in listed if isinstance(listed, list) else []:
        name = each.get("metric") if isinstance(each, dict) else None
        if isinstance(name, str) and (each.get("hf_evaluate") or name not in METRIC_REGISTRY):
            yield f"metric {name}"
