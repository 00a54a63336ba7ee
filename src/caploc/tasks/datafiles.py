"""Where a task's data come from: readers that only read, files that end, and the user's own.

`datasets` has readers that unpickle (`pandas` before version 5), speak to databases (`sql`) or
unpack archives; a task file may name any of them, with any settings. What is refused here raises
BadData, and BadOption where an option of the command line is at fault.
"""

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lm_eval.tasks._index import Entry

from caploc.errors import BadData, BadOption
from caploc.files import check_regular
from caploc.naming import at_home, is_file, is_folder

READERS = ("json", "csv", "parquet", "arrow", "text")
DATA_ENDINGS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
# Files of a folder that `datasets` does not read as examples.
BESIDE = ("", ".md", ".yaml", ".yml", ".gitattributes")
MOST_FILES = 10_000  # of a folder that are looked at
SCHEMES = ("http", "https", "hf")
HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# What `datasets.load_dataset` and the readers take that says which text is read and how. Not among
# them: file systems (`storage_options`), places to write, and the user's token.
SETTINGS = frozenset(
    "data_files data_dir revision split field encoding encoding_errors chunksize sep delimiter "
    "header names column_names usecols skiprows quotechar quoting escapechar doublequote comment "
    "na_values keep_default_na thousands decimal lineterminator columns batch_size sample_by "
    "keep_linebreaks trust_remote_code streaming".split()
)


def check_settings(file: str, settings: Any) -> None:
    """Refuse `dataset_kwargs` that do more than say which text is read and how."""
    if not isinstance(settings, dict):
        raise BadData(f"{file}: dataset_kwargs must hold settings by name, such as data_files.")
    if strange := [str(key) for key in settings if key not in SETTINGS]:
        raise BadData(
            f"{file}: dataset_kwargs may not hold {strange[0][:60]!r}; allowed are "
            f"{', '.join(sorted(SETTINGS))}."
        )
    for place in list_places(settings.get("data_files")):
        check_place(file, place)
    if (folder := settings.get("data_dir")) is not None:
        check_place(file, folder)
        check_data_folder(file, at_home(folder))


def check_reader(file: str, config: Mapping[str, Any]) -> None:
    """Refuse a task that names a reader and no files: `datasets` would take what lies around."""
    settings = config.get("dataset_kwargs")
    named = isinstance(settings, dict) and (settings.get("data_files") or settings.get("data_dir"))
    if config.get("dataset_path") in READERS and not named:
        raise BadData(
            f"{file} reads {config['dataset_path']} and names no file; add `dataset_kwargs: "
            "{data_files: {test: FILE}}`, or --data test=FILE."
        )


def check_path(file: str, path: Any) -> None:
    """Refuse a `dataset_path` that is no reader, data set of the Hub or folder of plain data."""
    allowed = (
        f"allowed are {', '.join(READERS)}, a data set of the Hub (`owner/name`), and a folder of "
        f"such files ({', '.join(DATA_ENDINGS)})."
    )
    if not isinstance(path, str):
        raise BadData(f"{file}: dataset_path {str(path)[:60]!r} is no text; {allowed}")
    if path in READERS:
        return
    folder = at_home(path)
    if is_folder(folder):
        check_data_folder(file, folder)
        return
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if path in _PACKAGED_DATASETS_MODULES or not HUB.fullmatch(path):
        raise BadData(f"{file}: dataset_path {path[:200]!r} is not allowed; {allowed}")


def check_data_folder(file: str, folder: Path) -> None:
    """Refuse a folder of data that holds anything but plain data, or too much."""
    for number, each in enumerate(folder.rglob("*")):
        if number >= MOST_FILES:
            raise BadData(f"{file}: the folder {folder} has more than {MOST_FILES:,} files.")
        check_readable(file, each)
        if each.suffix.lower() not in (*DATA_ENDINGS, *BESIDE) and not is_folder(each):
            raise BadData(
                f"{file}: the data folder {folder} holds {each.name!r}; allowed are "
                f"{', '.join(DATA_ENDINGS)}."
            )


