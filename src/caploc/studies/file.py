"""What a study file may say, and the studies that it means.

Its keys are the options of `caploc locate`, with `_` for `-`; every model is asked with every task,
method and seed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from caploc.components import Heads
from caploc.declaration import (
    LISTED,
    Allowed,
    ModelOptions,
    Study,
    check_read,
    with_general_task,
)
from caploc.errors import BadOption, CaplocError, OutOfMemory, describe_faults, unknown
from caploc.files import read_toml
from caploc.naming import are_twins, at_home, folder_name
from caploc.options import build, flags
from caploc.pairs import name_task

LAID = ("model", "task", "method", "seed")  # what the file has lists of
KEYS = [
    name
    for name, flag in flags(Study).items()
    if flag.option.help and not flag.option.trust and name not in LAID
]

Name = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0)]
T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]  # one or more


def all_texts(values: Iterable[Any]) -> bool:
    """Tell whether all of these are texts."""
    return all(isinstance(each, str) for each in values)


class OptionTable(BaseModel):
    """A table of the file that also holds options; their values are read with the whole study."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @model_validator(mode="after")
    def holds_options(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if key not in KEYS:
                raise unknown(KEYS, key, "key")
            if key in LISTED and not (isinstance(value, list) and all_texts(value)):
                raise ValueError(f"{key} must be a list of names; got {value!r}")
            if key == "data" and not (isinstance(value, dict) and all_texts(value.values())):
                raise ValueError(f"{key} must be a table of files; got {value!r}")
        return self


class Entry(OptionTable):
    """A model, task or method, with a label that tells it from others of its name.

    A task or method with `models`, by label, is for these alone.
    """

    name: Name
    label: Name | None = None
    models: Some[Name] | None = None


Listed = Annotated[
    Entry, BeforeValidator(lambda said: {"name": said} if isinstance(said, str) else said)
]


class StudyFile(BaseModel):
    """Every model with every task, method and seed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    out: Name | None = None
    models: Some[Listed]
    tasks: Some[Listed]
    methods: Some[Listed] = [Entry(name=Study.method)]
    seeds: Some[Seed] = [0]
    settings: OptionTable = OptionTable()

    def labels(self, kind: str) -> list[str]:
        """Return the labels of models, tasks or methods in order."""
        return [entry.label or entry.name for entry in getattr(self, kind)]

    @model_validator(mode="after")
    def names_models_that_are_there(self) -> Self:
        """Refuse tasks and methods for models that the file does not list."""
        known = self.labels("models")
        for label in (each for one in (*self.tasks, *self.methods) for each in one.models or ()):
            if label not in known:
                raise unknown(known, label, "model")
        return self

    def results(self, path: Path) -> Path:
        """The folder for the results of the studies in this file at `path`."""
        return path.parent / at_home(self.out) if self.out else Path("runs") / path.stem

    def places(self) -> "Iterator[tuple[Place, dict[str, Any]]]":
        """Yield each study's place, and what is said of it: the method's settings come last."""
        for model, task, method, seed in product(self.models, self.tasks, self.methods, self.seeds):
            named = [each.label or each.name for each in (model, task, method)]
            place = Place(named[0], named[1], named[2], seed)
            if any(each.models and place.models not in each.models for each in (task, method)):
                continue
            said: dict[str, Any] = {}
            for layer in (self.settings, model, task, method):
                said |= layer.model_extra or {}
            # what is said of all studies may name the task of one
            for key in said.keys() & {"also", "spare", "twin"}:
                said[key] = tuple(name for name in said[key] if name != task.name)
            if "spare" in said:
                said["spare"] = tuple(one for one in said["spare"] if not are_twins(one, task.name))
            laid = {"model": model.name, "task": task.name, "method": method.name, "seed": seed}
            yield place, said | laid


@dataclass(frozen=True)
class Place:
    """Where in the matrix a study stands: labels of model, task and method, and the seed."""

    models: str
    tasks: str
    methods: str
    seeds: int


def folder_names(places: list[Place]) -> list[str]:
    """Name a folder for each study by what tells it from the others, and always by its task."""
    told = [
        kind
        for kind in Place.__annotations__
        if kind == "tasks" or len({getattr(place, kind) for place in places}) > 1
    ]
    names = []
    for place in places:
        labels = vars(place) | {"seeds": f"seed{place.seeds}"}
        parts = [labels[kind] for kind in told]
        names.append(
            folder_name("-".join(Path(p).name if Path(p).is_absolute() else p for p in parts))
        )
    return names


@dataclass(frozen=True)
class Opened:
    """A study file that may run: its studies by the name of their folders."""

    studies: dict[str, Study]
    out: Path


def read_file(path: Path) -> StudyFile:
    """Read a file of studies; raises UserError with what is wrong in it."""
    try:
        return StudyFile.model_validate(read_toml(path))
    except ValidationError as error:
        said = describe_faults(error)
        stop = "" if said.endswith("?") else "."
        raise BadOption(f"{path} is no file of studies: {said}{stop}") from None


def read_studies(path: Path, allowed: Allowed | None = None, out: Path | None = None) -> Opened:
    """Read a file of studies.

    Paths in the file, that of the results too, are seen from the file's own folder. If neither it
    nor `out` names a folder for results, that is the file's name in `runs`; tasks of files of pairs
    are written there. Raises UserError with the first mistake.
    """
    file = read_file(path)
    places = list(file.places())
    if not places:
        raise BadOption(f"No task of {path} has a method for its models; name one.")
    out = out or file.results(path)
    names = folder_names([place for place, _ in places])
    allowed, studies = allowed or Allowed(), dict[str, Study]()
    grids: dict[ModelOptions, Heads] = {}
    own = {each.label or each.name: each.model_extra or {} for each in reversed(file.methods)}
    for name, (place, each) in zip(names, places, strict=True):
        try:
            if name.casefold() in map(str.casefold, studies):
                raise BadOption("Two studies have this name; give one of them another label.")
            study = read_study(with_pairs(each, path.parent, out), path.parent, allowed)
            studies[name] = study
            check_read(own[place.methods], study.method, study.settings.goal)
            if study.model not in grids:
                grids[study.model] = study.model.check()
            study.check(grids[study.model])
        except OutOfMemory:  # this study fails when it runs; others may be on smaller models
            pass
        except CaplocError as error:
            raise BadOption(f"{path}, {name}: {error}") from None
    return Opened(studies, out)


def with_pairs(said: Mapping[str, Any], start: Path, folder: Path) -> dict[str, Any]:
    """Name in the place of each file of pairs the task that is made of it in the folder."""
    tasks = {
        key: tuple(name_task(name, folder, start) for name in said[key])
        for key in ("also", "spare", "twin")
        if key in said
    }
    return {**said, "task": name_task(said["task"], folder, start), **tasks}


def read_study(said: Mapping[str, Any], start: Path, allowed: Allowed) -> Study:
    """Build a study of what is said of it; paths are seen from `start`. Raises UserError."""
    may = {
        "allow_code": allowed.code,
        "trust_remote_code": allowed.remote_code,
        "workers": allowed.workers,
    }
    study = build(Study, with_general_task(said) | may, start)
    for task in study.named_tasks:
        allowed.check_task("The file", task)
    return study
