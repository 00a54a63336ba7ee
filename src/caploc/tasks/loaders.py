"""Where a task file may take its data from: readers that only read, and files that end.

`datasets` has readers that unpickle (`pandas` before version 5), speak to databases (`sql`) or
unpack archives; a task file may name any of them, with any settings.
"""

import glob
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from caploc.errors import BadData
from caploc.files import check_regular
from caploc.naming import at_home, is_folder

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
    """Refuse `dataset_kwargs` that do more than say which text is read and how.

    Raises:
        BadData: naming what is allowed.
    """
    if not isinstance(settings, dict):
        raise BadData(f"{file}: dataset_kwargs must hold settings by name, such as data_files.")
    for key in settings:
        if key not in SETTINGS:
            raise BadData(
                f"{file}: dataset_kwargs may not hold {str(key)[:60]!r}; allowed are "
                f"{', '.join(sorted(SETTINGS))}."
            )
    for place in list_places(settings.get("data_files")):
        check_place(file, place)
    if (folder := settings.get("data_dir")) is not None:
        check_place(file, folder)
        check_folder(file, at_home(folder))


def check_named(file: str, config: Mapping[str, Any]) -> None:
    """Refuse a task that names a reader and no files: `datasets` would take what lies around.

    Raises:
        BadData: if it is so.
    """
    settings = config.get("dataset_kwargs")
    named = isinstance(settings, dict) and (settings.get("data_files") or settings.get("data_dir"))
    if config.get("dataset_path") in READERS and not named:
        raise BadData(
            f"{file} reads {config['dataset_path']} and names no file; add `dataset_kwargs: "
            "{data_files: {test: FILE}}`, or --data test=FILE."
        )


def check_path(file: str, path: Any) -> None:
    """Refuse a `dataset_path` that is no reader, data set of the Hub or folder of plain data.

    Raises:
        BadData: naming what is allowed.
    """
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
        check_folder(file, folder)
        return
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if path in _PACKAGED_DATASETS_MODULES or not HUB.fullmatch(path):
        raise BadData(f"{file}: dataset_path {path[:200]!r} is not allowed; {allowed}")


def check_folder(file: str, folder: Path) -> None:
    """Refuse a folder of data that holds anything but plain data, or too much.

    Raises:
        BadData: naming the file.
    """
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
    """Refuse a data file behind a chain of file systems, of another protocol, or without an end.

    Raises:
        BadData: if it is so.
    """
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
        if glob.has_magic(place):
            check_pattern(file, place)
        for each in glob.iglob(place, recursive=True) if glob.has_magic(place) else [place]:
            check_readable(file, Path(each))
    except ValueError as error:
        raise BadData(f"{file}: the data file {place[:200]!r} is no path ({error}).") from error


def check_pattern(file: str, pattern: str) -> None:
    """Refuse a pattern of data files that leads through too many: `/**/*.json` reads the disk.

    Raises:
        BadData: if it does.
    """
    parts = Path(pattern).parts
    plain = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
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
    """Refuse a pipe, device or socket; what is missing is missed where it is read.

    Raises:
        BadData: if it is one.
    """
    if is_folder(path):
        return
    try:
        check_regular(os.stat(path), path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadData(f"{file}: the data file {path} cannot be read: {error.strerror}.") from error
