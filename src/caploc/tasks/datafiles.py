"""Where a task's data come from: what its definition names, or the user's own files (`--data`).

JSON and CSV of this disk are read as they are written: no date, leading zero or trailing digit is
changed. The `datasets` library reads the rest; none of its readers from version 5 on unpickles.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
from lm_eval.tasks._index import Entry

from caploc.errors import BadData, BadOption
from caploc.files import read_csv, read_json_lines
from caploc.options import data_format

SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")  # of a definition


def definition(entry: Entry) -> dict[str, Any]:
    """Return what a task's YAML says, includes followed and functions left as their names."""
    return entry.cfg or {}


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


def local_files(definition: Mapping[str, Any]) -> list[Path]:
    """Return the files on this disk that a task's own definition reads."""
    given = (definition.get("dataset_kwargs") or {}).get("data_files")
    return [Path(name) for name in list_places(given) if "://" not in name]


def list_places(value: Any) -> Iterator[str]:
    """Yield the single places in `data_files`: one, a list, or those of each split."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from list_places(part)


@contextmanager
def text_as_written() -> Iterator[None]:
    """Let lm-eval read JSON and CSV files of this disk without changing what is written there."""
    load = datasets.load_dataset
    with patch("lm_eval.api.task.datasets.load_dataset", reader_as_written(load)):
        yield


def reader_as_written(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `load_dataset`, but for plain JSON and CSV files of this disk, which are read here."""

    def load_as_written(path: str, name: str | None = None, **options: Any) -> Any:
        files = options.get("data_files")
        places = [*list_places(files)]
        plain = path in READERS and not set(options) - {"data_files"} and places
        if not plain or any("://" in each or "*" in each for each in places):
            return load(path=path, name=name, **options)
        splits = files if isinstance(files, dict) else {"train": files}
        read = READERS[path]
        tables = {}
        for split, each in splits.items():
            records = [record for file in list_places(each) for record in read(Path(file))]
            if not records:
                raise ValueError("there are no data in it")
            names = dict.fromkeys(name for record in records for name in record)
            columns = {name: [record.get(name) for record in records] for name in names}
            tables[split] = datasets.Dataset.from_dict(columns)
        return datasets.DatasetDict(tables)

    return load_as_written


def read_json(file: Path) -> list[dict[str, Any]]:
    """Read the records of a JSON list, or of a file with one record a line; raises ValueError."""
    text = file.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    records = []
    for number, record in read_json_lines(text):
        if not isinstance(record, dict):
            raise ValueError(f"line {number} is no record: {str(record)[:60]!r}")
        records.append(record)
    return records


def read_table(file: Path) -> list[dict[str, Any]]:
    """Read the records of a CSV as text; a column is of numbers where all are written as such.

    An empty cell is None. Raises ValueError for a row with more fields than the header.
    """
    with file.open(encoding="utf-8-sig", newline="") as text:
        rows = [row for _, row in read_csv(text)]
    columns = {
        name: as_integers([row[name] or "" for row in rows]) for name in (rows[0] if rows else ())
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def as_integers(values: Sequence[str]) -> list[int | str | None]:
    """Turn a column into integers if each is written as Python writes it; else keep the text."""
    try:
        whole = all(
            str(int(value)) == value and abs(int(value)) < 2**63 for value in values if value
        )
    except ValueError:
        whole = False
    return [(int(value) if whole else value) if value else None for value in values]


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {"json": read_json, "csv": read_table}
