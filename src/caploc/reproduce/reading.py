"""Presets from TOML files: those that come with caploc, and a reader's own."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from caploc.errors import BadData, UnknownName
from caploc.files import read_text
from caploc.lookup import unknown
from caploc.naming import placed
from caploc.reproduce.preset import Benchmark, Preset, PresetModel, PresetPart, SearchSpec, Tokens
from caploc.tasks.paper.profanity import PACKAGED

LONGEST = 2**20  # bytes of a preset
FOLDER = Path(__file__).parent / "presets"
TABLES: dict[str, type[PresetPart]] = {
    "model": PresetModel,
    "search": SearchSpec,
    "benchmark": Benchmark,
    "tokens": Tokens,
}


def read_preset(name: str) -> Preset:
    """A preset that comes with caploc (`paper`, `demo`), or one from a TOML file.

    Files and folders that it names are looked for beside it first.

    Raises:
        UnknownName: if there is no such preset or file.
        BadData: if the file is not a preset; every mistake is named.
    """
    path, content = preset_file(name, FOLDER, "docs/reproduce.md")
    try:
        return resolve_paths(Preset.model_validate(content), path.parent)
    except ValidationError as error:
        mistakes = "; ".join(describe_mistake(dict(mistake), content) for mistake in error.errors())
        raise BadData(f"{path} is not a preset: {mistakes}.") from error


def preset_file(name: str, folder: Path, page: str) -> tuple[Path, dict[str, Any]]:
    """The file of a preset and what it holds: one of the folder's, or a path; `page` tells how.

    Raises:
        UnknownName: if there is no such preset or file.
        BadData: if the file is not TOML.
    """
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = known.get(name) or Path(name).expanduser()
    if not path.is_file():
        raise UnknownName(
            f"There is no preset {name!r}; choose one of {', '.join(known)}, or give the path of a "
            f"TOML file such as those ({page})."
        )
    try:
        return path, tomllib.loads(read_text(path, LONGEST, follow=True))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        said = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise BadData(f"{path} is not TOML: {said}.") from error


def resolve_paths(preset: Preset, folder: Path) -> Preset:
    """The same with absolute paths for the files and folders that lie beside it."""

    def file(name: str) -> str:
        place = (folder / Path(name).expanduser()).absolute()
        return str(place) if place.is_file() and name != PACKAGED else name

    def task(name: str) -> str:
        return file(name) if name.endswith((".yaml", ".yml")) else name

    models = [
        model.model_copy(update={"name": placed(model.name, folder)}) for model in preset.models
    ]
    benchmarks = [
        benchmark.model_copy(
            update={
                "task": task(benchmark.task),
                "identify": benchmark.identify and task(benchmark.identify),
                "data": {split: file(name) for split, name in benchmark.data.items()},
            }
        )
        for benchmark in preset.benchmarks
    ]
    return preset.model_copy(update={"models": tuple(models), "benchmarks": tuple(benchmarks)})


def describe_mistake(mistake: dict[str, Any], content: dict[str, Any]) -> str:
    """One of pydantic's findings, and the place of it in the words of the file."""
    *tables, key = mistake["loc"] or ("",)
    if mistake["type"] == "extra_forbidden":
        kinds = [table for table in tables if isinstance(table, str)]
        fields = (TABLES[kinds[-1]] if kinds else Preset).model_fields
        names = [field.alias or name for name, field in fields.items()]
        return where(tables, content) + str(unknown(names, str(key), "key")).rstrip(".")
    message = mistake["msg"].removeprefix("Value error, ").rstrip(".")
    if mistake["type"] == "missing":
        message = "is missing"
    return f"{where(tables, content)}{key} {message}".strip()


def where(tables: list[str | int], content: dict[str, Any]) -> str:
    """The table that a key stands in, by its label if it has one."""
    words: list[str] = []
    inside: Any = content
    for step in tables:
        inside = inside[step]
        label = inside.get("label") if isinstance(inside, dict) else None
        if isinstance(step, str):
            words.append(step)
        else:
            words.append(repr(label) if label else f"number {step + 1}")
    return " ".join(words) + ": " if words else ""
