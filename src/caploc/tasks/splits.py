"""A task's data from the user's files instead of the Hub: `--data test=FILE`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval.tasks._index import Entry

from caploc.errors import BadData, BadOption
from caploc.naming import is_file
from caploc.tasks.registry import definition

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def data_format(file: Path) -> str:
    """The reader for a data file, by its ending.

    Raises:
        BadOption: for an ending without a reader.
    """
    if file.suffix not in FORMATS:
        raise BadOption(f"--data files end in {', '.join(FORMATS)}; got {file.name!r}.")
    return FORMATS[file.suffix]


def check_file(name: str, file: Path) -> None:
    """Refuse a file that is not there or holds nothing.

    Raises:
        BadData: in one sentence.
    """
    if not is_file(file):
        raise BadData(f"--data {name}={file}: there is no such file.")
    if file.stat().st_size == 0:
        raise BadData(f"--data {name}={file}: the file is empty.")


def check_files(files: Mapping[str, str]) -> None:
    """Refuse files that cannot be read as data.

    Raises:
        BadOption: for a format that is unknown, or not that of the other files.
        BadData: for a file that is missing or empty.
    """
    for split, file in files.items():
        data_format(Path(file))
        check_file(split, Path(file))
    if len({data_format(Path(file)) for file in files.values()}) > 1:
        raise BadOption("All --data files of one run must be of one format.")


def data_overrides(
    name: str, entries: Sequence[Entry], files: Mapping[str, str], fewshot: int | None
) -> dict[str, Any] | None:
    """The changes to a task's definition that make it read the given files.

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
    """Whether there is one task behind the name, with a training split in the files (if any).

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
    """The change to a task's definition that makes it ask its training examples.

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
    """The split that examples in the prompt come from, in lm-eval's order; None: from the YAML."""
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("samples") is not None:
        return None
    splits = [fewshot.get("split"), config.get("fewshot_split"), config.get("training_split")]
    splits += [config.get("validation_split"), config.get("test_split")]
    return next((str(split) for split in splits if split), None)
