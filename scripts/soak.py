"""Run mixed studies on the demo model in one process for an hour, and see whether anything grows.

    python scripts/soak.py --minutes 60

A cycle is the same each time: four methods on likelihoods and on generated text, an evaluation, a
curve, the pages, and the first cycle's finished folders once more. After it the process is
measured, and its rows are compared with those of the first cycle. Exits with 1 if memory, open
files or threads grow, or a row differs. Stopped early (Ctrl-C, SIGTERM), it judges what it has.
"""

import argparse
import gc
import json
import math
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from scipy import stats

from caploc.cli import hush
from caploc.evaluation import Evaluation, curve, evaluate
from caploc.heads import Head
from caploc.report.page import rewrite_page
from caploc.search import Settings
from caploc.study import Study, run_study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions

MB = 1e6
CONFIDENCE = 0.95
LEAK = 10.0  # MB an hour; below it a slope is let pass
TOLD = 50.0  # MB an hour to either side; a slope less certain says nothing
WARM_UP = 0.2  # of the cycles, in which caches and the allocator's pools fill
FEWEST = 3  # cycles before and after the end of the warm-up
ROUNDING = 1e-4  # nats by which a log-probability may differ: rows summed beside others
MODEL = ModelOptions("demo", device="cpu")
STUDIES = {
    "addition": Study(
        MODEL, "demo/addition", "css", Settings(masks=20, rate=0.05), examples=30,
        other_tasks=("demo/sentences",), controls=4, limit=60,
    ),
    "sorting": Study(
        MODEL, "demo/sorting", "adaptive", Settings(budget=500), controls=3, limit=40
    ),
    "capitals": Study(
        MODEL, "demo/capitals", "one-shot", Settings(), examples=6, controls=2, limit=30,
        options=TaskOptions(outcome="logprob"),
    ),
    "sentences": Study(
        MODEL, "demo/sentences", "csb", Settings(masks=20, rate=0.04), examples=20,
        controls=2, limit=40,
    ),
}  # fmt: skip
SCORED = Evaluation(
    MODEL, (Head(0, 5), Head(0, 14)), ("demo/addition", "demo/sentences", "demo/code"), limit=40
)
CURVED = "addition"
Key = tuple[str, int, bytes, str]
Content = tuple[float | None, str]


@dataclass(frozen=True)
class Sample:
    """The process after a cycle; `grown` is what the resumed folders' stores hold, in bytes."""

    hours: float
    seconds: float
    rss: float  # MB
    files: int
    threads: int
    grown: int
    rows: int
    wrong: int
    exact: int


def main() -> None:
    """Run cycles, print a line for each, and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    hush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    samples = []
    folder = Path(tempfile.mkdtemp(prefix="caploc-soak-"))
    try:
        for sample in cycles(folder, minutes):
            samples.append(sample)
            print(line(len(samples), sample), flush=True)
    except KeyboardInterrupt:
        print("stopped early", flush=True)
    finally:
        shutil.rmtree(folder)
    told, sound = verdict(samples)
    print(told)
    sys.exit(0 if sound else 1)


def cycles(folder: Path, minutes: float) -> Iterator[Sample]:
    """Cycles until the time is up; the first one's folder stays, and is resumed by the others."""
    first, begin = folder / "first", time.monotonic()
    reference: dict[Key, Content] = {}
    while time.monotonic() - begin < 60 * minutes:
        started = time.monotonic()
        here = folder / "cycle" if reference else first
        cycle(here)
        rows = read_rows(here)
        reference = reference or rows
        resume(first, reference)
        wrong, exact = differences(reference, rows)
        if here != first:
            shutil.rmtree(here)
        count = len(rows)
        del rows
        now = time.monotonic()
        yield measured(first, (now - begin) / 3600, now - started, (count, wrong, exact))


def cycle(folder: Path) -> None:
    """Everything once, in new folders."""
    for name, study in STUDIES.items():
        run_study(study, folder / name)
        rewrite_page(folder / name)
    evaluate(SCORED, folder / "evaluate")
    curve(folder / CURVED, most=3, limit=40)


def resume(folder: Path, reference: dict[Key, Content]) -> None:
    """Finished studies again, from their rows; nothing may be measured or changed.

    Raises:
        RuntimeError: if a result or a row is another one.
    """
    for name, study in STUDIES.items():
        written = folder / name / "result.json"
        before = json.loads(written.read_text())
        if run_study(study, folder / name).result.as_dict() != before:
            raise RuntimeError(f"{name}: the finished study has another result when resumed.")
    if read_rows(folder) != reference:
        raise RuntimeError("Resuming finished studies changed their rows.")


