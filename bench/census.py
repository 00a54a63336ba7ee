"""The truth about real networks: what each of their heads does alone.

    python bench/census.py                                  everything that is missing: hours
    python bench/census.py --models smollm2 --tasks past    part of it
    python bench/census.py --examples 300                   more examples of every head alone

Rows are kept in build/census and asked once; a run that was stopped goes on. What was measured is
written to bench/census/MODEL-TASK.parquet, one line a row, after every part; rows of every head
alone that stand there already are not asked again on another machine.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from caploc import designs
from caploc.components import Masks
from caploc.console import progress
from caploc.declaration import ModelOptions
from caploc.engine.api import HeadModel
from caploc.measurement import Meter, Meters, as_measurements
from caploc.options import TaskOptions
from caploc.progress import Progress
from caploc.recovery import Measurements
from caploc.search import Plan, column_mask
from caploc.session import add_signal
from caploc.store import Store

ROWS = Path("build/census")
FILES = Path(__file__).parent / "census"
SEED = 20  # of the order of examples
SIGNALLED = 24  # right answers whose signal is read without each head alone
DEEP = 40  # heads of a `deep` case that are asked all of its examples


@dataclass(frozen=True)
class Case:
    """A model on a task, and the examples of every head alone.

    A `deep` case asks all examples of the heads that its signals put first; of the others the
    signals tell whether right answers are kept.
    """

    model: str
    task: str
    examples: int
    dtype: str = "auto"
    deep: bool = False

    @property
    def name(self) -> str:
        """Of its files."""
        task = "" if self.task.endswith(".yaml") else f"-{self.task.removeprefix('words/')}"
        return f"{Path(self.model).name}{task}"


CASES = (
    Case("smollm2", "words/third_person", 150),
    Case("smollm2", "words/past", 150),
    Case("smollm2", "words/upper", 150),
    Case("smollm2", "words/plural", 150),
    Case("smollm2", "words/digits", 150),
    Case("smollm2", "words/sentiment", 150),
    Case("smollm2", "words/antonym", 100, dtype="bfloat16", deep=True),
    Case("smollm2", "words/capital", 100, dtype="bfloat16", deep=True),
    *(
        Case(f"build/small-{task}", f"build/small-{task}/{task}.yaml", 400)
        for task in ("addition", "choice", "copying")  # of bench/small.py
    ),
)


@dataclass
class Census:
    """A case being measured."""

    case: Case
    meter: Meter
    watched: Progress
    bench: Meters[HeadModel]

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return str(self.meter.engine.loaded.fingerprint)  # type: ignore[attr-defined]

    @property
    def heads(self) -> int:
        """Heads of the model."""
        return int(self.meter.engine.grid.size)

    def known(self, plan: Plan) -> Measurements | None:
        """Take a plan's rows from the case's file, if it has them all."""
        known = read_rows(self.case, plan.what, self.fingerprint)
        gone = [tuple(np.flatnonzero(mask).tolist()) for mask in plan.masks]
        keys = zip([gone[mask] for mask in plan.mask], plan.example.tolist(), strict=True)
        rows = [known.get(key) for key in keys]
        if not rows or None in rows:
            return None
        outcome, kept = np.array(rows, float).T
        return Measurements(plan.masks, plan.mask, plan.example, outcome, kept)

    def ask(self, plan: Plan) -> Measurements:
        """Take a plan's rows from the case's file, or have them measured."""
        known = self.known(plan)
        return known or as_measurements(plan, self.meter.measure(plan, self.watched, plan.what))

    def plan(self, masks: Masks, examples: Sequence[int], what: str) -> Plan:
        """Every mask on every example."""
        return Plan.crossed(self.case.task, masks, examples, what)

    def intact(self, examples: Sequence[int]) -> Measurements:
        """The model as it is."""
        return self.ask(self.plan(column_mask(self.heads, [])[None], examples, "intact"))

    def alone(self, examples: Sequence[int], columns: Sequence[int] | None = None) -> Measurements:
        """Every head, or these, on every example."""
        masks = designs.singles(self.heads)
        chosen = masks if columns is None else masks[list(columns)]
        return self.ask(self.plan(chosen, examples, "alone"))

    def signals(self, examples: Sequence[int]) -> Measurements:
        """Every head, and none, on right answers: how strongly the model holds on to each."""
        nothing = column_mask(self.heads, [])
        masks = np.concatenate([nothing[None], designs.singles(self.heads)])
        plan, task = self.plan(masks, examples, "signal"), self.case.task
        if known := self.known(plan):
            return known
        intact = self.meter.under(nothing, examples, self.watched, "intact")
        probes = {task: self.meter}
        probe = add_signal(self.bench, probes, task, intact)
        return as_measurements(plan, probes[probe].measure(plan, self.watched, plan.what))


@cache
def read_rows(
    case: Case, part: str, fingerprint: str
) -> dict[tuple[tuple[int, ...], int], tuple[float, float]]:
    """Read outcome and `kept` of a part's rows, by heads and example, from this model's file."""
    file = FILES / f"{case.name}.parquet"
    if not file.is_file():
        return {}
    table = parquet.read_table(file, filters=[("part", "=", part)])
    if json.loads(table.schema.metadata[b"caploc"])["fingerprint"] != fingerprint:
        return {}
    rows = table.to_pydict()
    keys = zip(map(tuple, rows["knocked_out"]), rows["example"], strict=True)
    return dict(zip(keys, zip(rows["outcome"], rows["kept"], strict=True), strict=True))


def main() -> None:
    """Measure what was asked for."""
    arguments = parse()
    for model in dict.fromkeys(case.model for case in CASES):
        cases = [case for case in CASES if case.model == model and wanted(case, arguments)]
        if cases:
            measure(cases, arguments)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), help="such as smollm2")
    add("--tasks", type=lambda text: text.split(","), help="such as past,upper")
    add("--examples", type=int, help="of every head alone, instead of those of each case")
    add("--signalled", type=int, default=SIGNALLED, help="right ones, for signals; 0 for none")
    add("--dtype", help="of what is measured now, instead of each case's")
    add("--quiet", action="store_true")
    return parser.parse_args()


def wanted(case: Case, arguments: argparse.Namespace) -> bool:
    """Whether a case was asked for."""
    named = not arguments.tasks or case.task.removeprefix("words/") in arguments.tasks
    return named and (not arguments.models or case.model in arguments.models)


def measure(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """All parts of a model's cases; every head alone of all of them comes first."""
    dtype = arguments.dtype or cases[0].dtype
    model = ModelOptions(cases[0].model, device="cpu", dtype=dtype)
    engine = model.engine()
    with progress(arguments.quiet) as watched:
        for case in cases:
            (task,) = model.tasks([case.task], TaskOptions())
            with Store(ROWS / case.name / "rows.sqlite") as store:
                bench = Meters(engine, store)
                census = Census(case, bench.meter(task), watched, bench)
                write(case.name, case.model, census.meter, *take(census, arguments))


