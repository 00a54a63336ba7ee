"""What a study found: from what the stages leave to the files of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caploc.components import AMONG, WITHIN
from caploc.cost import Cost
from caploc.folder import ANSWERS, RESULT, package_versions, write_json
from caploc.measurement import HeadModel, Meter
from caploc.models.sources import title_of
from caploc.process import redacted
from caploc.progress import Progress
from caploc.report.page import write_report
from caploc.report.wording import called
from caploc.result import (
    SCHEMA,
    AnswerPair,
    Estimand,
    Fit,
    Frontier,
    GridShape,
    HeadEffect,
    LocatedTask,
    MethodSettings,
    Model,
    Noise,
    Result,
    RunCost,
    Score,
    Search,
    Subsets,
    Validation,
    number,
)
from caploc.search import Found
from caploc.search.settings import KNOBS
from caploc.store import Row
from caploc.tasks.task import Task, responses_from_json
from caploc.validation import ROUNDED, Comparison, above_noise, measure_noise
from caploc.validation.categories import Category
from caploc.validation.failures import answer_pair

SHOWN = 10_000  # answers that the report shows at most


@dataclass(frozen=True)
class Stages:
    """What each stage left for the next; validation leaves what has no value before."""

    loaded: HeadModel
    task: Task
    examples: list[int]
    kept: list[int]  # examples that the search never saw
    seen: list[int]  # those that it did
    intact: Score
    found: Found
    searched: int = 0  # rows that the search took
    looked: int = 0  # of them, those with nothing knocked out
    subsets: Subsets | None = None  # the set as found beside its parts, if it has any
    frontier: Frontier | None = None  # the sets of a search for a specific one
    comparison: Comparison | None = None  # of the task itself
    labels: Mapping[int, Category] = field(default_factory=dict)  # of its answers
    validation: Validation | None = None
    estimand: Estimand | None = None  # which effects are shown, and why heads are named
    noise: Noise | None = None  # of intact rows that were asked twice


@dataclass(frozen=True)
class StudyFindings:
    """The result of a study and where it lies."""

    result: Result
    folder: Path
    report: Path


def without_noise(
    stages: Stages,
    intact: Sequence[Row],
    again: Callable[[], Meter],
    alone: bool,
    seed: int,
    progress: Progress,
) -> Stages:
    """Measure what rounding does to the intact rows, asked `again`, in a rounded number format.

    Where heads are named for what they do `alone`, none is for as little as that.
    """
    if stages.loaded.dtype not in ROUNDED:
        return stages
    noise = measure_noise(intact, again(), stages.loaded.grid.size, seed, progress)
    found = above_noise(stages.found, noise) if alone else stages.found
    return replace(stages, found=found, noise=noise)


def estimand_of(found: Found, rate: float, together: bool) -> Estimand:
    """Say which effects the map shows, at which rate, and for which the heads are named."""
    shown = found.estimate.estimand
    among = found.diagnostics.get("rate", rate) if shown == AMONG else None
    return Estimand(heads=shown, rate=among, top=WITHIN if together else shown)


def write_findings(
    folder: Path, study: dict[str, Any], stages: Stages, cost: Cost, command: str
) -> StudyFindings:
    """Write `result.json`, the answers shown, and the report."""
    result, answers = build_result(study, stages, cost, command), shown_answers(stages)
    write_json(folder / RESULT, result.as_dict())
    write_json(folder / ANSWERS, [answer.as_dict() for answer in answers])
    return StudyFindings(result, folder, write_report(folder, result, answers))


def build_result(study: dict[str, Any], stages: Stages, cost: Cost, command: str) -> Result:
    """Put together the result of a study that was validated."""
    loaded, task, found = stages.loaded, stages.task, stages.found
    assert stages.validation is not None and stages.estimand is not None
    estimate, grid = found.estimate, loaded.grid
    return Result(
        schema=SCHEMA,
        model=Model(
            name=loaded.name,
            title=title_of(loaded.name),
            fingerprint=loaded.fingerprint,
            dtype=loaded.dtype,
            device=str(loaded.device),
            uncovered=list(loaded.uncovered),
        ),
        task=LocatedTask(
            name=task.name,
            metric=task.in_metric().metric,
            outcome=task.outcome_kind,
            examples=task.size,
            higher_is_better=task.in_metric().higher_is_better,
        ),
        method=method_settings(study, stages),
        seed=study["settings"]["seed"],
        grid=GridShape.of(grid),
        intact=stages.intact,
        noise=stages.noise,
        estimand=stages.estimand,
        heads=rank_heads(stages),
        top=[str(grid.components[column]) for column in found.chosen],
        fit=Fit(
            estimator=estimate.estimator,
            r2_held_out=number(estimate.r2_held_out),
            noise_ceiling=number(estimate.ceiling),
            masks=len(found.seen.masks),
            rows=len(found.seen.outcome),
        ),
        search=describe_search(stages, study.get("exclude", ()), study["settings"]["goal"]),
        validation=stages.validation,
        engines=cost.answerers(),
        cost=RunCost.model_validate(
            cost.as_dict() | {"search_rows": stages.searched, "intact_rows": stages.looked}
        ),
        command=redacted(command),
        versions=package_versions(),
    )


def method_settings(study: dict[str, Any], stages: Stages) -> MethodSettings:
    """The method and the settings it used; those it does not use are None."""
    said = stages.found.diagnostics
    kept = said if "settings" in said else study["settings"] if study["draws_masks"] else {}
    return MethodSettings(
        name=study["method"],
        masks=kept.get("masks"),
        rate=kept.get("rate"),
        top=study["settings"]["top"],
        goal=study["settings"]["goal"] if stages.found.stages else None,
        examples=len(stages.examples),
        mode=study["mode"]["name"],
        corrupted=study["mode"]["corrupted"],
        positions=study["mode"]["positions"],
    )


def describe_search(stages: Stages, excluded: Sequence[str], goal: str) -> Search:
    """What a search says of itself, heads by name."""
    heads, found = stages.loaded.grid.components, stages.found

    def names(columns: Sequence[int]) -> list[str]:
        return [str(heads[column]) for column in columns]

    said = dict(found.diagnostics)
    if both := found.stages:
        said |= {
            "goal": goal,
            "budget": both.budget,
            "rows": both.rows,
            "tried": names(both.tried),
            "tried_on": both.tried_on,
            "jaccard": both.jaccard,
            "sets": both.sets,
        }
    if "settings" in said:
        said["settings"] = [each | {"heads": names(each["heads"])} for each in said["settings"]]
    if "steps" in said:
        said["steps"] = [each | {"head": str(heads[each["head"]])} for each in said["steps"]]
    named = {"critical": names(found.critical), "universal": names(found.universal)}
    breaks = {
        str(heads[column]): called(probe)
        for column, probe in found.breaks_task.items()
        if column in found.universal
    }
    notes = [*tell_universal(breaks), *found.notes]
    more = {"excluded": list(excluded), "notes": notes, "breaks": breaks}
    return Search.model_validate(said | named | more)


def tell_universal(tasks: Mapping[str, str]) -> list[str]:
    """Say which heads are not named since they break another task too, by their names."""
    return [
        f"{head} breaks {task} as well, and is left out: it takes half or more of up to "
        f"{KNOBS.elsewhere} right answers there."
        for head, task in tasks.items()
    ]


def rank_heads(stages: Stages) -> list[HeadEffect]:
    """Every head, most needed first; heads without an estimate come last."""
    found, estimate = stages.found, stages.found.estimate
    chances, validation = estimate.top_chance, stages.validation
    known = bool(validation and validation.other_tasks)  # else no head can be seen to be universal
    tested = {*found.chosen, *found.universal}
    rows = [
        HeadEffect(
            head=str(head),
            layer=head.layer,
            index=head.index,
            effect=number(estimate.effect[column]),
            low=number(estimate.low[column]),
            high=number(estimate.high[column]),
            q=number(estimate.q[column]),
            top_chance=None if chances is None else number(chances[column]),
            selected=column in found.chosen,
            critical=column in found.critical,
            universal=column in found.universal if known and column in tested else None,
            **scanned(found, column),
        )
        for column, head in enumerate(stages.loaded.grid.components)
    ]
    return sorted(rows, key=lambda row: math.inf if row.effect is None else row.effect)


def scanned(found: Found, column: int) -> dict[str, Any]:
    """What the scan tells of a head, as its record has it."""
    if found.stages is None or not found.stages.scanned[column]:
        return {}
    return {
        "scanned": int(found.stages.scanned[column]),
        "broken": int(found.stages.broken[column]),
        "lost": number(float(found.stages.lost[column])),
    }


def shown_answers(stages: Stages) -> list[AnswerPair]:
    """Answers before and after on the task itself, the differing ones first."""
    first = stages.comparison
    assert first is not None
    pairs = list(zip(first.intact_rows, first.knocked_out_rows, strict=True))
    pairs.sort(key=lambda pair: pair[0].outcome == pair[1].outcome)
    task = stages.task.in_metric()
    return [
        answer_pair(
            task,
            before.number,
            responses_from_json(before.responses),
            responses_from_json(after.responses),
            intact_outcome=number(before.outcome),
            knocked_out_outcome=number(after.outcome),
            kind=stages.labels.get(before.number),
        )
        for before, after in pairs[:SHOWN]
    ]
