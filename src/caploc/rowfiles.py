"""The rows of a run as one table, for other tools: Parquet, or CSV."""

import csv
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from caploc.contents import read_file
from caploc.errors import BadOption, StoreFailed, UserError
from caploc.files import whole_path
from caploc.folder import RESULT, ROWS, STUDIES, rows_file
from caploc.heads import HeadGrid
from caploc.progress import Progress, Silent
from caploc.result import Result
from caploc.store import Question, damaged, reading, unpack
from caploc.store.rows import fields_of, matches, seal, unpack_amounts

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
        ("stages", pa.list_(pa.string())),  # STUDY: stage: what for; null if not known
        ("outcome", pa.float64()),  # null where it could not be scored
        ("item", pa.string()),  # what the metric aggregates, JSON
        ("text", pa.list_(pa.string())),  # what the model wrote, one of each request
        ("logprob", pa.list_(pa.float64())),  # of scored texts, in nats, one of each request
        ("tokens", pa.float64()),  # run for the row, in passes through all layers
        ("plain_tokens", pa.int64()),  # of reading and saying it alone
        ("seconds", pa.float64()),  # the row's share of its batch
    ]
)
RowKey = tuple[bytes, str]  # packed mask and the example's digest
Write = Callable[[Mapping[str, Sequence[Any]]], None]


@dataclass
class Known:
    """What results beside the rows tell of models, by fingerprint."""

    names: dict[str, str] = field(default_factory=dict)
    grids: dict[str, HeadGrid] = field(default_factory=dict)
    stages: dict[Question, dict[RowKey, list[str]]] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)  # why a study's stages are not known

    @classmethod
    def of(cls, folder: Path, *, stages: bool) -> "Known":
        """From the folder's result, or those of a folder of studies; their stages, if wanted."""
        known = cls()
        pattern = f"*/{RESULT}" if (folder / STUDIES).is_file() else RESULT
        for path in sorted(folder.glob(pattern)):
            with suppress(UserError):
                result = read_file(path, Result)
                fingerprint = str(result.model.fingerprint)
                known.names[fingerprint] = result.model.name
                known.grids[fingerprint] = result.grid.grid()
                if stages:
                    known.trace(path.parent)
        return known

    def trace(self, run: Path) -> None:
        from caploc.doctor.replay import trace_stages  # loads torch

        try:
            traced = trace_stages(run)
        except UserError as error:
            self.untold[run.name] = str(error).rstrip(".")
            return
        for question, rows in traced.items():
            told = self.stages.setdefault(question, {})
            for key, stages in rows.items():
                told.setdefault(key, []).extend(f"{run.name}: {stage}" for stage in stages)


@dataclass(frozen=True)
class Own:
    """What a run asked, of rows that it shares."""

    fingerprint: str
    dtype: str | None
    tasks: frozenset[str]
    mode: str

    @classmethod
    def of(cls, folder: Path, path: Path) -> "Own":
        """From the run's result; `path` are the rows; raises UserError if there is none."""
        if not (folder / RESULT).is_file():
            raise UserError(
                f"{folder} shares its rows with the studies beside it and holds no {RESULT}, which "
                f"tells its own from theirs; finish the run, or name {path.parent} for all rows."
            )
        result = read_file(folder / RESULT, Result)
        others = (other.name for other in result.validation.other_tasks)
        tasks = frozenset([result.task.name, *others])
        mode = result.method.mode
        return cls(str(result.model.fingerprint), result.model.dtype, tasks, mode)

    def has(self, question: Question) -> bool:
        same = question.model == self.fingerprint and self.dtype in (None, question.dtype)
        return same and question.task in self.tasks and question.mode.split()[0] == self.mode


def write_rows(
    folder: Path, to: Path, progress: Progress | None = None, *, stages: bool = False
) -> tuple[int, dict[str, str]]:
    """Write every row of a run folder into a Parquet or CSV file.

    Of a run that shares its rows with the studies beside it, those of its model and tasks. Only a
    batch of rows is in memory at a time, and the file is whole or not there. A CSV file holds lists
    as JSON. With `stages` every study is gone through once more on its rows, to say what it asked
    each row for. Returns the number of rows, and why the stages of some studies are not known.

    Raises BadOption if the file's name ends in neither .parquet nor .csv; UserError if there is no
    run in the folder, or nothing that tells which rows are its own; StoreFailed if the rows cannot
    be read, or the file cannot be written.
    """
    if to.suffix not in WRITERS:
        raise BadOption(f"--to must end in {' or '.join(WRITERS)}; got {str(to)!r}.")
    path = rows_file(folder)
    if not folder.is_dir() or not path.is_file():
        raise UserError(f"{folder} holds no {ROWS}; name the folder of a run.")
    known, progress = Known.of(folder, stages=stages), progress or Silent()
    own = None if path == folder / ROWS else Own.of(folder, path)
    with reading(path) as (database, schema):
        questions = read_questions(database, path, own)
        counting = "SELECT count(*) FROM rows WHERE question = ?"
        count = sum(database.execute(counting, (each,)).fetchone()[0] for each in questions)
        progress.start("rows", count)
        try:
            with whole_path(to) as part, WRITERS[to.suffix](part) as write:
                for batch in batches(database, schema, known, questions):
                    write(batch)
                    progress.advance(len(batch["example"]), 0)
        except OSError as error:
            raise StoreFailed(
                f"{to} could not be written ({error.strerror or error}); free disk space or check "
                "the rights, then run the same command again. The rows themselves are untouched."
            ) from error
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            raise StoreFailed(damaged(path, "a row is not what was written")) from None
    return int(count), known.untold


