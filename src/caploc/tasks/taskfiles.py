"""Task files: an lm-eval YAML, what it includes, and the files beside it that its group names.

A file may come from anyone, and Python code that it names runs with the user's rights. lm-eval
finds tasks by walking a folder, where a file of a stranger can take the name of another. Here only
what the named file leads to is read, once and as data (functions stay names): what was judged is
what is built. PyYAML's own limit of nesting is the C stack, and aliases unfold to any size.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.api import metrics  # noqa: F401  (fills the registry)
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.prompts import PROMPT_REGISTRY
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import _import_func_in_yml

from caploc.errors import BadData, BadOption, UnknownName
from caploc.files import read_bytes
from caploc.naming import at_home, is_file
from caploc.tasks.datafiles import check_path, check_reader, check_settings

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
    """What a YAML and those that it includes say; `kind` and `name` once it is read as a task."""

    config: dict[str, Any]
    path: Path
    files: set[Path]
    functions: list[Function]
    kind: Kind = Kind.UNKNOWN
    name: str = ""


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
    """Read a YAML and those that it includes, in which its own keys come first; raises BadData."""
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
    """Return what a YAML says, and its functions; ValueError if it nests or unfolds too far."""
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


ENDINGS = (".yaml", ".yml")
MOST_REPEATS = 1_000  # answers that a task asks to each question
TRUSTED = (Path(__file__).resolve().parent, Path(lm_eval.__file__).resolve().parent)
# Code of lm-eval's own tasks that does more than read documents and answers: it loads tokenizers
# and data that the rest of the definition names, and may run what they bring.
LOADERS = ("class", "custom_dataset")

_without_code: set[str] = set()  # files that someone else's file names


@dataclass
class TaskFamily:
    """A task file with everything that it leads to."""

    name: str
    entries: dict[str, Entry] = field(default_factory=dict)
    files: set[Path] = field(default_factory=set)
    functions: list[Function] = field(default_factory=list)

    def code(self) -> Iterator[str]:
        """Yield the Python that building the family would run, each piece in a few words.

        Tasks of caploc's and lm-eval's own folders are trusted, as these are. Where a task of
        someone else includes one of them, its functions that read documents and answers are.
        """
        if all(map(is_trusted, self.files)):
            return
        for function in self.functions:
            if not is_trusted(function.folder):
                yield f"{FUNCTION} {function.name}"
        for entry in self.entries.values():
            yield from code_of(entry.cfg)

    def add(self, read: Definition) -> None:
        self.entries[read.name] = Entry(read.name, read.kind, read.path, read.config)
        self.files |= read.files
        self.functions += read.functions


def is_trusted(path: Path) -> bool:
    """Return whether a file or folder came with caploc or lm-eval."""
    return any(path.is_relative_to(place) for place in TRUSTED)


def code_of(config: Any) -> Iterator[str]:
    """Yield what in a definition runs Python although no file beside it is named.

    That is a function of lm-eval's that loads what the definition names, a metric that lm-eval does
    not have and would fetch as a program, and prompts of another library.
    """
    for mapping in mappings(config):
        for key in LOADERS:
            if isinstance(mapping.get(key), Function):
                yield f"{key}: {FUNCTION} {mapping[key].name}"
        prompt = mapping.get("use_prompt")
        if prompt is not None and str(prompt).split(":")[0] not in PROMPT_REGISTRY:
            yield f"use_prompt: {prompt}"
        listed = mapping.get("metric_list")
        for each in listed if isinstance(listed, list) else []:
            name = each.get("metric") if isinstance(each, dict) else None
            if isinstance(name, str) and (each.get("hf_evaluate") or name not in METRIC_REGISTRY):
                yield f"metric {name}"


def code_in(name: str) -> str | None:
    """Return the first Python that a task given as a file would run, if any; raises BadData."""
    path = at_home(name)
    if not (name.endswith(ENDINGS) and is_file(path)):
        return None
    return next(read_family(path).code(), None)


def permit_code(name: str, allowed: bool) -> None:
    """Say for this process whether a task's file may run Python: it is asked at every reading."""
    place = os.path.abspath(at_home(name))
    (_without_code.discard if allowed else _without_code.add)(place)


