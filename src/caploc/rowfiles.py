"""The rows of a run as one table, for other tools: Parquet, or CSV."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow.csv import CSVWriter
from pyarrow.parquet import ParquetWriter

from caploc.components import Heads
from caploc.contents import TaskScores, read_file
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.files import whole_path
from caploc.folder import EVALUATION, RESULT, ROWS, STUDIES, rows_file
from caploc.progress import Progress, Silent
from caploc.result import Result
from caploc.store import reading, unpack
from caploc.store.rows import FIELDS

AT_ONCE = 10_000  # rows in memory
TEXT, NUMBER, COUNT = pa.string(), pa.float64(), pa.int64()
COLUMNS = pa.schema(
    [
        ("model", TEXT),  # as the user named it; null where no result names it
        ("fingerprint", TEXT),  # of the weights
        ("dtype", TEXT),
        ("task", TEXT),
        ("task_version", TEXT),
        ("outcome_kind", TEXT),  # metric, logprob or margin
        ("mode", TEXT),  # what stands for a part that is knocked out
        ("knocked_out", TEXT),  # columns of the mask, ascending, with commas
        ("heads", TEXT),  # their names, with commas; null where no result tells the grid
        ("example", TEXT),  # digest of what is asked
        ("number", COUNT),  # the example's place in its task
        ("outcome", NUMBER),  # null where it could not be scored
        ("item", TEXT),  # what the metric aggregates, JSON
        ("responses", TEXT),  # JSON, one of each request: `text` written, or `logprob` in nats
        ("tokens", NUMBER),  # run for the row, in passes through all layers
        ("plain_tokens", COUNT),  # of reading and saying it alone
        ("seconds", NUMBER),  # the row's share of its batch
    ]
)
OF_QUESTIONS = {  # columns, and what they are called in a question
    "fingerprint": "model", "dtype": "dtype", "task": "task", "task_version": "task_version",
    "outcome_kind": "outcome", "mode": "mode",
}  # fmt: skip
ASKED = ", ".join(
    f"json_extract(questions.question, '$.{key}') AS {name}" for name, key in OF_QUESTIONS.items()
)
QUERY = f"""
SELECT {ASKED}, {FIELDS} FROM rows JOIN questions ON questions.id = rows.question
ORDER BY rows.question, mask, example
"""  # noqa: S608  (names of columns that are caploc's own)
WRITERS = {".parquet": ParquetWriter, ".csv": CSVWriter}


def write_rows(folder: Path, to: Path, progress: Progress | None = None) -> int:
    """Write every row of a run folder into a Parquet or CSV file, and return their number.

    Of a run that shares its rows with the studies beside it, the rows of all of them. Some thousand
    rows are in memory at a time, and the file is whole or not there.

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
            with whole_path(to) as part, WRITERS[to.suffix](part, COLUMNS) as file:
                for rows in pd.read_sql(QUERY, database, chunksize=AT_ONCE):
                    file.write_table(pa.Table.from_pandas(name_parts(rows, models), COLUMNS))
                    progress.advance(len(rows), 0)
        except OSError as error:
            raise StoreFailed(
                f"{to} could not be written ({error.strerror or error}); free disk space or check "
                "the rights, then run the same command again. The rows themselves are untouched."
            ) from error
    return int(count)


def read_models(folder: Path) -> dict[str, tuple[str, Heads]]:
    """The name and the heads of each model that a result of the folder knows, by fingerprint."""
    found = {}
    for path in sorted(folder.glob(f"*/{RESULT}" if (folder / STUDIES).is_file() else RESULT)):
        with suppress(UserError):
            result = read_file(path, Result)
            found[str(result.model.fingerprint)] = result.model.name, result.grid.model_heads()
    with suppress(UserError):
        scores = read_file(folder / EVALUATION, TaskScores)
        if scores.grid is not None:
            found[str(scores.fingerprint)] = scores.model, scores.grid.model_heads()
    return found


def name_parts(rows: pd.DataFrame, models: Mapping[str, tuple[str, Heads]]) -> pd.DataFrame:
    """Rows with the model's name, and with the parts that their masks knock out."""
    names, columns, heads = list[str | None](), list[str](), list[str | None]()
    for mask, fingerprint, mode in rows[["mask", "fingerprint", "mode"]].itertuples(index=False):
        name, grid = models.get(fingerprint, (None, None))
        places = unpack(mask, grid.size if grid else None)
        names.append(name)
        columns.append(",".join(map(str, places)))
        if grid is None or mode.startswith("neurons"):
            heads.append(None)
        else:
            heads.append(",".join(str(grid.components[place]) for place in places))
    return rows.assign(model=names, knocked_out=columns, heads=heads)[COLUMNS.names]