def read_questions(
    database: sqlite3.Connection, path: Path, own: Own | None
) -> dict[int, Question]:
    """The questions of a store by number, those of `own` if given; raises StoreFailed."""
    texts = database.execute("SELECT id, digest, question FROM questions").fetchall()
    orphans = "SELECT 1 FROM rows WHERE question NOT IN (SELECT id FROM questions) LIMIT 1"
    if (
        not all(matches(digest, text) for _, digest, text in texts)
        or database.execute(orphans).fetchone()
    ):
        raise StoreFailed(
            f"{path} has lost what some of its rows answer, with a damaged page; run the same "
            "command again (`command` in run.json), which finds it again, then `caploc rows`."
        )
    questions = {number: Question(**json.loads(text)) for number, _, text in texts}
    return {number: each for number, each in questions.items() if own is None or own.has(each)}


def batches(
    database: sqlite3.Connection, schema: int, known: Known, questions: Mapping[int, Question]
) -> Iterator[dict[str, list[Any]]]:
    """The table's columns, some rows at a time, ordered by question, mask and example."""
    for number, question in sorted(questions.items()):
        found = database.execute(
            f"SELECT {fields_of(schema)} FROM rows WHERE question = ? ORDER BY mask, example",
            (number,),
        )
        while rows := found.fetchmany(AT_ONCE):
            lines = [line(question, row, known) for row in rows]
            columns = map(list, zip(*lines, strict=True))
            yield dict(zip(COLUMNS.names, columns, strict=True))


def line(question: Question, row: Sequence[Any], known: Known) -> tuple[Any, ...]:
    """One row, as the columns have it; raises ValueError and its like if it is not one."""
    mask, example, number, outcome, item, responses, *cost = row[:9]
    if row[9:] and seal(question.digest(), row[:9]) != row[9]:
        raise ValueError
    grid = known.grids.get(question.model)
    columns = unpack(mask, grid.size if grid else None).tolist()
    # Heads have names where the grid is known, and is one of these parts.
    named = grid and not question.mode.startswith("neurons") and max(columns, default=0) < grid.size
    answers = json.loads(responses)
    return (
        known.names.get(question.model, question.model),
        *(question.model, question.dtype, question.task, question.task_version),
        *(question.outcome, question.mode, columns),
        names_of(grid, columns, unpack_amounts(mask)) if grid and named else None,
        *(example, number),
        known.stages.get(question, {}).get((bytes(mask), example)),
        *(outcome, item),
        [answer.get("text") for answer in answers],
        [answer.get("logprob") for answer in answers],
        *cost,
    )


def names_of(grid: HeadGrid, columns: Sequence[int], amounts: Sequence[float]) -> list[str]:
    """The heads of columns by name, with how much of each is knocked out if not all of all is."""
    return [
        str(grid.heads[column].scaled(amount))
        for column, amount in zip(columns, amounts or [1.0] * len(columns), strict=True)
    ]


@contextmanager
def parquet_file(path: Path) -> Iterator[Write]:
    """Write batches into a Parquet file."""
    with parquet.ParquetWriter(path, COLUMNS, compression="zstd") as file:
        yield lambda batch: file.write_table(pa.Table.from_pydict(dict(batch), schema=COLUMNS))


@contextmanager
def csv_file(path: Path) -> Iterator[Write]:
    """Write batches into a CSV file; lists are JSON, what is missing is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS.names)

        def write(batch: Mapping[str, Sequence[Any]]) -> None:
            for values in zip(*batch.values(), strict=True):
                lines.writerow(json.dumps(v) if isinstance(v, list) else v for v in values)

        yield write


WRITERS = {".parquet": parquet_file, ".csv": csv_file}
