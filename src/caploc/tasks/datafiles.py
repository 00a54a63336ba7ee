"""A task's data from the user's files (`--data test=FILE`), and what is wrong with one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval.tasks._index import Entry

from caploc.errors import BadData, BadOption
from caploc.naming import is_file
from caploc.tasks.registry import definition

QUOTED = 60  # characters of a line that a sentence repeats
PARQUET = b"PAR1"  # how a Parquet file begins, and how it ends
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def data_format(file: Path) -> str:
    """Return the reader for a data file, by its ending.

    Raises:
        BadOption: for an ending without a reader.
    """
    if file.suffix not in FORMATS:
        raise BadOption(f"--data files end in {', '.join(FORMATS)}; got {file.name!r}.")
    return FORMATS[file.suffix]


def check_data_file(name: str, file: Path) -> None:
    """Refuse a file that is not there or holds nothing; raises BadData in one sentence."""
    if not is_file(file):
        raise BadData(f"--data {name}={file}: there is no such file.")
    if file.stat().st_size == 0:
        raise BadData(f"--data {name}={file}: the file is empty.")


def check_data_files(files: Mapping[str, str]) -> None:
    """Refuse files that cannot be read as data.

    Raises:
        BadOption: for a format that is unknown, or not that of the other files.
        BadData: for a file that is missing or empty.
    """
    for split, file in files.items():
        data_format(Path(file))
        check_data_file(split, Path(file))
    if len({data_format(Path(file)) for file in files.values()}) > 1:
        raise BadOption("All --data files of one run must be of one format.")


def data_overrides(
    name: str, entries: Sequence[Entry], files: Mapping[str, str], fewshot: int | None
) -> dict[str, Any] | None:
    """Return the changes to a task's definition that make it read the given files.

    `entries` are the tasks behind the name.

    Raises:
        BadOption: if the name is a group.
        BadData: if a split that the task needs is not given.
    """
    if not files:
        return None
    if len(entries) != 1 or entries[0].yaml_path is None:
        raise BadOption(
            f"--data replaces the data of one task, and {name} is a group of {len(entries)}; "
            f"name one of them, such as {entries[0].name if entries else name}."
        )
    config = definition(entries[0])
    splits = ("training_split", "validation_split", "test_split", "fewshot_split")
    evaluated = config.get("test_split") or config.get("validation_split")
    shots = fewshot if fewshot is not None else config.get("num_fewshot") or 0
    wanted = [evaluated, shots_split(config) if shots else None]
    needed = {str(split) for split in wanted if split}
    known = {str(config[split]) for split in splits if config.get(split)} | needed
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
    formats = {data_format(Path(file)) for file in files.values()}
    return {
        "dataset_path": formats.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": dict(files)},
        "custom_dataset": None,
    } | {split: config.get(split) if config.get(split) in files else None for split in splits}


def has_training(entries: Sequence[Entry], files: Mapping[str, str]) -> bool:
    """Tell whether there is one task behind the name, with a training split in the files (if any).

    A split that the task is evaluated on is none.
    """
    if len(entries) != 1 or entries[0].yaml_path is None:
        return False
    config = definition(entries[0])
    training = config.get("training_split")
    evaluated = config.get("test_split") or config.get("validation_split")
    return bool(training) and training != evaluated and (not files or training in files)


def training_instead(
    name: str, entries: Sequence[Entry], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the change to a task's definition that makes it ask its training examples.

    Raises:
        BadOption: if it has none.
    """
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


def shots_split(config: dict[str, Any]) -> str | None:
    """Return the split that examples in the prompt come from; None: they are in the YAML."""
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("samples") is not None:
        return None
    splits = [fewshot.get("split"), config.get("fewshot_split"), config.get("training_split")]
    splits += [config.get("validation_split"), config.get("test_split")]
    return next((str(split) for split in splits if split), None)


def find_fault(file: Path) -> str | None:
    """Return the first thing that keeps a file of data from being read; None if nothing is seen."""
    try:
        if file.suffix == ".parquet":
            with file.open("rb") as content:
                begins = content.read(len(PARQUET)) == PARQUET
                content.seek(max(0, file.stat().st_size - len(PARQUET)))
                whole = begins and content.read() == PARQUET
            return None if whole else "it is no Parquet file, or cut off"
        fault = fault_of_text(file)
        if fault is None and FORMATS.get(file.suffix) == "json":
            fault = next(faults_of_records(file), None)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return fault


def fault_of_text(file: Path) -> str | None:
    """Return the first line that is no text in UTF-8, if there is one."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                return (
                    f"line {number} is no UTF-8 (byte {line[error.start]:#04x} at place "
                    f"{error.start + 1}); save the file as UTF-8"
                )
    return None


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
    values = list(given.values()) if isinstance(given, Mapping) else [given]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [Path(name) for name in names if isinstance(name, str) and "://" not in name]


def check_complete(name: str, docs: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Refuse records that lack what others have and the task reads: they would ask for `None`.

    Raises:
        BadData: naming the first one.
    """
    for number, doc in enumerate(docs, 1):
        for column in columns:
            if column in doc and doc[column] is None:
                raise BadData(
                    f"Record {number} of task {name} has no {column!r}, which the task reads; "
                    "complete it, or take it out."
                )