def list_places(value: Any) -> Iterator[Any]:
    """Yield the single places in `data_files`: one, a list, or those of each split."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from list_places(part)
    elif value is not None:
        yield value


def check_place(file: str, place: Any) -> None:
    """Refuse a data file behind a chain of file systems, of another protocol, or without an end."""
    if not isinstance(place, str):
        raise BadData(f"{file}: the data file {str(place)[:60]!r} is no path.")
    try:
        scheme = urlsplit(place).scheme if "://" in place else ""
    except ValueError:
        scheme = "unknown"
    if "::" in place or (scheme and scheme not in SCHEMES):
        raise BadData(
            f"{file}: the data file {place[:200]!r} is not allowed; give a path, or an address "
            f"that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}."
        )
    if scheme:
        return
    try:
        found: Iterable[str] = [place]
        if glob.has_magic(place):
            check_pattern(file, place)
            found = glob.iglob(place, recursive=True)
        for each in found:
            check_readable(file, Path(each))
    except ValueError as error:
        raise BadData(f"{file}: the data file {place[:200]!r} is no path ({error}).") from error


def check_pattern(file: str, pattern: str) -> None:
    """Refuse a pattern of data files that leads through too many: `/**/*.json` reads the disk."""
    parts = Path(pattern).parts
    plain = list(takewhile(lambda part: not glob.has_magic(part), parts))
    start, looked = Path(*plain), 0
    for place, folders, files in os.walk(start, followlinks=True):
        looked += len(folders) + len(files)
        if looked > MOST_FILES:
            raise BadData(
                f"{file}: {pattern[:200]!r} leads through more than {MOST_FILES:,} files; begin it "
                "with the folder that holds the data."
            )
        depth = len(plain) + len(Path(place).relative_to(start).parts) + 1
        if depth >= len(parts) and "**" not in pattern:
            folders.clear()


def check_readable(file: str, path: Path) -> None:
    """Refuse a pipe, device or socket; what is missing is missed where it is read."""
    if is_folder(path):
        return
    try:
        check_regular(os.stat(path), path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadData(f"{file}: the data file {path} cannot be read: {error.strerror}.") from error


QUOTED = 60  # characters of a line that a sentence repeats
PARQUET = b"PAR1"  # how a Parquet file begins, and how it ends
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")  # of a definition


def definition(entry: Entry) -> dict[str, Any]:
    """Return what a task's YAML says, includes followed and functions left as their names."""
    return entry.cfg or {}


def data_format(file: Path) -> str:
    """Return the reader for a data file, by its ending; raises BadOption if it has none."""
    if file.suffix not in FORMATS:
        raise BadOption(f"--data files end in {', '.join(FORMATS)}; got {file.name!r}.")
    return FORMATS[file.suffix]


def check_data_file(name: str, file: Path) -> None:
    """Refuse a file that is not there or holds nothing."""
    if not is_file(file):
        raise BadData(f"--data {name}={file}: there is no such file.")
    if file.stat().st_size == 0:
        raise BadData(f"--data {name}={file}: the file is empty.")


def check_data_files(files: Mapping[str, str]) -> None:
    """Refuse files that are missing, empty, or of a format that is unknown or not the others'."""
    formats = {data_format(Path(file)) for file in files.values()}
    for split, file in files.items():
        check_data_file(split, Path(file))
    if len(formats) > 1:
        raise BadOption("All --data files of one run must be of one format.")


def data_overrides(
    name: str, entries: Sequence[Entry], files: Mapping[str, str], fewshot: int | None
) -> dict[str, Any] | None:
    """Return the changes to a task's definition that make it read the given files.

    `entries` are the tasks behind the name. Raises BadOption if the name is a group; BadData if a
    split that the task needs is not given.
    """
    if not files:
        return None
    if len(entries) != 1 or entries[0].yaml_path is None:
        raise BadOption(
            f"--data replaces the data of one task, and {name} is a group of {len(entries)}; "
            f"name one of them, such as {entries[0].name if entries else name}."
        )
    config = definition(entries[0])
    evaluated = evaluated_split(config)
    shots = fewshot if fewshot is not None else config.get("num_fewshot") or 0
    wanted = [evaluated, shots_split(config) if shots else None]
    needed = {str(split) for split in wanted if split}
    known = {str(config[split]) for split in SPLITS if config.get(split)} | needed
    if strange := sorted(set(files) - known):
        raise BadOption(
            f"--data {strange[0]}=FILE: task {name} has no split {strange[0]!r}; it has "
            f"{', '.join(sorted(known))}."
        )
    if missing := sorted(needed - set(files)):
        raise BadData(
            f"Task {name} also reads split {missing[0]!r}"
            f"{f' for its {shots} examples in the prompt' if missing[0] != evaluated else ''}; "
            f"add --data {missing[0]}=FILE{'' if missing[0] == evaluated else ' or --fewshot 0'}."
        )
    return {
        "dataset_path": data_format(Path(next(iter(files.values())))),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": dict(files)},
        "custom_dataset": None,
    } | {split: config.get(split) if config.get(split) in files else None for split in SPLITS}


