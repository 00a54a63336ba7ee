"""Make docs/results/words.md of the results that `caploc run studies/real.toml` has so far.

    python scripts/results.py [--runs build/results]
    python scripts/results.py --cnl runs/reproduce-cnl-real
    python scripts/results.py --heads runs/real

Each study's result.json is kept beside the page, without blanks. With `--cnl` the page is
docs/results/cnl.md instead, of what `caploc reproduce cnl --preset real` has so far; it may be
repeated, a folder for each model or for each part of what was measured on one. Models that are not
named, and parts that a folder does not have, keep what is stored of them. `--heads` copies the page
and the figures that `caploc reproduce all --preset real` wrote, with one --model or several.
"""

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from caploc.contents import Curve, read_file
from caploc.folder import read_json
from caploc.report.charts import Picture, curves, draw_matrix
from caploc.report.exhibits import markdown_page
from caploc.report.sentence import HeadlineVerdict, check_of, other_scores
from caploc.reproduce.cnl_preset import read_cnl_preset
from caploc.reproduce.verdicts import verdicts
from caploc.result import Change, Result

ROOT = Path(__file__).parents[1]
PAGE, KEPT = ROOT / "docs" / "results" / "words.md", ROOT / "docs" / "results" / "raw"
CURVES, FIGURES = PAGE.with_name("curves.json"), PAGE.with_name("figures")
MOST, DOTS = 5, 90  # heads along a curve; dots an inch of a figure
CNL_PAGE, CNL_KEPT = PAGE.with_name("cnl.md"), "cnl-{}.json"  # of a model
CNL_MODELS = ("smollm2", "gemma3-270m", "qwen2.5-coder-1.5b")  # in the page's order
LEFT_OUT = ("command", "subsets", "curve", "sweep", "group", "versions", "cost", "trials")
OWN, TWIN, OTHERS = "the task itself", "in other words", "other tasks"
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


