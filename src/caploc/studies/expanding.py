"""From a study file to its studies: every model with every task, method and seed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from caploc.errors import OutOfMemory
from caploc.heads import HeadGrid
from caploc.models.placement import SPREAD
from caploc.naming import at_home, default_others, placed
from caploc.search import Settings
from caploc.studies.file import ModelEntry, Override, SettingLists, StudyFile
from caploc.study import Study
from caploc.sweep import folder_name
from caploc.tasks.catalog import TaskOptions
from caploc.tasks.paper.profanity import PACKAGED
from caploc.workbench import Allowed, ModelOptions

IN_SETTINGS = (
    "masks", "rate", "mask_counts", "rates", "budget", "goal", "opening", "recall", "top",
    "estimator",
)  # fmt: skip
IN_OPTIONS = ("outcome", "metric", "fewshot", "chat_template")
IN_STUDY = ("examples", "controls", "limit", "disjoint", "track")


@dataclass(frozen=True)
class Place:
    """Where in the matrix a study stands: labels of model, task and method, and the seed."""

    models: str
    tasks: str
    methods: str
    seeds: int

    def meant_by(self, override: Override) -> bool:
        """Whether the override speaks of this study."""
        return all(
            wanted is None or getattr(self, kind) in wanted
            for kind in ("models", "tasks", "methods", "seeds")
            for wanted in [getattr(override, kind)]
        )


def expanded(file: StudyFile, start: Path, allowed: Allowed) -> Iterator[tuple[Place, Study]]:
    """Every study of the file, model by model; paths in it are seen from the folder `start`."""
    for model, task, method, seed in product(file.models, file.tasks, file.methods, file.seeds):
        place = Place(
            model.label or model.name, task.label or task.name, method.label or method.name, seed
        )
        meant = [override for override in file.overrides if place.meant_by(override)]
        if any(override.skip for override in meant):
            continue
        said: dict[str, Any] = {}
        for layer in (file.settings, task, method, *meant):
            said |= SettingLists.said(layer)
        options = model_options(model, start, allowed)
        names = task.name, method.name
        yield place, study_of(options, names, seed, resolved(said, start), allowed, start)


def model_options(entry: ModelEntry, start: Path, allowed: Allowed) -> ModelOptions:
    """A model as every command takes it."""
    fields = entry.model_dump(exclude={"name", "label"})
    return ModelOptions(
        placed(entry.name, start),
        trust_remote_code=allowed.remote_code,
        workers=allowed.workers,
        **fields,
    )


def grid_of(model: ModelOptions) -> HeadGrid:
    """A model's heads, though its weights may not fit here: that fails its own studies only.

    Raises:
        UserError: if the model cannot be.
    """
    try:
        return model.check()
    except OutOfMemory:
        return replace(model, device=SPREAD).check()


def study_of(
    model: ModelOptions,
    names: tuple[str, str],
    seed: int,
    said: Mapping[str, Any],
    allowed: Allowed,
    start: Path,
) -> Study:
    """One study from what was said of it; `names` are those of task and method."""
    task, method = names
    settings = {name: said[name] for name in IN_SETTINGS if name in said}
    options = {name: said[name] for name in IN_OPTIONS if name in said}
    rest = {name: said[name] for name in IN_STUDY if name in said}
    others = said.get("also", default_others(task))
    return Study(
        model=model,
        task=task_place(task, start),
        method=method,
        settings=Settings(seed=seed, **settings),
        options=TaskOptions(data=said.get("data", {}), allow_code=allowed.code, **options),
        other_tasks=tuple(task_place(name, start) for name in others),
        **rest,
    )


def resolved(said: dict[str, Any], start: Path) -> dict[str, Any]:
    """Choices with lists as settings take them, and files seen from the folder `start`."""
    kept = dict(said)
    for name in ("mask_counts", "rates"):
        if name in kept:
            kept[name] = tuple(kept[name])
    if "data" in kept:
        kept["data"] = {
            split: file if file == PACKAGED else str((start / at_home(file)).absolute())
            for split, file in kept["data"].items()
        }
    return kept


def task_place(name: str, start: Path) -> str:
    """A task that is a file, seen from `start`, as an absolute path; others as they are."""
    is_file = name.endswith((".yaml", ".yml"))
    return str((start / at_home(name)).absolute()) if is_file else name


def folder_names(places: list[Place]) -> list[str]:
    """A folder name for each study: what tells it from the others, its task always."""
    varied = {
        kind: len({getattr(place, kind) for place in places}) > 1
        for kind in ("models", "methods", "seeds")
    }
    names = []
    for place in places:
        parts = [place.models] * varied["models"] + [place.tasks]
        parts += [place.methods] * varied["methods"]
        parts += [f"seed{place.seeds}"] * varied["seeds"]
        names.append(folder_name("-".join(map(shorten_path, parts))))
    return names


def shorten_path(label: str) -> str:
    """The last part of a path; other labels as they are."""
    return Path(label).name if Path(label).is_absolute() else label
