"""What a study file may say, and the studies that it means.

Its keys are the options of `caploc locate`, with `_` for `-`; every model is asked with every task,
method and seed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from caploc.components import Heads
from caploc.declaration import Study
from caploc.engine import PACKED
from caploc.errors import BadOption, CaplocError, OutOfMemory, list_keys, nearest, pick
from caploc.files import read_toml
from caploc.folder import JSON_FILES, LEDGER, ROWS
from caploc.models.placement import SPREAD
from caploc.modes import PATCH, ZERO, Mode
from caploc.naming import are_twins, at_home, default_others, folder_name, placed
from caploc.report.plots import FIGURES
from caploc.report.templates import COMPARE, REPORT
from caploc.search import METHODS, Settings
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.tasks.paper.profanity import PACKAGED
from caploc.workbench import Allowed, ModelOptions

Whole = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]  # one or more


class StudiesPart(BaseModel):
    """A table of the file: no key that is not known, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SettingLists(StudiesPart):
    """What may be said of all studies, a task, a method or some studies; the last wins."""

    masks: Whole | None = None
    rate: Rate | None = None
    mask_counts: Some[Whole] | None = None
    rates: Some[Rate] | None = None
    examples: Whole | None = None
    budget: Whole | None = None
    goal: Literal["heads", "set", "specific"] | None = None
    price: Annotated[float, Field(gt=0, le=1)] | None = None
    top: Whole | None = None
    estimator: Name | None = None
    outcome: Literal["metric", "logprob"] | None = None
    metric: Name | None = None
    fewshot: Annotated[int, Field(ge=0)] | None = None
    delimiter: str | None = None
    chat_template: bool | None = None
    data: dict[Name, Name] | None = None
    also: list[Name] | None = None
    spare: list[Name] | None = None
    twins: list[Name] | None = None
    exclude: list[Name] | None = None
    mode: Literal["zero", "mean", "resample", "patch"] | None = None
    corrupted: Name | None = None
    positions: Name | None = None
    controls: Annotated[int, Field(ge=0)] | None = None
    limit: Whole | None = None
    leave_out: Annotated[float, Field(ge=0, lt=1)] | None = None
    quick: bool | None = None
    disjoint: bool | None = None
    track: Name | None = None

    def said(self) -> dict[str, Any]:
        """Return the choices that were made here."""
        kept = self.model_dump(include=set(SettingLists.model_fields), exclude_none=True)
        for name in kept.keys() & {"mask_counts", "rates"}:
            kept[name] = tuple(kept[name])
        return kept


# A text alone is a table's name.
OR_NAME = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)


class Named(StudiesPart):
    """A model, task or method, with a label that tells it from others of its name."""

    name: Name
    label: Name | None = None


class ModelEntry(Named):
    """A model, and how it is loaded. Code of its own is allowed on the command line only."""

    device: Name = "auto"
    dtype: Name = "auto"
    revision: Name | None = None
    projections: Name | None = None
    quantize: Name | None = None
    gguf: Name | None = None
    batch_size: Whole | None = None
    engine: Name = PACKED


class TaskEntry(Named, SettingLists):
    """A task of lm-eval, caploc's own, or the path of a YAML."""


class MethodEntry(Named, SettingLists):
    """A method of `caploc locate`."""


class Override(SettingLists):
    """Choices for the studies of these models, tasks, methods (by label) and seeds; all if absent.

    With `skip` they are left out.
    """

    models: Some[Name] | None = None
    tasks: Some[Name] | None = None
    methods: Some[Name] | None = None
    seeds: Some[Seed] | None = None
    skip: bool = False


