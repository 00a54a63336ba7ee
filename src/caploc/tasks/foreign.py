"""Which Python code a user's task file would run: it does so with the user's rights."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.api import metrics as _  # noqa: F401  (fills the registry)
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.tasks._yaml_loader import load_yaml

from caploc.naming import at_home, is_file

FUNCTION = "!function"
UNREADABLE = "in a file that cannot be read"  # by lm-eval either
KNOWN = (Path(__file__).parent, Path(lm_eval.__file__).parent)


class Reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads a task's YAML with lm-eval's parser, and keeps every function that lm-eval would run.

    It would run those of keys, and of values that later ones replace, too.
    """

    def __init__(self, stream: bytes) -> None:
        """Read these bytes, in whatever encoding they say they have."""
        super().__init__(stream)
        self.functions: list[str] = []

    def function(self, node: yaml.Node) -> str:
        """Note a function; its name."""
        name = str(self.construct_scalar(node))
        self.functions.append(name)
        return name


Reader.add_constructor(FUNCTION, Reader.function)


def code_in(name: str) -> str | None:
    """The first piece of Python that a task given as a file names; None if there is none.

    That is a function, or a metric that lm-eval does not have and would fetch as a program; a file
    that cannot be read may name some. Files beside it count where they define the same task, or it
    is a group that may name theirs. Tasks that come with caploc and with lm-eval are trusted, as
    these are.
    """
    path = at_home(name)
    if not (name.endswith((".yaml", ".yml")) and is_file(path)):
        return None
    content = told(path)
    if content is None:
        return UNREADABLE
    group = isinstance(content.get("task"), list)
    files = [path]
    for beside in sorted(path.parent.rglob("*.y*ml")):
        other = told(beside)
        if other is not None and (group or other.get("task") == content.get("task")):
            files.append(beside)
    return next(pieces(files), None)


def told(path: Path) -> dict[str, Any] | None:
    """What a YAML and those that it includes say; None if lm-eval cannot read it, and leaves it."""
    try:
        said: dict[str, Any] = load_yaml(path, resolve_func=False)
        return said
    except Exception:  # as lm-eval does with whatever its parser raises
        return None


def pieces(files: Iterable[Path]) -> Iterator[str]:
    """Every piece of the files, and of those that they include."""
    waiting, seen = list(files)[::-1], set()
    while waiting:
        path = waiting.pop()
        try:
            path = path.resolve()
            if path in seen or any(path.is_relative_to(place) for place in KNOWN):
                continue
            seen.add(path)
            content, functions = read(path)
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            yield f"in {path.name}, which cannot be read"
            continue
        yield from (f"{FUNCTION} {name}" for name in functions)
        yield from metrics(content)
        included = content.get("include") if isinstance(content, dict) else None
        for each in included if isinstance(included, list) else [included]:
            if isinstance(each, str):
                waiting.append(path.parent / each)


def read(path: Path) -> tuple[Any, list[str]]:
    """What a YAML says, and the functions in it."""
    reader = Reader(path.read_bytes())
    try:
        return reader.get_single_data(), reader.functions
    finally:
        reader.dispose()


def metrics(content: Any) -> Iterator[str]:
    """Metrics that lm-eval would load from elsewhere, of a task or of those that a group holds."""
    waiting, seen = [content], set()
    while waiting:
        held = waiting.pop()
        if id(held) in seen or not isinstance(held, (dict, list)):
            continue
        seen.add(id(held))
        waiting.extend(held.values() if isinstance(held, dict) else held)
        listed = held.get("metric_list") if isinstance(held, dict) else None
        for each in listed if isinstance(listed, list) else []:
            name = each.get("metric") if isinstance(each, dict) else None
            if isinstance(name, str) and (each.get("hf_evaluate") or name not in METRIC_REGISTRY):
                yield f"metric {name}"
