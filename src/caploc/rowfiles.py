"""The rows of a run as one table, for other tools: Parquet, or CSV."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from caploc.contents import read_file
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.files import whole_path
from caploc.folder import RESULT, ROWS, STUDIES, rows_file
from caploc.heads import HeadGrid
from caploc.progress import Progress, Silent
from caploc.result import Result
from caploc.store import Question, reading, unpack
from caploc.store.rows import FIELDS, unpack_amounts

AT_ONCE = 10_000  # rows in memory
COLUMNS = pa.schema(
    [
        ("model", pa.string()),  # as the user named it; its fingerprint where no result names it
        ("fingerprint", pa.string()),  # of the weights
        ("dtype", pa.string()),
        ("task", pa.string()),
        ("task_version", pa.string()),
        ("outcome_kind", pa.string()),  # metric, logprob or margin
        ("mode", pa.string()),  # what stands for a part that is knocked out
        ("knocked_out", pa.list_(pa.int32())),  # columns of the mask, ascending
        ("heads", pa.list_(pa.string())),  # their names; null where no result tells the grid
        ("example", pa.string()),  # digest of what is asked
        ("number", pa.int64()),  # the example's place in its task
        ("outcome", pa.float64()),  # null where it could not be scored
        ("item", pa.string()),  # what the metric aggregates, JSON
        ("text", pa.list_(pa.string())),  # what the model wrote, one of each request
        ("logprob", pa.list_(pa.float64())),  # of scored texts, in nats, one of each request
        ("tokens", pa.float64()),  # run for the row, in passes through all layers
        ("plain_tokens", pa.int64()),  # of reading and saying it alone
        ("seconds", pa.float64()),  # the row's share of its batch
    ]
)
OF_QUESTIONS = ("dtype", "task", "task_version", "mode")  # columns that a question has by name
LISTS = [field.name for field in COLUMNS if pa.types.is_list(field.type)]
QUERY = f"""
SELECT questions.question AS question, {FIELDS}
FROM rows JOIN questions ON questions.id = rows.question
ORDER BY rows.question, mask, example
"""
Write = Callable[[pd.DataFrame], None]


def write_rows(folder: Path, to: Path, progress: Progress | None = None) -> int:
    """Write every row of a run folder into a Parquet or CSV file, and return their number.

    Of a run that shares its rows with the studies beside it, the rows of all of them. Only a batch
    of rows is in memory at a time, and the file is whole or not there. A CSV file holds lists as
    JSON.

    Raises BadOption if the file's name ends in neither .parquet nor .csv; UserError if there is no
    run in the folder; StoreFailed if the rows cannot be read, or the file cannot be written.
    """
    if to.suffix not in WRITERS:
        raise BadOption(f"--to must end in {' or '.join(WRITERS)}; got {str(to)!r}.")
    path = rows_file(folder)
    if not path.is_file():
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    models, progress = read_models(folder), progress or Silent()
    with reading(path) as database:
        (count,) = database.execute("SELECT count(*) FROM rows").fetchone()
        progress.start("rows", count)
        try:
            with whole_path(to) as part, WRITERS[to.suffix](part) as write:
                for rows in pd.read_sql(QUERY, database, chunksize=AT_ONCE):
                    write(tabulate(rows, models))
                    progress.advance(len(rows), 0)
        except OSError as error:
            raise StoreFailed(
                f"{to} could not be written ({error.strerror or error}); free disk space or check "
                "the rights, then run the same command again. The rows themselves are untouched."
            ) from error
    return int(count)


@dataclass(frozen=True)
class KnownModel:
    """What a result tells of its model."""

    name: str
    grid: HeadGrid


def read_models(folder: Path) -> dict[str, KnownModel]:
    """The models that the results of a folder know, by fingerprint."""
    pattern = f"*/{RESULT}" if (folder / STUDIES).is_file() else RESULT
    found = {}
    for path in sorted(folder.glob(pattern)):
        with suppress(UserError):
            result = read_file(path, Result)
            model = KnownModel(result.model.name, result.grid.grid())
            found[str(result.model.fingerprint)] = model
    return found


def tabulate(rows: pd.DataFrame, models: Mapping[str, KnownModel]) -> pd.DataFrame:
    """Rows as the store has them in the table's columns."""
    questions = [Question(**json.loads(text)) for text in rows["question"]]
    known = [models.get(question.model) for question in questions]
    answers = [json.loads(text) for text in rows["responses"]]
    columns = [
        unpack(mask, model.grid.size if model else None).tolist()
        for mask, model in zip(rows["mask"], known, strict=True)
    ]
    found: dict[str, list[Any]] = {
        "model": [m.name if m else q.model for m, q in zip(known, questions, strict=True)],
        "fingerprint": [question.model for question in questions],
        "outcome_kind": [question.outcome for question in questions],
        "knocked_out": columns,
        "heads": list(map(name_heads, known, questions, columns, rows["mask"])),
        "text": [[each.get("text") for each in answer] for answer in answers],
        "logprob": [[each.get("logprob") for each in answer] for answer in answers],
    }
    found |= {name: [getattr(each, name) for each in questions] for name in OF_QUESTIONS}
    return rows.assign(**found)[COLUMNS.names]


def name_heads(
    model: KnownModel | None, question: Question, columns: Sequence[int], mask: bytes
) -> list[str] | None:
    """The heads of a row's columns by name; None if no result tells them, or for neurons."""
    if model is None or question.mode.startswith("neurons"):
        return None
    amounts = unpack_amounts(mask) or [1.0] * len(columns)
    return [
        str(model.grid.heads[column].scaled(amount))
        for column, amount in zip(columns, amounts, strict=True)
    ]


@contextmanager
def parquet_file(path: Path) -> Iterator[Write]:
    """Write batches into a Parquet file."""
    with parquet.ParquetWriter(path, COLUMNS, compression="zstd") as file:
        yield lambda rows: file.write_table(pa.Table.from_pandas(rows, COLUMNS))


@contextmanager
def csv_file(path: Path) -> Iterator[Write]:
    """Write batches into a CSV file; lists are JSON, what is missing is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(",".join(COLUMNS.names) + "\n")

        def write(rows: pd.DataFrame) -> None:
            lists = {name: [each and json.dumps(each) for each in rows[name]] for name in LISTS}
            rows.assign(**lists).to_csv(file, index=False, header=False)

        yield write


WRITERS = {".parquet": parquet_file, ".csv": csv_file}