class StudyFile(StudiesPart):
    """Every model with every task, method and seed."""

    out: Name | None = None
    models: Some[Annotated[ModelEntry, OR_NAME]]
    tasks: Some[Annotated[TaskEntry, OR_NAME]]
    methods: Some[Annotated[MethodEntry, OR_NAME]] = [MethodEntry(name="scan")]
    seeds: Some[Seed] = [0]
    settings: SettingLists = SettingLists()
    overrides: list[Override] = []

    def labels(self, kind: str) -> list[str]:
        """Return the labels of models, tasks or methods in order: names where none is given."""
        return [entry.label or entry.name for entry in getattr(self, kind)]

    def twice(self) -> Iterator[str]:
        """Yield what is named twice, in sentences."""
        for kind in ("models", "tasks", "methods"):
            for label, times in Counter(self.labels(kind)).items():
                if times > 1:
                    yield (
                        f"{kind}: {label!r} is there {times} times; give each a `label` of its "
                        "own, or name it once."
                    )
        for seed, times in Counter(self.seeds).items():
            if times > 1:
                yield f"seeds: {seed} is there {times} times; name it once."

    def idle(self) -> Iterator[str]:
        """Yield overrides that speak of nothing there is, in sentences."""
        for place, override in enumerate(self.overrides):
            for kind in ("models", "tasks", "methods"):
                known = self.labels(kind)
                for label in getattr(override, kind) or ():
                    if label not in known:
                        yield (
                            f"overrides[{place}].{kind}: {label!r} is no label here; there are "
                            f"{', '.join(known)}."
                        )
            for seed in set(override.seeds or ()) - set(self.seeds):
                listed = ", ".join(map(str, self.seeds))
                yield f"overrides[{place}].seeds: {seed} is no seed here; there are {listed}."


@dataclass(frozen=True)
class Place:
    """Where in the matrix a study stands: labels of model, task and method, and the seed."""

    models: str
    tasks: str
    methods: str
    seeds: int

    def meant_by(self, override: Override) -> bool:
        wanted = {kind: getattr(override, kind) for kind in vars(self)}
        return all(
            labels is None or getattr(self, kind) in labels for kind, labels in wanted.items()
        )


def expanded(file: StudyFile, start: Path, allowed: Allowed) -> Iterator[tuple[Place, Study]]:
    """Yield every study of the file, model by model; its paths are seen from the folder `start`."""
    for model, task, method, seed in product(file.models, file.tasks, file.methods, file.seeds):
        place = Place(
            model.label or model.name, task.label or task.name, method.label or method.name, seed
        )
        meant = [override for override in file.overrides if place.meant_by(override)]
        if any(override.skip for override in meant):
            continue
        said: dict[str, Any] = {"seed": seed}
        for layer in (file.settings, task, method, *meant):
            said |= layer.said()
        options = model_options(model, start, allowed)
        yield place, study_of(options, (task.name, method.name), said, allowed, start)


def model_options(entry: ModelEntry, start: Path, allowed: Allowed) -> ModelOptions:
    """Turn a model of the file into what every command takes."""
    loading = entry.model_dump(exclude={"name", "label", "engine"})
    return ModelOptions(
        placed(entry.name, start),
        trust_remote_code=allowed.remote_code,
        workers=allowed.workers,
        backend=entry.engine,
        **loading,
    )


def study_of(
    model: ModelOptions, names: tuple[str, str], said: dict[str, Any], allowed: Allowed, start: Path
) -> Study:
    """Build a study of a task with a method from what was said of it, its seed too."""
    task, method = names
    mode = Mode(said.pop("mode", ZERO), said.pop("corrupted", None), said.pop("positions", None))
    if mode.corrupted is not None:
        mode = replace(mode, corrupted=file_place(mode.corrupted, start))
    said.setdefault("also", () if mode.name == PATCH else default_others(task))
    data = {
        split: file if file == PACKAGED else str((start / at_home(file)).absolute())
        for split, file in said.pop("data", {}).items()
    }
    # what is said of all studies may name the task of one
    also, spare, twins = (
        tuple(file_place(name, start) for name in said.pop(key, ()) if name != task)
        for key in ("also", "spare", "twins")
    )
    settings, options = (
        {each.name: said.pop(each.name) for each in fields(kind) if each.name in said}
        for kind in (Settings, TaskOptions)
    )
    return Study(
        model=model,
        task=file_place(task, start),
        method=method,
        settings=Settings(**settings),
        options=TaskOptions(data=data, allow_code=allowed.code, **options),
        other_tasks=also,
        spare=tuple(name for name in spare if not are_twins(name, task)),
        twins=twins,
        exclude=tuple(file_place(each, start, ".json") for each in said.pop("exclude", ())),
        mode=mode,
        **said,
    )


