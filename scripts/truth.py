"""Measure what every single head of the demo model does for every capability, and print it.

    python scripts/truth.py --out runs/truth --examples 512 > truth.md

Resumes what lies in `--out`. The tables go into docs/log.md.
"""

import argparse
from pathlib import Path
from typing import Any

from caploc.cli import hush
from caploc.console import progress
from caploc.search import Settings
from caploc.studies.running import locate_all
from caploc.study import Study
from caploc.tasks.catalog import DEMO_CAPABILITIES
from caploc.workbench import ModelOptions

CLEAR = 0.005  # effects below half a point are not worth a number in the table
FINAL = 64  # examples of the scores with five heads gone


def main() -> None:
    """Run one-shot on every capability and on the general task; print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/truth"))
    parser.add_argument("--examples", type=int, default=512)
    arguments = parser.parse_args()
    hush()
    names = [f"demo/{name}" for name in (*DEMO_CAPABILITIES, "sentences")]
    studies = [
        Study(
            model=ModelOptions("demo"),
            task=name,
            method="one-shot",
            settings=Settings(),
            examples=arguments.examples,
            limit=FINAL,
            other_tasks=tuple(other for other in names if other != name),
        )
        for name in names
    ]
    with progress(quiet=False) as bars:
        sweep = locate_all(studies, arguments.out, bars, command="python scripts/truth.py")
    results = [outcome.result.as_dict() for outcome in sweep.outcomes if outcome.result]
    print(together(results), alone(results), sep="\n\n")


def together(results: list[dict[str, Any]]) -> str:
    """What the five strongest heads of each task do to every task."""
    names = [short(result) for result in results]
    lines = ["| five heads of | heads (effect alone) | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    intact = [score(result["validation"]["task"]["intact"]) for result in results]
    lines.append("| none | | " + " | ".join(intact) + " |")
    for result in results:
        validation = result["validation"]
        after = {other["name"]: other["knocked_out"] for other in validation["other_tasks"]}
        after[validation["task"]["name"]] = validation["task"]["knocked_out"]
        cells = [score(after[f"demo/{name}"]) for name in names]
        effects = {row["head"]: row["effect"] for row in result["heads"]}
        heads = ", ".join(f"{head} {effects[head]:+.2f}" for head in result["top"])
        lines.append(f"| {short(result)} | {heads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def alone(results: list[dict[str, Any]]) -> str:
    """The effect of every head alone on every task, in points of accuracy."""
    names = [short(result) for result in results]
    lines = ["| head | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    effects = [{row["head"]: row["effect"] for row in result["heads"]} for result in results]
    order = sorted(results[0]["heads"], key=lambda row: (row["layer"], row["index"]))
    for head in (row["head"] for row in order):
        cells = [f"{100 * e[head]:+.1f}" if abs(e[head]) >= CLEAR else "·" for e in effects]
        lines.append(f"| {head} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def short(result: dict[str, Any]) -> str:
    """A task's name without `demo/`."""
    return str(result["task"]["name"]).removeprefix("demo/")


def score(value: dict[str, Any]) -> str:
    """A score with two decimals."""
    return f"{value['score']:.2f}"


if __name__ == "__main__":
    main()
