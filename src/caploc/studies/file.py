"""What a study file may say, and the studies that it means.

Its keys are the options of `caploc locate`, with `_` for `-`; every model is asked with every task,
method and seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from caploc.engine.backends import AUTO
from caploc.errors import OutOfMemory
from caploc.heads import HeadGrid
from caploc.models.placement import SPREAD
from caploc.modes import PATCH, ZERO, Mode
from caploc.naming import are_twins, at_home, default_others, folder_name, placed
from caploc.search import Settings
from caploc.study import Study
from caploc.tasks.catalog import TaskOptions
from caploc.tasks.paper.profanity import PACKAGED
from caploc.workbench import Allowed, ModelOptions

Whole = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]

IN_SETTINGS = (
    "masks", "rate", "mask_counts", "rates", "budget", "goal", "price", "amounts", "opening",
    "recall", "top", "estimator", "seed",
)  # fmt: skip
IN_MODE = ("corrupted", "positions")
IN_OPTIONS = ("outcome", "metric", "fewshot", "chat_template")


class StudiesPart(BaseModel):
    """A table of the file: no key that is not known, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SettingLists(StudiesPart):
    """What may be said of all studies, of a task, of a method, or of some studies; the last wins.

    What nobody says is as in `caploc locate`.
    """

    masks: Whole | None = None
    rate: Rate | None = None
    mask_counts: Annotated[list[Whole], Field(min_length=1)] | None = None
    rates: Annotated[list[Rate], Field(min_length=1)] | None = None
    examples: Whole | None = None
    budget: Whole | None = None
    goal: Literal["heads", "set", "specific"] | None = None
    price: Annotated[float, Field(gt=0, le=1)] | None = None
    amounts: Annotated[list[Rate], Field(min_length=1)] | None = None
    opening: Literal["auto", "likelihood", "masks"] | None = None
    recall: Annotated[float, Field(gt=0, le=1)] | None = None
    top: Whole | None = None
    estimator: Name | None = None
    outcome: Literal["metric", "logprob"] | None = None
    metric: Name | None = None
    fewshot: Annotated[int, Field(ge=0)] | None = None
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
    quick: bool | None = None
    disjoint: bool | None = None
    track: Name | None = None

    def said(self) -> dict[str, Any]:
        """Return the choices that were made here."""
        kept = self.model_dump(include=set(SettingLists.model_fields), exclude_none=True)
        lists = {
            name: tuple(kept[name]) for name in kept.keys() & {"amounts", "mask_counts", "rates"}
        }
        return kept | lists


# A text alone is a table's name.
OR_NAME = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)


class ModelEntry(StudiesPart):
    """A model, and how it is loaded. Code of its own is allowed on the command line only."""

    name: Name
    label: Name | None = None
    device: Name = "auto"
    dtype: Name = "auto"
    revision: Name | None = None
    projections: Name | None = None
    quantize: Name | None = None
    gguf: Name | None = None
    batch_size: Whole | None = None
    engine: Name = AUTO


class TaskEntry(SettingLists):
    """A task of lm-eval, caploc's own, or the path of a YAML."""

    name: Name
    label: Name | None = None


class MethodEntry(SettingLists):
    """A method of `caploc locate`."""

    name: Name
    label: Name | None = None


class Override(SettingLists):
    """Choices for the studies of these models, tasks, methods (by label) and seeds; all if absent.

    With `skip` they are left out.
    """

    models: Annotated[list[Name], Field(min_length=1)] | None = None
    tasks: Annotated[list[Name], Field(min_length=1)] | None = None
    methods: Annotated[list[Name], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    skip: bool = False


class StudyFile(StudiesPart):
    """Every model with every task, method and seed."""

    out: Name | None = None
    models: Annotated[list[Annotated[ModelEntry, OR_NAME]], Field(min_length=1)]
    tasks: Annotated[list[Annotated[TaskEntry, OR_NAME]], Field(min_length=1)]
    methods: Annotated[list[Annotated[MethodEntry, OR_NAME]], Field(min_length=1)] = [
        MethodEntry(name="adaptive")
    ]
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    settings: SettingLists = SettingLists()
    overrides: list[Override] = []

    def labels(self, kind: str) -> list[str]:
        """Return the labels of models, tasks or methods in order: names where none is given."""
        return [entry.label or entry.name for entry in getattr(self, kind)]

    def twice(self) -> Iterator[str]:
        """Yield what is named twice, in sentences."""
        for kind in ("models", "tasks", "methods"):
            labels = self.labels(kind)
            for label in dict.fromkeys(label for label in labels if labels.count(label) > 1):
                yield (
                    f"{kind}: {label!r} is there {labels.count(label)} times; give each a `label` "
                    "of its own, or name it once."
                )
        for seed in dict.fromkeys(seed for seed in self.seeds if self.seeds.count(seed) > 1):
            yield f"seeds: {seed} is there {self.seeds.count(seed)} times; name it once."

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
        """Tell whether the override speaks of this study."""
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
    fields = entry.model_dump(exclude={"name", "label", "engine"})
    return ModelOptions(
        placed(entry.name, start),
        trust_remote_code=allowed.remote_code,
        workers=allowed.workers,
        backend=entry.engine,
        **fields,
    )


def study_of(
    model: ModelOptions, names: tuple[str, str], said: dict[str, Any], allowed: Allowed, start: Path
) -> Study:
    """Build a study of a task with a method from what was said of it, its seed too."""
    task, method = names
    mode = Mode(said.pop("mode", ZERO), **{name: said.pop(name, None) for name in IN_MODE})
    if mode.corrupted is not None:
        mode = replace(mode, corrupted=file_place(mode.corrupted, start))
    said.setdefault("also", () if mode.name == PATCH else default_others(task))
    data = {
        split: file if file == PACKAGED else str((start / at_home(file)).absolute())
        for split, file in said.pop("data", {}).items()
    }
    # what is said of all studies may name the task of one
    beside = {
        key: [file_place(name, start) for name in said.pop(key, ()) if name != task]
        for key in ("also", "spare", "twins")
    }
    beside["spare"] = [name for name in beside["spare"] if not are_twins(name, task)]
    settings = {name: said.pop(name) for name in IN_SETTINGS if name in said}
    options = {name: said.pop(name) for name in IN_OPTIONS if name in said}
    return Study(
        model=model,
        task=file_place(task, start),
        method=method,
        settings=Settings(**settings),
        options=TaskOptions(data=data, allow_code=allowed.code, **options),
        other_tasks=tuple(beside["also"]),
        spare=tuple(beside["spare"]),
        twins=tuple(beside["twins"]),
        exclude=tuple(file_place(each, start, ".json") for each in said.pop("exclude", ())),
        mode=mode,
        **said,
    )


def file_place(given: str, start: Path, *endings: str) -> str:
    """Return what ends so (as a task's file), seen from `start`, as a whole path; else as it is."""
    is_file = given.endswith(endings or (".yaml", ".yml"))
    return str((start / at_home(given)).absolute()) if is_file else given


def grid_of(model: ModelOptions) -> HeadGrid:
    """Return a model's heads, though its weights may not fit here: that fails its own studies only.

    Raises UserError if the model cannot be.
    """
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