def file_place(given: str, start: Path, *endings: str) -> str:
    """Return what ends so (as a task's file), seen from `start`, as a whole path; else as it is."""
    is_file = given.endswith(endings or (".yaml", ".yml"))
    return str((start / at_home(given)).absolute()) if is_file else given


def grid_of(model: ModelOptions) -> Heads:
    """Return a model's heads, also of one too large for here: that fails its own studies only."""
    try:
        return model.check()
    except OutOfMemory:
        return replace(model, device=SPREAD).check()


def folder_names(places: list[Place]) -> list[str]:
    """Name a folder for each study by what tells it from the others, and always by its task."""
    kinds = ("models", "tasks", "methods", "seeds")
    told = [k for k in kinds if k == "tasks" or len({getattr(place, k) for place in places}) > 1]
    names = []
    for place in places:
        labels = vars(place) | {"seeds": f"seed{place.seeds}"}
        parts = [labels[kind] for kind in told]
        names.append(
            folder_name("-".join(Path(p).name if Path(p).is_absolute() else p for p in parts))
        )
    return names


MOST = 10_000  # studies
SHOWN = 60  # characters of a value that is wrong
FILES = (*JSON_FILES, LEDGER, REPORT, COMPARE, FIGURES)  # of a folder of results; and ROWS...
NAMED = 3  # studies named in a sentence that many of them share


@dataclass(frozen=True)
class Opened:
    """A study file that may run: its studies by the name of their folders."""

    studies: dict[str, Study]
    out: Path


def read_studies(path: Path, allowed: Allowed | None = None) -> Opened:
    """Read a file of studies.

    Paths in the file, that of the results too, are seen from the file's own folder. If it names no
    folder for results, that is the file's name in `runs`. Raises UserError, naming every mistake,
    in a line each.
    """
    content = read_toml(path)
    allowed = allowed or Allowed()
    file, mistakes = understood(content)
    studies: dict[str, Study] = {}
    if file is not None:
        mistakes += [*file.twice(), *file.idle()]
        count = len(file.models) * len(file.tasks) * len(file.methods) * len(file.seeds)
        if count > MOST:
            mistakes.append(f"the file asks for {count:,} studies; {MOST:,} are the most.")
        else:
            places = list(expanded(file, path.parent, allowed))
            mistakes += checked(file, path.parent, allowed, places)
            names = folder_names([place for place, _ in places])
            mistakes += clashes(names) if not mistakes else []
            studies = dict(zip(names, (study for _, study in places), strict=True))
            if not studies and not mistakes:
                mistakes.append("overrides skip every study; leave one.")
    if mistakes or file is None:
        mistakes = list(dict.fromkeys(mistakes))
        several = "s" * (len(mistakes) > 1)
        raise BadOption("\n  ".join([f"{path} has {len(mistakes)} mistake{several}:", *mistakes]))
    out = path.parent / at_home(file.out) if file.out else Path("runs") / path.stem
    return Opened(studies, out)


def understood(content: dict[str, Any]) -> tuple[StudyFile | None, list[str]]:
    """The file, and what is wrong with its keys and values.

    What is wrong is taken out and the rest read again, so that it can be checked too; None where
    nothing is left that makes sense.
    """
    mistakes: list[str] = []
    while True:
        try:
            return StudyFile.model_validate(content), mistakes
        except ValidationError as error:
            found = error.errors(include_url=False)
            fresh = [said for said in map(describe_mistake_at, found) if said not in mistakes]
            places = [each["loc"] for each in found]
        mistakes += fresh
        if not fresh or not any([removed(content, place) for place in sorted(places)[::-1]]):
            return None, mistakes


