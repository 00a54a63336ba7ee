"""What a study file may say, and the studies that it means.

Its keys are the options of `caploc locate`, with `_` for `-`; every model is asked with every task,
method and seed.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from caploc.components import Heads, find_grid
from caploc.declaration import Study
from caploc.errors import BadOption, CaplocError, OutOfMemory, list_keys, nearest
from caploc.files import read_toml
from caploc.folder import JSON_FILES, LEDGER, ROWS
from caploc.models.placement import SPREAD
from caploc.naming import are_twins, at_home, folder_name
from caploc.options import (
    METHODS,
    Flag,
    ModelFields,
    StudyFields,
    build,
    describe,
    flags,
    with_general_task,
)
from caploc.report.figures import FIGURES
from caploc.report.templates import COMPARE, REPORT
from caploc.tasks.catalog import check_task_name
from caploc.workbench import Allowed, ModelOptions

Seed = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]  # one or more


class StudiesPart(BaseModel):
    """A table of the file: no key that is not known, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def said(self) -> dict[str, Any]:
        """Return the options that were chosen here."""
        return self.model_dump(include={*flags(StudyFields)}, exclude_none=True)


def table(name: str, base: Any, known: Mapping[str, Flag], *, beside: Sequence[str] = ()) -> Any:
    """Make the model of a table whose keys are options as they are declared, none of them needed.

    Those named `beside`, and those to trust, which a file cannot give, are no keys.
    """
    keys: dict[str, Any] = {
        each.name: (each.type | None, None)
        for each in known.values()
        if each.option.help and not each.option.trust and each.name not in beside
    }
    return create_model(name, __base__=base, **keys)


ABOUT_MODEL = [*flags(ModelFields)]
CHOICES = {name: flag for name, flag in flags(StudyFields).items() if name not in ABOUT_MODEL}


class Named(StudiesPart):
    """A model, task or method, with a label that tells it from others of its name."""

    name: Name
    label: Name | None = None


class Meant(StudiesPart):
    """The studies of these models, tasks, methods (by label) and seeds; all if absent.

    With `skip` they are left out.
    """

    models: Some[Name] | None = None
    tasks: Some[Name] | None = None
    methods: Some[Name] | None = None
    seeds: Some[Seed] | None = None
    skip: bool = False


LABELLED = ("models", "tasks", "methods")
LAID = ("task", "method", "seed")  # what the file has lists of
if TYPE_CHECKING:

    class SettingLists(StudiesPart):
        """Options of every study."""

    class Entry(Named):
        """A task or method, with options of its own."""

    class Override(Meant):
        """Options of some studies."""

    class ModelEntry(Named):
        """A model, and how it is loaded."""
else:
    SettingLists = table("SettingLists", StudiesPart, CHOICES, beside=LAID)
    Entry = table("Entry", Named, CHOICES, beside=LAID)
    Override = table("Override", Meant, CHOICES, beside=LAID)
    ModelEntry = table("ModelEntry", Named, flags(ModelFields), beside=["model"])


class StudyFile(StudiesPart):
    """Every model with every task, method and seed."""

    out: Name | None = None
    models: Some[ModelEntry]
    tasks: Some[Entry]
    methods: Some[Entry] = [Entry(name=METHODS[0])]
    seeds: Some[Seed] = [0]
    settings: SettingLists = SettingLists()
    overrides: list[Override] = []

    def labels(self, kind: str) -> list[str]:
        """Return the labels of models, tasks or methods in order: names where none is given."""
        return [entry.label or entry.name for entry in getattr(self, kind)]

    def twice(self) -> Iterator[str]:
        """Yield what is named twice, in sentences."""
        for kind in LABELLED:
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
            for kind in LABELLED:
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

    @property
    def about(self) -> str:
        """The study in words."""
        seed = f" with seed {self.seeds}" if self.seeds else ""
        return f"{self.methods} for {self.tasks} on {self.models}{seed}"

    def meant_by(self, override: Meant) -> bool:
        wanted = {kind: getattr(override, kind) for kind in vars(self)}
        return all(
            labels is None or getattr(self, kind) in labels for kind, labels in wanted.items()
        )


