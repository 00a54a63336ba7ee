"""Make docs/results/words.md of the results that `caploc run studies/real.toml` has so far.

    python scripts/results.py [--runs build/results]
    python scripts/results.py --cnl runs/reproduce-cnl-real

Each study's result.json is kept beside the page, without blanks. With `--cnl` the page is
docs/results/cnl.md instead, of what `caploc reproduce cnl --preset real` has so far; it may be
repeated, a folder for each model or for each part of what was measured on one. Models that are not
named, and parts that a folder does not have, keep what is stored of them.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from caploc.contents import read_file
from caploc.folder import read_json
from caploc.report.exhibits import markdown_page
from caploc.report.sentence import HeadlineVerdict, check_of, other_scores
from caploc.reproduce.cnl_preset import read_cnl_preset
from caploc.reproduce.verdicts import verdicts
from caploc.result import Change, Result

ROOT = Path(__file__).parents[1]
PAGE, KEPT = ROOT / "docs" / "results" / "words.md", ROOT / "docs" / "results" / "raw"
CNL_PAGE, CNL_KEPT = PAGE.with_name("cnl.md"), "cnl-{}.json"  # of a model
CNL_MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")  # in the page's order
LEFT_OUT = ("command", "subsets", "curve", "sweep", "group", "versions", "cost", "trials")
BEGIN, END = "<!-- tables begin: made by scripts/results.py -->", "<!-- tables end -->"
WORDS = {
    HeadlineVerdict.NO_HEADS: "no head found",
    HeadlineVerdict.NOT_CHECKED: "not checked",
    HeadlineVerdict.UNHURT: "not hurt",
    HeadlineVerdict.NOISE: "may be chance",
    HeadlineVerdict.SLIGHT: "hardly touched",
    HeadlineVerdict.LIKE_RANDOM: "as random heads",
    HeadlineVerdict.NEEDED: "needed",
    HeadlineVerdict.UNSURE: "may be specific",
    HeadlineVerdict.SPECIFIC: "specific",
    HeadlineVerdict.SHARED: "shared",
    HeadlineVerdict.EVERYTHING: "needed by everything",
}


def finished(runs: Path, kept: Path = KEPT) -> dict[str, Result]:
    """Read every study's result, by model and name: those kept, and instead what ran since."""
    found = {
        path.stem: Result.model_validate(read_json(path))
        for path in kept.glob("*.json")
        if not path.name.startswith(CNL_KEPT.partition("{")[0])
    }
    for path in runs.glob("*/result.json"):
        result, name = read_file(path, Result), path.parent.name
        model = f"{result.model.name}-"
        found[name if name.startswith(model) else model + name] = result
    return dict(sorted(found.items()))


def points(change: Change | None) -> str:
    """Write a change in points with its interval."""
    if change is None or change.outcome is None:
        return "–"
    ends = "" if change.low is None or change.high is None else (
        f" ({100 * change.low:+.0f} to {100 * change.high:+.0f})"
    )  # fmt: skip
    return f"{100 * change.outcome:+.0f}{ends}"


def goal_of(result: Result) -> str:
    """Say what the study looked for."""
    return result.method.goal or result.search.goal or "heads"


def row(result: Result) -> list[str]:
    """Write a study as a line: heads, damage, twin, the largest loss elsewhere, the verdict."""
    validation, check = result.validation, check_of(result)
    held_out, controls = validation.held_out, validation.controls
    others, twins = other_scores(result, twins=False), other_scores(result, twins=True)
    worst = f"{others[0].name.removeprefix('words/')} {points(others[0].change)}" if others else "–"
    intact = "–" if held_out is None or held_out.intact is None else f"{held_out.intact:.2f}"
    random = "–" if controls is None or controls.mean is None else f"{controls.mean:.2f}"
    named = bool(result.top)
    return [
        result.task.name.removeprefix("words/"),
        " ".join(result.top) or "none",
        intact,
        points(held_out.change) if named and held_out else "–",
        random if named else "–",
        points(twins[0].change) if named and twins else "–",
        worst if named else "–",
        WORDS[check.verdict],
        f"{result.cost.search_rows or 0:,}",
    ]


