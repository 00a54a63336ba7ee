"""The record of a finding, put together from search and checks, and the files of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caploc.checks import Checks
from caploc.components import AMONG, WITHIN, Grid
from caploc.declaration import Study
from caploc.folder import ANSWERS, RESULT, package_versions, write_json
from caploc.result import (
    SCHEMA,
    AnswerPair,
    Estimand,
    Fit,
    GridShape,
    HeadEffect,
    LocatedTask,
    MethodSettings,
    Model,
    Result,
    RunCost,
    Search,
    number,
)
from caploc.search import METHODS, Found
from caploc.session import SearchResult, Session
from caploc.validation.lost import show_pair
from caploc.verdict import written
from caploc.wording import called

SHOWN = 10_000  # answers that the report shows at most


@dataclass(frozen=True)
class StudyFindings:
    """The result of a study and where it lies."""

    result: Result
    folder: Path
    report: Path


def write_findings(folder: Path, result: Result, checks: Checks) -> StudyFindings:
    """Write `result.json`, the answers shown, the report and its figures."""
    from caploc.report.page import rewrite_page  # drawing waits until there is something to draw

    answers = shown_answers(checks)
    write_json(folder / RESULT, written(result))
    write_json(folder / ANSWERS, [answer.as_dict() for answer in answers])
    return StudyFindings(result, folder, rewrite_page(folder))


def build_result(session: Session, search: SearchResult, checks: Checks, command: str) -> Result:
    """Put together the result of a study from what was found and what was checked."""
    study, task, loaded, grid = (
        session.study,
        session.task,
        session.meters.engine.loaded,
        session.grid,
    )
    found = replace(search.found, chosen=checks.chosen, notes=checks.notes)
    estimate, cost = found.estimate, session.meters.cost.as_dict()
    shown = estimate.estimand
    among = found.diagnostics.get("rate", study.settings.rate) if shown == AMONG else None
    return Result(
        schema=SCHEMA,
        model=Model(
            name=loaded.name,
            fingerprint=loaded.fingerprint,
            dtype=loaded.dtype,
            device=str(loaded.device),
            uncovered=list(loaded.uncovered),
        ),
        task=LocatedTask(
            name=task.name,
            metric=task.in_metric().metric.name,
            outcome=task.metric.kind,
            examples=task.size,
            copies=session.copies,
            higher_is_better=task.in_metric().metric.higher_is_better,
        ),
        method=method_settings(study, found, len(session.draw.searched)),
        seed=study.settings.seed,
        grid=GridShape.of(loaded.grid, study.components),
        intact=search.intact,
        estimand=Estimand(heads=shown, rate=among, top=WITHIN if study.names_sets else shown),
        heads=rank_heads(grid, found, others=bool(checks.validation.other_tasks)),
        top=[str(grid.components[column]) for column in found.chosen],
        fit=Fit(
            estimator=estimate.estimator,
            r2_held_out=number(estimate.r2_held_out),
            masks=len(found.seen.masks),
            rows=len(found.seen.outcome),
        ),
        search=describe_search(grid, found, study),
        validation=checks.validation,
        cost=RunCost.model_validate(
            cost | {"search_rows": search.rows, "intact_rows": search.intact_rows}
        ),
        command=command,
        versions=package_versions(),
    )


def method_settings(study: Study, found: Found, examples: int) -> MethodSettings:
    """The method and the settings it used; those it does not use are None."""
    masks, rate = None, None
    if "settings" in found.diagnostics:  # it chose among several
        masks, rate = found.diagnostics["masks"], found.diagnostics["rate"]
    elif METHODS[study.method].draws_masks:
        masks, rate = study.settings.masks, study.settings.rate
    return MethodSettings(
        name=study.method,
        masks=masks,
        rate=rate,
        top=study.settings.top,
        goal=study.settings.goal if found.stages else None,
        examples=examples,
        mode=study.mode.name,
        corrupted=study.mode.corrupted,
    )


def describe_search(grid: Grid[Any], found: Found, study: Study) -> Search:
    """What a search says of itself, heads by name."""
    heads = grid.components

    def names(columns: Sequence[int]) -> list[str]:
        return [str(heads[column]) for column in columns]

    said = dict(found.diagnostics)
    if both := found.stages:
        said |= {
            "goal": study.settings.goal,
            "budget": both.budget,
            "rows": both.rows,
            "tried": names(both.tried),
            "tried_on": both.tried_on,
            "stability": both.stability,
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
    more = {"excluded": list(study.exclude), "notes": found.notes, "breaks": breaks}
    return Search.model_validate(said | named | more)


def rank_heads(grid: Grid[Any], found: Found, *, others: bool) -> list[HeadEffect]:
    """Every head, most needed first; heads without an estimate come last.

    Without `others`, other tasks, no head can be seen to break them.
    """
    estimate, chances = found.estimate, found.estimate.top_chance
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
            universal=column in found.universal if others and column in tested else None,
            **scanned(found, column),
        )
        for column, head in enumerate(grid.components)
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


def shown_answers(checks: Checks) -> list[AnswerPair]:
    """Answers before and after on the task itself, the differing ones first."""
    first = checks.answers
    pairs = list(zip(first.intact_rows, first.knocked_out_rows, strict=True))
    pairs.sort(key=lambda pair: pair[0].outcome == pair[1].outcome)
    return [show_pair(first.task, *pair) for pair in pairs[:SHOWN]]