def scores_by_heads(runs: Path) -> dict[str, dict[str, list[float | None]]]:
    """Read each study's scores of every task with 0, 1, 2 ... heads out: those kept, and new."""
    found: dict[str, Any] = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    for path in runs.glob("*/curve.json"):
        result = read_file(path.with_name("result.json"), Result)
        name = path.parent.name
        model = f"{result.model.name}-"
        found[name if name.startswith(model) else model + name] = {
            task: [None if point.score is None else round(point.score, 4) for point in points]
            for task, points in read_file(path, Curve).curves.items()
        }
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
    worst = f"{called(others[0].name)} {points(others[0].change)}" if others else "–"
    intact = "–" if held_out is None or held_out.intact is None else f"{held_out.intact:.2f}"
    random = "–" if controls is None or controls.mean is None else f"{controls.mean:.2f}"
    named = bool(result.top)
    return [
        called(result.task.name),
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
            yield f"![{model}: what each set changes](figures/{model}-sets.png)\n"
            yield from matrix(sets)
        if (FIGURES / f"{model}-curves.png").exists():
            yield f"\n### {model}: one head after another\n"
            yield f"![{model}: share left after each head](figures/{model}-curves.png)"


def called(task: str) -> str:
    """Write a task's name without what all have in common."""
    return task.removeprefix("words/")


def changes_by_set(sets: Sequence[Result]) -> tuple[list[str], np.ndarray]:
    """Return columns, and what every set changes in each, in points; NaN if it was not scored.

    A set's own task, on held-out examples, and its twin come first.
    """
    found = list[dict[str, Change | None]]()
    for result in sets:
        held_out, others = result.validation.held_out, result.validation.other_tasks
        own: dict[str, Change | None] = {OWN: held_out.change if held_out else None}
        found.append(
            own | {TWIN if each.twin else called(each.name): each.change for each in others}
        )
    columns = list(dict.fromkeys([OWN, TWIN, *(name for of in found for name in of)]))
    changes = [[of.get(name) for name in columns] for of in found]
    values = [
        [100 * each.outcome if each and each.outcome is not None else np.nan for each in line]
        for line in changes
    ]
    return columns, np.array(values)


def matrix(sets: Sequence[Result]) -> Iterator[str]:
    """Write every set against every task."""
    tasks, values = changes_by_set(sets)
    cells = [["" if np.isnan(each) else f"{each:+.0f}" for each in line] for line in values]
    rows = [[called(result.task.name), *line] for result, line in zip(sets, cells, strict=True)]
    return table(["set of", *tasks], rows)


def shares_left(
    results: dict[str, Result], kept: dict[str, dict[str, list[float | None]]]
) -> dict[str, list[tuple[float, float, float]]]:
    """Return the mean share of the intact score that is left after each number of heads.

    That of the searched task, of its twin and of other tasks, with the standard error over
    studies; of tasks with an intact score of .2 and more.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for name, result in results.items():
        twins = {each.name for each in result.validation.other_tasks if each.twin}
        lines: dict[tuple[str, int], list[float]] = {}
        for task, scores in kept.get(name, {}).items():
            kind = OWN if task == result.task.name else TWIN if task in twins else OTHERS
            for count, score in enumerate(scores[: MOST + 1]):
                if scores[0] is not None and scores[0] >= 0.2 and score is not None:
                    lines.setdefault((kind, count), []).append(score / scores[0])
        for (kind, count), shares in lines.items():
            found.setdefault(kind, {}).setdefault(count, []).append(float(np.mean(shares)))
    return {
        kind: [
            (count, float(np.mean(each)), float(np.std(each, ddof=1) / len(each) ** 0.5))
            for count, each in sorted(by_count.items())
            if len(each) > 2
        ]
        for kind, by_count in found.items()
    }


def draw(results: dict[str, Result], kept: dict[str, dict[str, list[float | None]]]) -> None:
    """Draw what each set changes, and the curves, of every model."""
    FIGURES.mkdir(exist_ok=True)
    for model in dict.fromkeys(result.model.name for result in results.values()):
        mine = {name: each for name, each in results.items() if each.model.name == model}
        sets = [each for each in mine.values() if goal_of(each) == "set" and each.top]
        if sets:
            tasks, values = changes_by_set(sets)
            names, label = [called(each.task.name) for each in sets], "change of the score, points"
            spec = draw_matrix(names, tasks, values, label=label, digits=0, diverging=True)
            (FIGURES / f"{model}-sets.png").write_bytes(Picture.of([spec]).png(DOTS))
        alone = {name: each for name, each in mine.items() if goal_of(each) == "heads"}
        if any((lines := shares_left(alone, kept)).values()):
            up = "share of the intact score"
            spec = curves(lines, across="heads knocked out", up=up, zero=True)
            (FIGURES / f"{model}-curves.png").write_bytes(Picture.of([spec]).png(DOTS))


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


def copy_exhibits(folder: Path) -> None:
    """Copy the page of a reproduction of the heads paper, and its figures."""
    text = (folder / "index.md").read_text()
    command = re.search(r"((?:--model \S+ )*)--out \S+", text)
    if command is None:
        raise SystemExit(f"{folder}/index.md does not say by --out how it was made.")
    models = command[1].split()[1::2]
    name = f"heads-{models[0].lower()}" if len(models) == 1 else "heads"
    text = text.replace(command[0], f"{command[1]}--out runs/real")
    (FIGURES / name).mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.png"):
        shutil.copy(path, FIGURES / name / path.name)
    PAGE.with_name(f"{name}.md").write_text(
        re.sub(r"\]\((\w+\.png)", rf"](figures/{name}/\1", text)
    )


def main() -> None:
    """Write a page's tables and the results beside it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "results")
    parser.add_argument(
        "--cnl", type=Path, action="append", help="a folder of caploc reproduce cnl --preset real"
    )
    parser.add_argument("--heads", type=Path, help="a folder of caploc reproduce all")
    asked = parser.parse_args()
    if asked.heads:
        copy_exhibits(asked.heads)
        return
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
    scores = scores_by_heads(asked.runs)
    CURVES.write_text(json.dumps(scores, separators=(",", ":")) + "\n")
    draw(results, scores)
    replace_tables(PAGE, "\n".join(tables(results)) + "\n")


if __name__ == "__main__":
    main()
