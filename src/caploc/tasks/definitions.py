"""A task's YAML and those that it includes, read as data: functions stay names.

PyYAML's own limit of nesting is the C stack, and aliases unfold to any size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lm_eval.tasks._yaml_loader import _import_func_in_yml

from caploc.errors import BadData
from caploc.files import read_bytes

FUNCTION = "!function"
LONGEST = 2**20  # bytes of a file
DEEPEST = 100  # lists and mappings inside one another
WIDEST = 1_000_000  # values in a file, those that aliases repeat counted each time
MOST_FILES = 10_000  # of a family, each counted whenever it is included
MOST_BYTES = 16 * 2**20  # of these files; all 14,000 of lm-eval's tasks have 8
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Function:
    """A function that a YAML names, not imported."""

    name: str
    folder: Path  # of the YAML, where lm-eval looks for the module first

    def load(self) -> Any:
        """Import it, as lm-eval would."""
        return _import_func_in_yml(self.name, self.folder)


class Reader(SafeLoader):  # type: ignore[misc]
    """Reads a task's YAML with lm-eval's parser; functions stay names."""

    def __init__(self, content: bytes, folder: Path = Path()) -> None:
        """Read these bytes, in whatever encoding they say they have."""
        super().__init__(content)
        self.folder = folder
        self.functions: list[Function] = []
        self.entries = 0  # of mappings so far, those that are merged into others counted each time

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge what `<<` names into a mapping, unless that makes too many entries."""
        super().flatten_mapping(node)
        self.entries += len(node.value)
        if self.entries > WIDEST:
            raise ValueError(f"it holds more than {WIDEST:,} values")

    def construct_function(self, node: yaml.Node) -> Function:
        """Note a function, also where another value takes its place later."""
        self.functions.append(Function(str(self.construct_scalar(node)), self.folder))
        return self.functions[-1]


Reader.add_constructor(FUNCTION, Reader.construct_function)


@dataclass
class Definition:
    """What a YAML and those that it includes say."""

    config: dict[str, Any]
    path: Path
    files: set[Path]
    functions: list[Function]


def mappings(config: Any) -> Iterator[dict[Any, Any]]:
    """Yield every mapping in a definition, itself included; each once."""
    waiting, seen = [config], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, (dict, list, tuple)):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            yield value
        waiting.extend(value.values() if isinstance(value, dict) else value)


@dataclass
class Allowance:
    """What may still be read of a family."""

    files: int = MOST_FILES
    bytes: int = MOST_BYTES

    @property
    def is_spent(self) -> bool:
        """Tell whether more was read than may be."""
        return self.files < 0 or self.bytes < 0

    def spend(self, path: Path, length: int) -> None:
        """Take a file of this many bytes off; raises BadData if it is one too many."""
        self.files -= 1
        self.bytes -= length
        if self.is_spent:
            raise BadData(
                f"With {path} a family of task files has more than {MOST_FILES:,} files or "
                f"{MOST_BYTES:,} bytes, each file counted whenever it is included; put a group's "
                "files into a folder of their own."
            )


def read_definition(path: Path, allowance: Allowance, above: tuple[Path, ...] = ()) -> Definition:
    """Read a YAML and those that it includes, in which its own keys come first.

    Raises:
        BadData: if one cannot be read, is too long or deep, or includes itself, or there are too
            many.
    """
    try:
        place = path.expanduser().resolve()
        text = read_bytes(place, LONGEST)
        allowance.spend(path, len(text))
        content, functions = parse_yaml(text, place.parent)
    except (OSError, RuntimeError, ValueError, TypeError, yaml.YAMLError) as error:
        said = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
        said = said.replace('in "<byte string>",', "at")
        raise BadData(f"{str(path)[:300]} is not a task YAML: {said}.") from error
    if not isinstance(content, dict):
        raise BadData(f"{path} is not a task YAML: it holds no keys with values.")
    if place in above or len(above) > DEEPEST:
        raise BadData(f"{path} includes itself; take that `include` out.")
    definition = Definition({}, path, {place}, functions)
    names = content.pop("include", None)
    for name in names if isinstance(names, list) else [names]:
        if name is None:
            continue
        if not isinstance(name, str):
            raise BadData(f"{path} includes {str(name)[:60]!r}, which is no path of a file.")
        part = read_definition(place.parent / name, allowance, (*above, place))
        definition.files |= part.files
        definition.functions += part.functions
        part.config.pop("task_list", None)  # lm-eval's: it is about the included file alone
        definition.config.update(part.config)
    definition.config.update(content)
    return definition


def parse_yaml(content: bytes, folder: Path) -> tuple[Any, list[Function]]:
    """Return what a YAML says, and the functions in it.

    Raises:
        ValueError: if it nests too deeply, or its aliases unfold to too much.
        yaml.YAMLError: if it is no YAML.
    """
    depth = 0
    for event in yaml.parse(content, Loader=SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it nests more than {DEEPEST} lists and mappings")
    reader = Reader(content, folder)
    try:
        read = reader.get_single_data()
    finally:
        reader.dispose()
    if unfolded(read, {}) > WIDEST:
        raise ValueError(f"it holds more than {WIDEST:,} values")
    return read, reader.functions


def unfolded(value: Any, sizes: dict[int, float]) -> float:
    """Count how many values there are, each alias followed; without end where one holds itself."""
    if not isinstance(value, (dict, list, tuple, set)):
        return 1.0
    if id(value) not in sizes:
        sizes[id(value)] = float("inf")  # while inside
        parts = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1.0 + sum(unfolded(part, sizes) for part in parts)
    return sizes[id(value)]
