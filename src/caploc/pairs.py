"""Pairs of a prompt and its right answer: files of them, and the task made of them."""

import json
import reprlib
from collections.abc import Sequence
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from typing import Any

from caploc.errors import BadData, FolderTaken
from caploc.files import read_csv, read_json_lines, writing
from caploc.folder import EXAMPLES
from caploc.naming import PAIRS, at_home, is_file, keep_plain, made_of_pairs, placed

Pairs = Sequence[tuple[str, str]]
UNNAMED = "your task"
COLUMNS = ("prompt", "answer")
FORM = '{"prompt": "The capital of France is", "answer": " Paris"}'


def is_pairs(name: str) -> bool:
    """Tell whether a task's name is that of a file of pairs."""
    return name.endswith(PAIRS) and is_file(at_home(name))


def read_pairs(name: str) -> list[tuple[str, str]]:
    """Read a file of pairs.

    Raises BadData, with file and line, for what is empty, no JSON, or without one of the columns.
    """
    path = at_home(name)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{name} cannot be read ({error}); write it in UTF-8.") from None
    table = path.suffix == ".csv"
    rows = read_csv(StringIO(text, newline="")) if table else read_json_lines(text)
    try:
        pairs = [pair_of(name, number, row) for number, row in rows]
    except ValueError as error:
        shape = "" if table else f"; each line is a pair, such as {FORM}"
        raise BadData(f"{name}, {error}{shape}.") from None
    if not pairs:
        raise BadData(f"{name} is empty; give a line for each pair, such as {FORM}.")
    return pairs


def pair_of(name: str, number: int, row: object) -> tuple[str, str]:
    """Take prompt and answer from a row."""
    if not isinstance(row, dict):
        raise BadData(f"{name}, line {number} is no pair; write it as {FORM}.")
    for column in COLUMNS:
        if row.get(column) is None:
            filled = (str(key) for key, value in row.items() if key and value is not None)
            found = ", ".join(filled) or "none"
            raise BadData(
                f"{name}, line {number} has no {column!r}: its columns are {found}, and a file of "
                "pairs has prompt and answer."
            )
        if not isinstance(row[column], str) or not row[column].strip():
            raise BadData(
                f"{name}, line {number}: its {column} is {row[column]!r}, and must be a text that "
                "is not blank."
            )
    return row["prompt"], row["answer"]


def name_examples(pairs: Pairs, name: str = UNNAMED) -> str:
    """Return a folder's name for these examples; other ones have another."""
    examples = [example_of(number, pair) for number, pair in enumerate(pairs)]
    return f"{name}-{blake2b(json.dumps(examples).encode(), digest_size=4).hexdigest()}"


def identify(name: str) -> str:
    """Name a task as every run of it does, wherever the run lies.

    A task made of pairs goes by the name of its own folder; `name` may also be the file of pairs.
    """
    if is_pairs(name):
        return name_examples(read_pairs(name), title_of(name))
    return Path(name).parent.name if made_of_pairs(name) else placed(name)


def write_task(pairs: Pairs, folder: Path, name: str = UNNAMED) -> Path:
    """Write examples as a task in lm-eval's form below the folder; return its YAML.

    Prompt and answer are asked as they are written. An example is right where the answer is what
    the model would say after the prompt, token by token.

    Raises:
        BadData: if there are too few different prompts to name a head, or one is no pair of texts.
        FolderTaken: if the folder was elsewhere when they were written.
        StoreFailed: if the disk refuses.
    """
    from pyarrow import Table, parquet  # here, since these two take seconds to load

    from caploc.search.summary import FEWEST_RIGHT

    examples = [example_of(number, pair) for number, pair in enumerate(pairs)]
    if not examples:
        raise BadData("There are no examples; give a list of (prompt, answer).")
    different = len({example["prompt"] for example in examples})
    if different < FEWEST_RIGHT:  # a search looks for nothing unless as many are right
        count = f"{different} different {'prompt is' if different == 1 else 'prompts are'}"
        raise BadData(
            f"{count} too few to tell a needed head from chance; give {FEWEST_RIGHT} or more that "
            "the model gets right."
        )
    place = folder / name_examples(pairs, name)
    path = place / f"{name}.yaml"
    if path.exists() and json.dumps(str((place / EXAMPLES).absolute())) not in path.read_text():
        raise FolderTaken(
            f"{folder} was moved or renamed since its examples were written; move it back, or "
            "choose another --out."
        )
    task = {
        "task": name,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str((place / EXAMPLES).absolute())}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "answer",  # the column: of a template lm-eval reads "[1]" as a list
        "target_delimiter": "",
        "metadata": {"version": 1},
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    with writing(path, "what was measured is"):
        place.mkdir(parents=True, exist_ok=True)
        # a table that says what is text: of JSON a reader would make times of dates
        parquet.write_table(Table.from_pylist(examples), place / EXAMPLES)
        path.write_text(json.dumps(task, indent=1), encoding="utf-8")  # JSON is YAML
    return path.absolute()


def name_task(name: str, folder: Path, start: Path = Path()) -> str:
    """Name a task as a study does; a file of pairs is written below the folder as a task."""
    path = placed(name, start)
    if not is_pairs(path):
        return path
    return str(write_task(read_pairs(path), folder, title_of(path)))


def title_of(name: str) -> str:
    """Title a task as its file of pairs is called, in letters that need no quotes."""
    return keep_plain(Path(name).stem) or UNNAMED


def example_of(number: int, pair: Any) -> dict[str, str]:
    """Name the parts of an example, which stay as they are written."""
    fits = isinstance(pair, tuple | list) and len(pair) == 2
    if not fits or not all(isinstance(text, str) and text for text in pair):
        raise BadData(
            f"Example {number} is {reprlib.repr(pair)}; each must be a pair of texts, (prompt, "
            "answer)."
        )
    return dict(zip(("prompt", "answer"), pair, strict=True))
