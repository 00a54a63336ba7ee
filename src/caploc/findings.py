"""What a study found, as the stages leave it and as `result.json` keeps it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from caploc.folder import ANSWERS, RESULT, versions, write_json
from caploc.measurement import Cost, HeadModel
from caploc.redaction import redacted
from caploc.report import write_report
from caploc.search import Found
from caploc.store import Row
from caploc.tasks.requests import responses_from_json
from caploc.tasks.task import Score, Task
from caploc.validation import Comparison, Failures
from caploc.validation.comparison import number

SCHEMA = 1
SHOWN = 10_000  # answers that the report shows at most


@dataclass(frozen=True)
class Stages:
    """What each stage left for the next."""

    loaded: HeadModel
    task: Task
    examples: list[int]
    kept: list[int]  # examples that the search never saw
    seen: list[int]  # those that it did
    intact: Score
    found: Found
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[Failures] = field(default_factory=list)  # of each comparison
    held_out: dict[str, Any] = field(default_factory=dict)
    subsets: dict[str, Any] | None = None  # the set as found beside its parts, if it has any
    members: dict[str, Any] | None = None  # what each named head does alone and within the set
    estimand: dict[str, Any] | None = None  # which effects are shown, and why heads are named


@dataclass(frozen=True)
class StudyFindings:
    """The result of a study and where it lies."""

    result: dict[str, Any]
    folder: Path
    report: Path


def write_findings(
    folder: Path, study: dict[str, Any], stages: Stages, cost: Cost, command: str
) -> StudyFindings:
    """Write `result.json`, the answers shown, and the report."""
    told = {"command": redacted(command), "versions": versions()}
    result = as_result(study, stages, cost) | told
    answers = shown_answers(stages)
    write_json(folder / RESULT, result)
    write_json(folder / ANSWERS, answers)
    return StudyFindings(result, folder, write_report(folder, result, answers))


def as_result(study: dict[str, Any], stages: Stages, cost: Cost) -> dict[str, Any]:
    """The content of `result.json`; missing is None, never 0."""
    loaded, task, found = stages.loaded, stages.task, stages.found
    estimate = found.estimate
    heads = loaded.grid.heads
    first, *others = [
        comparison.as_dict() | {"failures": failures.as_dict()}
        for comparison, failures in zip(stages.comparisons, stages.failures, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "model": {
            "name": loaded.name,
            "fingerprint": loaded.fingerprint,
            "dtype": loaded.dtype,
            "device": str(loaded.device),
        },
        "task": {
            "name": task.name,
            "metric": task.in_metric().metric,
            "outcome": task.outcome_kind,
            "examples": task.size,
            "higher_is_better": task.in_metric().higher_is_better,
        },
        "method": method_fields(study, stages),
        "seed": study["settings"]["seed"],
        "grid": {
            "layers": loaded.grid.layers,
            "heads": list(loaded.grid.heads_per_layer),
            "group_sizes": list(loaded.grid.group_sizes),
        },
        "intact": asdict(stages.intact),
        "estimand": stages.estimand,
        "heads": ranked(stages),
        "top": [str(heads[column]) for column in found.chosen],
        "fit": {
            "estimator": estimate.estimator,
            "r2_held_out": number(estimate.r2_held_out),
            "noise_ceiling": number(estimate.ceiling),
            "masks": len(found.seen.masks),
            "rows": len(found.seen.outcome),
        },
        "search": told(stages) | {"notes": found.notes},
        "validation": {
            "task": first,
            "controls": stages.held_out.get("controls"),
            "held_out": {k: v for k, v in stages.held_out.items() if k != "controls"},
            "other_tasks": others,
            "subsets": stages.subsets,
            "members": stages.members,
        },
        "cost": cost.as_dict(),
    }


def method_fields(study: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """The method and the settings it used; those it does not use are None."""
    told = stages.found.diagnostics
    kept = told if "settings" in told else study["settings"] if study["draws_masks"] else {}
    return {
        "name": study["method"],
        "masks": kept.get("masks"),
        "rate": kept.get("rate"),
        "top": study["settings"]["top"],
        "goal": told.get("goal"),
        "examples": len(stages.examples),
    }


def told(stages: Stages) -> dict[str, Any]:
    """What a search says of itself, heads by name."""
    heads, found = stages.loaded.grid.heads, stages.found

    def names(columns: Sequence[int]) -> list[str]:
        return [str(heads[column]) for column in columns]

    said = dict(found.diagnostics)
    for key in said.keys() & {"shortlist", "tied"}:
        said[key] = names(said[key])
    if "settings" in said:
        said["settings"] = [each | {"heads": names(each["heads"])} for each in said["settings"]]
    return said | {"critical": names(found.critical), "universal": names(found.universal)}


def ranked(stages: Stages) -> list[dict[str, Any]]:
    """Every head, most needed first; heads without an estimate come last."""
    found, estimate = stages.found, stages.found.estimate
    chances = estimate.top_chance
    known = bool(stages.comparisons[1:])  # only another task can show that a head is universal
    rows = [
        {
            "head": str(head),
            "layer": head.layer,
            "index": head.index,
            "effect": number(estimate.effect[column]),
            "low": number(estimate.low[column]),
            "high": number(estimate.high[column]),
            "q": number(estimate.q[column]),
            "top_chance": None if chances is None else number(chances[column]),
            "selected": column in found.chosen,
            "critical": column in found.critical,
            "universal": column in found.universal if known and column in found.critical else None,
        }
        for column, head in enumerate(stages.loaded.grid.heads)
    ]
    return sorted(rows, key=lambda row: math.inf if row["effect"] is None else row["effect"])


def shown_answers(stages: Stages) -> list[dict[str, Any]]:
    """Answers before and after on the task itself, the differing ones first."""
    first = stages.comparisons[0]
    pairs = list(zip(first.intact_rows, first.knocked_out_rows, strict=True))
    pairs.sort(key=lambda pair: pair[0].outcome == pair[1].outcome)
    task = stages.task.in_metric()
    kinds = stages.failures[0].labels
    return [
        answer(task, before, after) | {"kind": kinds.get(after.number)}
        for before, after in pairs[:SHOWN]
    ]


def answer(task: Task, before: Row, after: Row) -> dict[str, Any]:
    """One example, answered with and without the chosen heads."""
    intact = task.show(before.number, responses_from_json(before.responses))
    knocked_out = task.show(after.number, responses_from_json(after.responses))
    return {
        "example": before.number,
        "prompt": intact.prompt,
        "gold": intact.gold,
        "intact": intact.answer,
        "knocked_out": knocked_out.answer,
        "intact_outcome": number(before.outcome),
        "knocked_out_outcome": number(after.outcome),
    }
