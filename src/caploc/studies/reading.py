"""Read a study file and name every mistake in it, before any model is loaded."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from caploc.errors import BadOption, CaplocError, UserError
from caploc.files import read_text
from caploc.folder import JSON_FILES, LEDGER, ROWS
from caploc.heads import HeadGrid
from caploc.lookup import nearest, pick
from caploc.naming import at_home
from caploc.report.plots import FIGURES
from caploc.report.templates import COMPARE, REPORT
from caploc.search import METHODS
from caploc.studies.file import (
    MethodEntry,
    ModelEntry,
    Override,
    Place,
    SettingLists,
    StudyFile,
    TaskEntry,
    expanded,
    folder_names,
    grid_of,
    model_options,
)
from caploc.study import Study
from caploc.tasks.catalog import check_task_name
from caploc.workbench import Allowed

LONGEST = 2**20  # bytes of a file
MOST = 10_000  # studies
SHOWN = 60  # characters of a value that is wrong
FILES = (*JSON_FILES, LEDGER, REPORT, COMPARE, FIGURES)  # of a folder of results; and ROWS...
NAMED = 3  # studies named in a sentence that many of them share
TABLES: dict[str, type[BaseModel]] = {
    "models": ModelEntry,
    "tasks": TaskEntry,
    "methods": MethodEntry,
    "overrides": Override,
    "settings": SettingLists,
}


@dataclass(frozen=True)
class Opened:
    """A study file that may run: its studies by the name of their folders."""

    path: Path
    studies: dict[str, Study]
    out: Path


def read_studies(path: Path, allowed: Allowed | None = None) -> Opened:
    """Read a file of studies.

    Paths in the file, that of the results too, are seen from the file's own folder. If it names no
    folder for results, that is the file's name in `runs`. Raises UserError, naming every mistake,
    in a line each.
    """
    content = parse_tables(path)
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
        lines = "".join(f"\n  {mistake}" for mistake in dict.fromkeys(mistakes))
        number = len(dict.fromkeys(mistakes))
        raise BadOption(f"{path} has {number} mistake{'s' * (number > 1)}:{lines}")
    out = path.parent / at_home(file.out) if file.out else Path("runs") / path.stem
    return Opened(path, studies, out)


def parse_tables(path: Path) -> dict[str, Any]:
    """The file's tables; raises UserError if it is missing, too long, no text or no TOML."""
    try:
        return tomllib.loads(read_text(path, LONGEST, follow=True))
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; give the path of a study file.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no text in UTF-8 (byte {error.start}); save it as UTF-8."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no TOML: {error}.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); a study file is short text."
        ) from None


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
        table = TABLES.get(str(error["loc"][0]), StudyFile) if len(error["loc"]) > 1 else StudyFile
        known = list(table.model_fields)
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
    grids: dict[str, HeadGrid | None] = {}
    for number, model in enumerate(file.models):
        label = file.labels("models")[number]
        asked = model_options(model, start, allowed)
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


def check_study(place: Place, study: Study, grid: HeadGrid | None, found: Mistakes) -> None:
    """Everything that `Study.check` refuses, all of it, with each model looked at once."""
    seed = f" with seed {place.seeds}" if place.seeds else ""
    about = f"{place.methods} for {place.tasks} on {place.models}{seed}"
    before = len(found.about)
    attempts = (
        study.settings.check,
        study.options.check,
        partial(study.mode.check, study.model.device),
        partial(study.mode.check_beside, study.beside),
    )
    for attempt in attempts:
        found.of(about, attempt)
    names: Mapping[str, str] = {name: f"also of {place.tasks}" for name in study.named_tasks[1:]}
    for name, where in {**names, study.task: f"tasks: {place.tasks}"}.items():
        found.of(where, partial(check_task_name, name, study.options))
    if grid is not None and study.method in METHODS and len(found.about) == before:
        found.of(about, partial(study.sized, grid.size))


def clashes(names: Sequence[str]) -> list[str]:
    """Studies whose folders would have the same name, on a disk that knows no capitals.

    Files of the folder that they lie in have names, too.
    """
    folded = [name.casefold() for name in names]
    return [
        f"a study's folder cannot be called {name!r}, as a file beside it is; give its model, task "
        "or method another label."
        for name in dict.fromkeys(folded)
        if name.removesuffix(".part") in FILES or name.startswith(ROWS)
    ] + [
        f"{folded.count(name)} studies would lie in one folder, {name!r}; give models, tasks or "
        "methods labels that differ in letters and digits."
        for name in dict.fromkeys(folded)
        if folded.count(name) > 1
    ]