def removed(content: Any, place: Sequence[int | str]) -> bool:
    """Take a value out of nested tables and lists; whether there was one."""
    *parents, last = place
    try:
        for key in parents:
            content = content[key]
        del content[last]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def describe_mistake_at(error: ErrorDetails) -> str:
    """One mistake of key or value: where it is, what it is and what would be right."""
    place = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return f"{place} is missing."
    if error["type"] == "extra_forbidden":
        known = list_keys(StudyFile, error["loc"][:-1])
        near = nearest(known, str(error["loc"][-1]))
        hint = f" Did you mean {near!r}?" if near else f" Known: {', '.join(known)}."
        return f"{place}: there is no such key.{hint}"
    value = repr(error["input"])
    value = value if len(value) <= SHOWN else f"{value[:SHOWN]}..."
    said = error["msg"].replace("Input should be", "it must be")
    return f"{place} = {value}: {said[0].lower()}{said[1:]}."


def checked(
    file: StudyFile, start: Path, allowed: Allowed, places: Sequence[tuple[Place, Study]]
) -> list[str]:
    """What is wrong with models, methods, tasks and their settings, in sentences."""
    found = Mistakes()
    grids: dict[str, Heads | None] = {}
    for number, label in enumerate(file.labels("models")):
        asked = model_options(file.models[number], start, allowed)
        grids[label] = found.of(f"models[{number}]", partial(grid_of, asked))
    for number, method in enumerate(file.methods):
        found.of(f"methods[{number}].name", partial(pick, METHODS, method.name, "method"))
    for place, study in places:
        check_study(place, study, grids.get(place.models), found)
        for name in study.named_tasks:
            found.of(f"tasks: {place.tasks}", partial(allowed.check_task, "The file", name))
    return list(found.sentences())


class Mistakes:
    """Sentences, and what each is about; one said of many is said once."""

    def __init__(self) -> None:
        self.about: dict[str, list[str]] = {}

    def of(self, place: str, attempt: Callable[[], Any]) -> Any:
        """What the attempt returns; None, and its sentence noted, if it is refused."""
        try:
            return attempt()
        except CaplocError as error:
            said = re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), str(error))
            places = self.about.setdefault(said, [])
            if place not in places:
                places.append(place)
            return None

    def sentences(self) -> Iterator[str]:
        """Each with the first of the places that it is about."""
        for said, places in self.about.items():
            more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
            yield f"{'; '.join(places[:NAMED])}{more}: {said}"


def check_study(place: Place, study: Study, grid: Heads | None, found: Mistakes) -> None:
    """Everything that `Study.check` refuses, all of it, with each model looked at once."""
    seed = f" with seed {place.seeds}" if place.seeds else ""
    about = f"{place.methods} for {place.tasks} on {place.models}{seed}"
    before = len(found.about)
    for check in study.checks():
        found.of(about, check)
    if study.method in METHODS:
        found.of(about, study.with_twins().check_sparing)
    named = dict.fromkeys(study.named_tasks[1:], f"also of {place.tasks}")
    for name, where in (named | {study.task: f"tasks: {place.tasks}"}).items():
        found.of(where, partial(check_task_name, name, study.options))
    if grid is not None and study.method in METHODS and len(found.about) == before:
        found.of(about, partial(study.sized, grid.size))


def clashes(names: Sequence[str]) -> list[str]:
    """Studies whose folders would have one name, capitals aside, or that of a file beside them."""
    folded = Counter(name.casefold() for name in names)
    return [
        f"a study's folder cannot be called {name!r}, as a file beside it is; give its model, task "
        "or method another label."
        for name in folded
        if name.removesuffix(".part") in FILES or name.startswith(ROWS)
    ] + [
        f"{times} studies would lie in one folder, {name!r}; give models, tasks or methods labels "
        "that differ in letters and digits."
        for name, times in folded.items()
        if times > 1
    ]