def read_rows(folder: Path) -> dict[Key, Content]:
    """Every row below a folder: outcome and responses."""
    found: dict[Key, Content] = {}
    for path in sorted(folder.glob("*/rows.sqlite")):
        database = sqlite3.connect(path)
        try:
            rows = database.execute("SELECT question, mask, example, outcome, responses FROM rows")
            for question, mask, example, *content in rows:
                found[path.parent.name, question, mask, example] = (content[0], content[1])
        finally:
            database.close()
    return found


def differences(reference: dict[Key, Content], rows: dict[Key, Content]) -> tuple[int, int]:
    """How many rows are missing, too many or other than the reference; how many equal to the bit.

    A log-probability (or an outcome that is one) may differ by its rounding.
    """
    wrong, exact = len(reference.keys() ^ rows.keys()), 0
    for key in reference.keys() & rows.keys():
        (outcome, responses), (other, others) = reference[key], rows[key]
        if (outcome, responses) == (other, others):
            exact += 1
        elif not (close(outcome, other) and close(json.loads(responses), json.loads(others))):
            wrong += 1
    return wrong, exact


def close(value: object, other: object) -> bool:
    """Whether two JSON values are equal but for the rounding of their fractions."""
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=0.0, abs_tol=ROUNDING)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(close, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(close(value[k], other[k]) for k in value)
    return value == other


def measured(first: Path, hours: float, seconds: float, counts: tuple[int, int, int]) -> Sample:
    """What the process holds."""
    gc.collect()
    process = psutil.Process()
    grown = sum(path.stat().st_size for path in first.glob("*/rows.sqlite*"))
    return Sample(
        hours,
        seconds,
        process.memory_info().rss / MB,
        process.num_fds(),
        process.num_threads(),
        grown,
        *counts,
    )


def line(number: int, sample: Sample) -> str:
    """A cycle in one line."""
    return (
        f"cycle {number:3d}  {60 * sample.hours:5.1f} min  {sample.seconds:5.1f} s  "
        f"RSS {sample.rss:7.1f} MB  files {sample.files}  threads {sample.threads}  "
        f"resumed stores {sample.grown:,} B  rows {sample.rows:,}  wrong {sample.wrong}  "
        f"equal to the bit {sample.exact:,}"
    )


def verdict(samples: Sequence[Sample]) -> tuple[str, bool]:
    """A table of what grew, and whether all is well."""
    warm = max(FEWEST, round(WARM_UP * len(samples)))
    if len(samples) < warm + FEWEST:
        return f"FAIL: {len(samples)} cycles are too few to judge; run longer.", False
    before, after = samples[:warm], samples[warm:]
    rows = [memory(after)]
    kinds: dict[str, Callable[[Sample], int]] = {
        "open files": lambda sample: sample.files,
        "threads": lambda sample: sample.threads,
        "resumed stores, bytes": lambda sample: sample.grown,
    }
    rows += [flat(name, list(map(of, before)), list(map(of, after))) for name, of in kinds.items()]
    wrong = sum(sample.wrong for sample in samples)
    compared = sum(sample.rows for sample in samples[1:])
    rows.append(("rows wrong", f"{wrong} of {compared:,}", "none" if not wrong else "", not wrong))
    sound = all(row[3] for row in rows)
    table = ["| what | found | meaning | |", "|---|---|---|---|"]
    table += [f"| {a} | {b} | {c} | {'OK' if good else 'FAIL'} |" for a, b, c, good in rows]
    head = f"{len(samples)} cycles in {60 * samples[-1].hours:.1f} minutes, {warm} of them warm-up"
    return "\n".join([head, *table, "OK" if sound else "FAIL"]), sound


def memory(samples: Sequence[Sample]) -> tuple[str, str, str, bool]:
    """The slope of the memory in use, and what to make of it."""
    fit = stats.linregress([s.hours for s in samples], [s.rss for s in samples])
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(samples) - 2) * fit.stderr
    low, high = fit.slope - half, fit.slope + half
    if not half <= TOLD:
        meaning, good = "too uncertain; run longer", False
    elif low <= 0:
        meaning, good = ("not distinguishable from 0" if high >= 0 else "falling"), True
    else:
        meaning, good = (
            f"growing, {'below' if fit.slope < LEAK else 'not below'} {LEAK:g} MB/h",
            (fit.slope < LEAK),
        )
    sizes = [s.rss for s in samples]
    found = (
        f"{fit.slope:+.1f} MB/h (95 % interval {low:+.1f} to {high:+.1f}); "
        f"{min(sizes):.0f} to {max(sizes):.0f} MB"
    )
    return "memory (RSS)", found, meaning, good


def flat(name: str, before: Sequence[int], after: Sequence[int]) -> tuple[str, str, str, bool]:
    """Whether a count is no larger than it was in the warm-up."""
    good = max(after) <= max(before)
    found = f"{min(after):,} to {max(after):,}; in the warm-up at most {max(before):,}"
    return name, found, "flat" if good else "growing", good


if __name__ == "__main__":
    main()