def has_training(entries: Sequence[Entry], files: Mapping[str, str]) -> bool:
    """Tell whether there is one task behind the name, with a training split in the files (if any).

    A split that the task is evaluated on is none.
    """
    if len(entries) != 1 or entries[0].yaml_path is None:
        return False
    config = definition(entries[0])
    training = config.get("training_split")
    return (
        bool(training) and training != evaluated_split(config) and training in (files or [training])
    )


def training_instead(
    name: str, entries: Sequence[Entry], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the change that makes a task ask its training examples; refuse one without any."""
    if not has_training(entries, files):
        raise BadOption(
            f"Task {name} has no training split{' among the --data files' if files else ''}; "
            "name one task that has."
        )
    config = definition(entries[0])
    training = config["training_split"]
    changes = {"test_split": training}
    if shots_split(config) == training:
        # said aloud, so that lm-eval leaves an example out of its own prompt
        changes["fewshot_split"] = training
    return changes


def evaluated_split(config: Mapping[str, Any]) -> str | None:
    """Return the split that a task is scored on, None if it names none."""
    return config.get("test_split") or config.get("validation_split")


def shots_split(config: dict[str, Any]) -> str | None:
    """Return the split that examples in the prompt come from; None: they are in the YAML."""
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("samples") is not None:
        return None
    splits = [fewshot.get("split"), *map(config.get, reversed(SPLITS))]
    return next((str(split) for split in splits if split), None)


def find_fault(file: Path) -> str | None:
    """Return the first thing that keeps a file of data from being read; None if nothing is seen."""
    try:
        with file.open("rb") as content:
            if file.suffix == ".parquet":
                begins = content.read(len(PARQUET)) == PARQUET
                content.seek(max(0, file.stat().st_size - len(PARQUET)))
                whole = begins and content.read() == PARQUET
                return None if whole else "it is no Parquet file, or cut off"
            for number, line in enumerate(content, 1):
                try:
                    line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    return (
                        f"line {number} is no UTF-8 (byte {line[error.start]:#04x} at place "
                        f"{error.start + 1}); save the file as UTF-8"
                    )
        return next(faults_of_records(file), None) if FORMATS.get(file.suffix) == "json" else None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def faults_of_records(file: Path) -> Iterator[str]:
    """Yield what is wrong with a file of JSON: an object a line, or one list of objects."""
    with file.open(encoding="utf-8-sig") as text:
        lines = ((number, line.strip()) for number, line in enumerate(text, 1) if line.strip())
        first = next(lines, None)
        if first is None:
            yield "it holds no record"
        elif first[1].startswith("["):
            yield from faults_of_list(file)
        else:
            for number, line in chain([first], lines):
                try:
                    if not isinstance(json.loads(line), dict):
                        yield f"line {number} is no object with columns: {line[:QUOTED]!r}"
                except (ValueError, RecursionError) as error:
                    yield f"line {number} is no JSON ({error}): {line[:QUOTED]!r}"


def faults_of_list(file: Path) -> Iterator[str]:
    """Yield what is wrong with a file that should be one list of objects."""
    try:
        records = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        yield f"it is no JSON ({error})"
        return
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            yield f"record {number} is no object with columns: {str(record)[:QUOTED]!r}"
    if not records:
        yield "it holds no record"


def local_files(definition: Mapping[str, Any]) -> list[Path]:
    """Return the files on this disk that a task's own definition reads."""
    given = (definition.get("dataset_kwargs") or {}).get("data_files")
    names = (name for name in list_places(given) if isinstance(name, str))
    return [Path(name) for name in names if "://" not in name]