def expanded(
    file: StudyFile, start: Path, allowed: Allowed, found: "Mistakes"
) -> Iterator[tuple[Place, Study]]:
    """Yield every study of the file, model by model; its paths are seen from the folder `start`.

    One whose options do not fit together is a mistake.
    """
    for model, task, method, seed in product(file.models, file.tasks, file.methods, file.seeds):
        place = Place(
            model.label or model.name, task.label or task.name, method.label or method.name, seed
        )
        meant = [override for override in file.overrides if place.meant_by(override)]
        if any(override.skip for override in meant):
            continue
        said: dict[str, Any] = {"task": task.name, "method": method.name, "seed": seed}
        for layer in (file.settings, model, task, method, *meant):
            said |= layer.said()
        # what is said of all studies may name the task of one
        for key in said.keys() & {"also", "spare", "twin"}:
            said[key] = tuple(name for name in said[key] if name != task.name)
        if "spare" in said:
            said["spare"] = tuple(one for one in said["spare"] if not are_twins(one, task.name))
        said |= {"allow_code": allowed.code} | asked_of(model, allowed)
        study = found.of(place.about, partial(build, Study, with_general_task(said), start))
        if study is not None:
            yield place, study


def asked_of(model: Named, allowed: Allowed) -> dict[str, Any]:
    """Return what a model of the file is loaded by, with what the command line allows."""
    more = {"trust_remote_code": allowed.remote_code, "workers": allowed.workers}
    return model.said() | {"model": model.name} | more


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
            found = Mistakes()
            places = list(expanded(file, path.parent, allowed, found))
            mistakes += checked(file, path.parent, allowed, places, found)
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
    """Return the file, or None and all that is wrong with its keys and values."""
    for kind in LABELLED:
        if isinstance(listed := content.get(kind), list):  # a text alone is a table's name
            named = [{"name": one} if isinstance(one, str) else one for one in listed]
            content = content | {kind: named}
    try:  # as JSON, whose lists are tuples too and whose values are of one type each
        return StudyFile.model_validate_json(json.dumps(content, default=str)), []
    except ValidationError as error:
        said = map(describe_mistake_at, error.errors(include_url=False))
        return None, list(dict.fromkeys(said))


def as_keys(sentence: str) -> str:
    """Name options as a file does."""
    return re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), sentence)


def describe_mistake_at(error: ErrorDetails) -> str:
    """One mistake of key or value: where it is, what it is and what would be right."""
    place = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in error["loc"]).lstrip(".")
    own = error.get("ctx", {}).get("error")
    if isinstance(own, CaplocError):
        return f"{place}: {as_keys(str(own))}"
    if error["type"] == "missing":
        return f"{place} is missing."
    if error["type"] == "extra_forbidden":
        known = list_keys(StudyFile, error["loc"][:-1])
        near = nearest(known, str(error["loc"][-1]))
        hint = f" Did you mean {near!r}?" if near else f" Known: {', '.join(known)}."
        return f"{place}: there is no such key.{hint}"
    named = [flags(StudyFields)[str(k)] for k in error["loc"] if k in flags(StudyFields)]
    return f"{place} {describe(error, named[-1] if named else None)}"


def checked(
    file: StudyFile,
    start: Path,
    allowed: Allowed,
    places: Sequence[tuple[Place, Study]],
    found: "Mistakes",
) -> list[str]:
    """What is wrong with models, methods, tasks and their settings, in sentences."""
    grids: dict[str, Heads | None] = {}
    for number, label in enumerate(file.labels("models")):
        said = asked_of(file.models[number], allowed)
        asked = build(ModelOptions, said, start)
        grids[label] = found.of(f"models[{number}]", partial(grid_of, asked))
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
            said = as_keys(str(error))
            places = self.about.setdefault(said, [])
            if place not in places:
                places.append(place)
            return None

    def sentences(self) -> Iterator[str]:
        """Each with the first of the places that it is about."""
        for said, places in self.about.items():
            more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
            yield f"{'; '.join(places[:NAMED])}{more}: {said}"


def check_study(place: Place, study: Study, heads: Heads | None, found: Mistakes) -> None:
    """Everything that `Study.check` refuses, all of it, with each model looked at once."""
    about = place.about
    before = len(found.about)
    for check in study.checks():
        found.of(about, check)
    found.of(about, study.with_twins().check_sparing)
    named = dict.fromkeys(study.named_tasks[1:], f"also of {place.tasks}")
    for name, where in (named | {study.task: f"tasks: {place.tasks}"}).items():
        found.of(where, partial(check_task_name, name, study.options))
    if heads is not None and len(found.about) == before:
        found.of(about, lambda: study.sized(find_grid(study.components, heads)))


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
