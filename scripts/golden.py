"""Keep the numbers of a few runs, and say later which have changed.

    python scripts/golden.py record build/golden
    python scripts/golden.py compare build/golden --only tiny-demo,reproduce-cnl

A case is a command of caploc. It runs into a folder of its own, from nothing; every number, and
every name of a part such as `L3H2`, in its JSON files and tables is kept in FOLDER/CASE.json,
rounded to twelve significant digits. Durations and what says how or with what a run was made are
left out. `compare` runs the cases again, prints what differs and exits with 1 if anything does.
"""

import argparse
import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests" / "reproduce"
CASES = {
    "tiny-demo": ["demo", "--tiny"],
    "reproduce-all": ["reproduce", "all", "--preset", str(SMALL / "small.toml")],
    "reproduce-cnl": ["reproduce", "cnl", "--preset", str(SMALL / "cnl_small.toml")],
    "smollm2-a": "locate smollm2 --task words/past --also words/plural --budget 560 --limit 20 "
    "--controls 5".split(),
    "smollm2-b": "locate smollm2 --task words/upper --also words/past --method css --masks 24 "
    "--rate 0.03 --examples 16 --limit 20 --controls 5".split(),
}
LEFT_OUT = re.compile(r"seconds|versions|command|started|finished|schema")
MADE_BY = ("run.json",)  # what was asked, not what was found
PART = re.compile(r"L\d+(H|N|KV)\d+")
DIGITS = 12
TOLD = 20  # differences of a file that are printed
# one thread adds up the same way on every machine; nothing is fetched on the way
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
Figures = dict[str, float | str]


def run(case: str, folder: Path) -> dict[str, Figures]:
    """Run a case into an empty folder; the figures of each of its files."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "caploc", *CASES[case], "--quiet", "--out", str(folder)]
    log = folder.with_suffix(".log")
    with log.open("w") as file:
        begun = time.monotonic()
        ended = subprocess.run(
            command, cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=file, stderr=file, check=False
        )
    print(f"{case}: {time.monotonic() - begun:.0f} s", flush=True)
    if ended.returncode:
        sys.exit(f"{case} ended with {ended.returncode}; see {log}")
    return {
        str(path.relative_to(folder)): dict(found)
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".json", ".csv") and path.name not in MADE_BY
        if (found := dict(figures(content(path))))
    }


def content(path: Path) -> Any:
    """A file's content; of a table the cells, numbers as such."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with path.open(newline="") as file:
        return [[number(cell) for cell in row] for row in csv.reader(file)]


def number(cell: str) -> float | str:
    """A cell as a number, if it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float | str]]:
    """Every figure inside a value, with its place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not LEFT_OUT.search(name):
                yield from figures(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from figures(inner, f"{place}[{at}]")
    elif isinstance(value, int | float):
        yield place, float(f"{value:.{DIGITS}g}") if math.isfinite(value) else repr(value)
    elif isinstance(value, str) and PART.fullmatch(value):
        yield place, value


def differences(before: dict[str, Figures], after: dict[str, Figures]) -> Iterator[str]:
    """What changed, file by file."""
    for name in sorted(before | after):
        if name not in after or name not in before:
            yield f"{name}: {'gone' if name in before else 'new'}"
            continue
        old, new = before[name], after[name]
        changed = [
            f"{place}: {old.get(place, 'nothing')} is now {new.get(place, 'nothing')}"
            for place in old | new
            if old.get(place) != new.get(place)
        ]
        yield from (f"{name} {each}" for each in changed[:TOLD])
        if len(changed) > TOLD:
            yield f"{name}: {len(changed) - TOLD} more of {len(old)}"


def main() -> None:
    """Record the cases, or compare them with what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(CASES), help="cases, parted by commas")
    asked = parser.parse_args()
    cases = asked.only.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    changed = False
    for case in cases:
        kept = asked.folder / f"{case}.json"
        if asked.what == "record":
            kept.write_text(json.dumps(run(case, asked.folder / case), indent=0))
            continue
        before = json.loads(kept.read_text())
        found = list(differences(before, run(case, asked.folder / f"{case}-now")))
        total = sum(map(len, before.values()))
        print("\n".join(found) if found else f"{case}: all {total:,} figures equal", flush=True)
        changed = changed or bool(found)
    sys.exit(changed)


if __name__ == "__main__":
    main()