def open_family(path: Path) -> tuple[TaskManager, str]:
    """Return the manager of a task file, which knows nothing else, and the task's name in it.

    Raises UnknownName if there is no such file, or its group names a task that is not beside it;
    BadData if it cannot be read as a task; BadOption if it runs Python and may not.
    """
    if not is_file(path):
        raise UnknownName(f"There is no task file {str(path)!r}; give the path of an lm-eval YAML.")
    family = read_family(path)
    code = next(family.code(), None)
    if code is not None and os.path.abspath(path) in _without_code:
        raise BadOption(refusal("Someone else's file", str(path), code))
    manager = TaskManager(include_defaults=False)
    manager._index.update(family.entries)
    manager._factory = Factory()
    return manager, family.name


def refusal(where: str, task: str, code: str) -> str:
    """Return the sentence for a task's code that was not allowed."""
    return (
        f"{where} names the task {task}, which runs Python code ({code}) with your rights; "
        "if you trust whoever made it, add --trust-remote-code."
    )


class Factory(TaskFactory):  # type: ignore[misc]
    """Builds tasks from definitions as they were judged; lm-eval's own reads its files again."""

    def _load_full_config(
        self, entry: Entry, overrides: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return a definition with its functions imported."""
        read = replace(entry, yaml_path=None, cfg=resolve(entry.cfg, {}))
        config: dict[str, Any] = super()._load_full_config(read, overrides)
        config["metadata"]["config_source"] = str(entry.yaml_path)
        if entry.kind is Kind.TASK and not callable(config.get("custom_dataset")):
            check_reader(str(entry.yaml_path), config)
        return config


def resolve(value: Any, made: dict[int, Any]) -> Any:
    """Copy a definition with its functions imported; what was one value stays one."""
    if isinstance(value, Function):
        return value.load()
    if not isinstance(value, (dict, list)):
        return value
    if id(value) not in made:
        if isinstance(value, dict):
            made[id(value)] = {key: resolve(part, made) for key, part in value.items()}
        else:
            made[id(value)] = [resolve(part, made) for part in value]
    return made[id(value)]


def read_family(path: Path) -> TaskFamily:
    """Read a task file, and the files beside it that define the members of its group.

    Raises UnknownName if a member of the group is nowhere beside it; BadData if the file is no
    task, or its data are read by a loader that is not allowed.
    """
    allowance = Allowance()
    definition = read_task(path, allowance)
    family = TaskFamily(definition.name)
    family.add(definition)
    waiting = [definition] if definition.kind is Kind.GROUP else []
    siblings = list_siblings(path, allowance) if waiting else []
    while waiting:
        group = waiting.pop()
        for member, needed in list_members(group.config.get("task")):
            if member in family.entries:
                continue
            found = find_definitions(siblings, member)
            if not found and needed and not has_mark(group.config, "mixture"):
                raise UnknownName(
                    f"The group in {group.path} names the task {member!r}, which no YAML beside it "
                    "defines; correct the name, or write the task's file."
                )
            for each in found:
                family.add(each)
                waiting += [each] if each.kind is Kind.GROUP else []
            if found and found[0].name != member:
                tagged = {each.name for each in found}
                family.entries[member] = Entry(member, Kind.TAG, None, None, tagged)
    for entry in family.entries.values():
        check_entry(entry)
    check_circles(family.entries)
    return family


def check_circles(entries: Mapping[str, Entry]) -> None:
    """Refuse a group that is a member of itself, however far down; raises BadData naming it."""
    inside = {}
    for name, entry in entries.items():
        if entry.kind is Kind.GROUP:
            config = entry.cfg or {}
            inside[name] = {member for member, _ in list_members(config.get("task"))}
            if has_mark(config, "mixture"):  # a part of its own name is a task of another place
                inside[name].discard(name)
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        raise BadData(
            f"The group {error.args[1][0]} holds itself; take it out of its list of tasks."
        ) from None


def has_mark(config: Mapping[str, Any], mark: str) -> bool:
    """Tell whether the `metadata` of a definition says `mark: true`.

    The members of a group that is a `mixture` may be tasks of other places, each with its metric.
    """
    metadata = config.get("metadata")
    return isinstance(metadata, dict) and metadata.get(mark) is True


def check_entry(entry: Entry) -> None:
    """Refuse what reads data by a loader that is not allowed, or asks without end (BadData)."""
    for mapping in mappings(entry.cfg):
        if not isinstance(mapping.get("custom_dataset"), Function):
            if mapping.get("dataset_path") is not None:
                check_path(f"{entry.yaml_path}", mapping["dataset_path"])
            if mapping.get("dataset_kwargs") is not None:
                check_settings(f"{entry.yaml_path}", mapping["dataset_kwargs"])
            if mapping is not entry.cfg or entry.kind is Kind.GROUP:
                check_reader(f"{entry.yaml_path}", mapping)
        repeats = mapping.get("repeats")
        if isinstance(repeats, int) and repeats > MOST_REPEATS:
            raise BadData(
                f"{entry.yaml_path} asks for {repeats:,} answers to each question (`repeats`); "
                f"{MOST_REPEATS:,} are the most."
            )


def read_task(path: Path, allowance: Allowance) -> Definition:
    """Read a YAML that defines a task or a group, with its kind and name; raises BadData."""
    definition = read_definition(path, allowance)
    config = definition.config
    try:
        kind = TaskIndex._kind_of(config)
    except ValueError:
        kind = Kind.UNKNOWN
    name = config.get("group" if kind is Kind.GROUP else "task")
    if kind is Kind.UNKNOWN or not (isinstance(name, str) and name.strip()):
        raise BadData(f"{path} names neither a task nor a group (`task: my_task`).")
    if kind is Kind.GROUP:
        if not (isinstance(config.get("task"), list) and config["task"]):
            raise BadData(
                f"{path} is a group without a list of tasks (`task: [one, two]`); a label for one "
                "task is written `tag`."
            )
    elif not any(map(config.get, ("dataset_path", *LOADERS))):
        raise BadData(
            f"{path} does not say where the data of task {name} are (`dataset_path: json`, with "
            "files under `dataset_kwargs`; docs/tasks.md has an example)."
        )
    definition.kind, definition.name = kind, name
    return definition


def list_members(listed: Any) -> Iterator[tuple[str, bool]]:
    """Yield the names in a group's list, and whether each must be defined somewhere.

    What a mapping names may be defined there and then. Raises BadData if one is no name.
    """
    for member in listed if isinstance(listed, list) else []:
        if isinstance(member, str):
            yield member, True
        elif isinstance(member, dict):
            for key in ("group", "task"):
                if isinstance(member.get(key), str):
                    yield member[key], False
            yield from list_members(member.get("task"))
        else:
            raise BadData(f"A group's list of tasks holds {str(member)[:60]!r}, which is no name.")


def list_siblings(path: Path, allowance: Allowance) -> list[Definition]:
    """Read the YAML files beside a task file and below, no links, by name; raises BadData."""
    siblings = []
    for place, folders, names in os.walk(path.absolute().parent):
        folders.sort()
        for file in (Path(place, name) for name in sorted(names) if name.endswith(ENDINGS)):
            if file.is_symlink() or not is_file(file):
                continue
            try:
                siblings.append(read_task(file, allowance))
            except BadData:  # it is none of the family's, or a base that others include
                if allowance.is_spent:
                    raise
    return siblings


def find_definitions(siblings: Sequence[Definition], name: str) -> list[Definition]:
    """Return the task of this name, else the group, else the tasks of this tag; raises BadData."""
    tasks = [each for each in siblings if each.kind is not Kind.GROUP]
    groups = [each for each in siblings if each.kind is Kind.GROUP]
    for kind in (tasks, groups):
        found = [each for each in kind if each.name == name]
        if len(found) > 1:
            files = " and ".join(str(each.path) for each in found[:2])
            raise BadData(f"{files} both define {name!r}; rename one.")
        if found:
            return found
    tagged = []
    for task in tasks:
        tags = task.config.get("tag")
        if name in (tags if isinstance(tags, list) else [tags]):
            tagged += find_definitions(tasks, task.name)
    return tagged