def take(census: Census, arguments: argparse.Namespace) -> tuple[list[str], list[Measurements]]:
    """Names and rows of the parts: the intact model, signals, and every head alone."""
    case = census.case
    order = designs.draw_examples(census.meter.task.size, census.meter.task.size, seed=SEED)
    count = arguments.examples or case.examples
    intact = census.intact(order)
    before = intact.by_example()
    asked = order[:count]
    names, found = ["intact"], [intact]
    columns = None
    if arguments.signalled:
        right = [example for example in asked if before[example]]
        names.append("signal")
        found.append(census.signals(right[: arguments.signalled]))
        if case.deep:
            columns = np.argsort(found[-1].mask_means()[1:], kind="stable")[:DEEP].tolist()
    return [*names, "alone"], [*found, census.alone(asked, columns)]


def write(
    name: str, model: str, meter: Meter, names: Sequence[str], found: Sequence[Measurements]
) -> None:
    """All rows of a case as one small file, which says whose they are; other parts of it stay."""
    cut = [
        np.flatnonzero(rows.masks[mask]).astype(np.int16) for rows in found for mask in rows.mask
    ]
    table = pa.table(
        {
            "part": pa.array(np.repeat(names, [len(rows.mask) for rows in found])),
            "knocked_out": pa.array(cut, pa.list_(pa.int16())),
            "example": pa.array(np.concatenate([r.example for r in found]), pa.int16()),
            "outcome": pa.array(np.concatenate([r.outcome for r in found]), pa.float32()),
            "kept": pa.array(np.concatenate([r.kept_or_unknown for r in found]), pa.float32()),
        }
    )
    loaded = meter.engine.loaded  # type: ignore[attr-defined]
    told = {
        "model": model,
        "fingerprint": loaded.fingerprint,
        "dtype": loaded.dtype,
        "task": meter.task.name,
        "task_version": meter.task.version,
        "heads": list(loaded.grid.heads_per_layer),
    }
    FILES.mkdir(exist_ok=True)
    file = FILES / f"{name}.parquet"
    if file.is_file():
        table = pa.concat_tables(
            [table, parquet.read_table(file, filters=[("part", "not in", list(names))])]
        )
    table = table.replace_schema_metadata({"caploc": json.dumps(told)})
    part = file.with_suffix(".part")
    parquet.write_table(table, part, compression="zstd")
    part.replace(file)


if __name__ == "__main__":
    main()