HEADINGS = [
    "task", "heads", "intact", "change, points (95 %)", "random heads", "twin",
    "most hurt elsewhere", "verdict", "rows of the search",
]  # fmt: skip


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write a table of Markdown."""
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def tables(results: dict[str, Result]) -> Iterator[str]:
    """Write every model's studies by goal, and what each set does to every task."""
    for model in dict.fromkeys(result.model.name for result in results.values()):
        mine = [result for result in results.values() if result.model.name == model]
        for goal in ("heads", "set", "specific"):
            if some := [result for result in mine if goal_of(result) == goal]:
                yield f"\n### {model}, --goal {goal}\n"
                yield from table(HEADINGS, [row(result) for result in some])
        sets = [result for result in mine if goal_of(result) == "set" and result.top]
        if sets:
            yield f"\n### {model}: what each set changes, in points\n"
            yield from matrix(sets)


def matrix(sets: Sequence[Result]) -> Iterator[str]:
    """Write every set against every task; a task's own column is that of held-out examples."""
    tasks = list(
        dict.fromkeys(
            name
            for result in sets
            for name in (result.task.name, *(each.name for each in result.validation.other_tasks))
        )
    )
    rows = []
    for result in sets:
        held_out = result.validation.held_out
        changes = {each.name: each.change for each in result.validation.other_tasks}
        changes[result.task.name] = held_out.change if held_out else None
        cells = [
            "" if change is None or change.outcome is None else f"{100 * change.outcome:+.0f}"
            for change in map(changes.get, tasks)
        ]
        rows.append([result.task.name.removeprefix("words/"), *cells])
    return table(["set of", *(name.removeprefix("words/") for name in tasks)], rows)


def lighten(found: Any) -> Any:
    """Leave out what no verdict rests on, and of neurons all but the name."""
    if isinstance(found, dict):
        return {name: lighten(each) for name, each in found.items() if name not in LEFT_OUT}
    if isinstance(found, list):
        return [
            each.get("neuron") or lighten(each) if isinstance(each, dict) else each
            for each in found
        ]
    return found


def join_parts(stored: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Put what was found in place of what is stored of it; of tuning, run by run."""
    tuned = {seed: {**runs} for seed, runs in stored.get("enhancement", {}).items()}
    for seed, runs in found.get("enhancement", {}).items():
        tuned.setdefault(seed, {}).update(runs)
    joined = stored | found
    # a run of some of the preset's seeds or tasks plans fewer
    planned = max(each.get("runs_planned", 0) for each in (stored, found))
    together = {"enhancement": dict(sorted(tuned.items())), "runs_planned": planned}
    return joined | (together if tuned else {})


def model_of(found: dict[str, Any]) -> str:
    """Name the model of what `caploc reproduce cnl` measured, by the first part that has it."""
    for part in (*found.values(), *found.get("fidelity", {}).values(), found):
        if isinstance(part, dict) and "model" in part:
            model = part["model"]
            return str(model["name"] if isinstance(model, dict) else model)
    raise SystemExit("No part of verdicts.json names a model.")


def cnl_tables(kept: Path = KEPT) -> str:
    """Write the verdicts on CNL's claims for each model, and what each rests on."""
    kinds, parts = read_cnl_preset("real").kinds, list[str]()
    for model in CNL_MODELS:
        if (path := kept / CNL_KEPT.format(model)).exists():
            shown = verdicts(json.loads(path.read_text()), kinds)
            pages = (markdown_page(each).replace("## ", "### ", 1) for each in shown)
            parts += [f"## {model}\n", *pages]
    return "\n".join(parts)


def replace_tables(page: Path, text: str) -> None:
    """Put tables between the marks of a page."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])


def main() -> None:
    """Write a page's tables and the results beside it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "results")
    parser.add_argument(
        "--cnl", type=Path, action="append", help="a folder of caploc reproduce cnl --preset real"
    )
    asked = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if asked.cnl:
        for folder in asked.cnl:
            found = lighten(read_json(folder / "verdicts.json"))
            kept = KEPT / CNL_KEPT.format(model_of(found))
            joined = join_parts(json.loads(kept.read_text()) if kept.exists() else {}, found)
            kept.write_text(json.dumps(joined, separators=(",", ":")) + "\n")
        replace_tables(CNL_PAGE, cnl_tables())
        return
    results = finished(asked.runs)
    for name, result in results.items():
        text = json.dumps(result.as_dict(), separators=(",", ":"))
        (KEPT / f"{name}.json").write_text(text + "\n")
    replace_tables(PAGE, "\n".join(tables(results)) + "\n")


if __name__ == "__main__":
    main()
