"""The rows of a run as one table, for other tools: Parquet, or CSV."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd

from caploc.components import Heads
from caploc.contents import TaskScores, read_file
from caploc.errors import BadOption, UserError
from caploc.files import whole_path, writing
from caploc.folder import EVALUATION, RESULT, ROWS, STUDIES, rows_file
from caploc.result import Result
from caploc.store import reading, unpack
from caploc.store.rows import FIELDS

COLUMNS = [  # docs/studies.md says what they hold
    "model", "fingerprint", "dtype", "task", "task_version", "outcome_kind", "mode", "knocked_out",
    "heads", "example", "number", "outcome", "item", "responses", "tokens", "plain_tokens",
    "seconds",
]  # fmt: skip
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


def write_rows(folder: Path, to: Path) -> int:
    """Write every row of a run folder into a Parquet or CSV file, and return their number.

    Of a run that shares its rows with the studies beside it, the rows of all of them. The file is
    whole or not there.

    Raises BadOption if the file's name ends in neither .parquet nor .csv; UserError if there is no
    run in the folder; StoreFailed if the rows cannot be read, or the file cannot be written.
    """
    if to.suffix not in (".parquet", ".csv"):
        raise BadOption(f"--to must end in .parquet or .csv; got {str(to)!r}.")
    path = rows_file(folder)
    if not path.is_file():
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    with reading(path) as database:
        rows = name_parts(pd.read_sql(QUERY, database), read_models(folder))
    with writing(to, "the rows themselves are"), whole_path(to) as part:
        if to.suffix == ".csv":
            rows.to_csv(part, index=False)
        else:
            rows.to_parquet(part, index=False)
    return len(rows)


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
    return rows.assign(model=names, knocked_out=columns, heads=heads)[COLUMNS]
