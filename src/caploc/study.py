"""A study from end to end: the one file that knows the order of the stages."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from caploc import designs
from caploc.contents import Curve
from caploc.declaration import CHECKED, Study, held_back
from caploc.findings import Stages, StudyFindings, estimand_of, without_noise, write_findings
from caploc.folder import CURVE, RESULT, claim, rows_file, write_json
from caploc.measurement import HeadModel, Meter, RowEngine, outcomes_by_example, search
from caploc.models.sources import title_of
from caploc.progress import Progress, Silent, expect, tell, tell_once
from caploc.recovery.estimate import is_binary
from caploc.report.wording import called
from caploc.result import Members, TaskComparison, Validation
from caploc.search import METHODS, Found, Problem, column_mask
from caploc.search.plan import OtherTask
from caploc.search.summary import nothing_to_lose
from caploc.store import Row
from caploc.tasks.defects import without_copies
from caploc.tasks.harness import digest_data
from caploc.tasks.signal import Signal
from caploc.tasks.task import LogLikelihood, Rolling, Task, prompt_of, responses_from_json
from caploc.tracking import log_run
from caploc.validation import (
    CURVED,
    EXAMPLES,
    MASKS,
    REPEATED,
    Check,
    draw_curve,
    held_out,
    score_both,
)
from caploc.validation.categories import tell_left_out
from caploc.validation.failures import categorize_failures
from caploc.validation.frontier import (
    JUDGED,
    OFFERED,
    SEARCHED,
    Promise,
    frontier_note,
    judge_frontier,
    offer_part,
    split_examples,
)
from caploc.validation.intact import describe_trouble
from caploc.validation.members import drop_idle_members, judge, measure_members
from caploc.workbench import (
    Workbench,
    check_pairs,
)

ELSEWHERE = 24  # examples of each other task, to tell heads that break everything
BEFORE = 30  # characters of a prompt's end and an answer's beginning that are shown
SETS = 20  # that a search for a specific one hands to its check, at most as a rule
HeadBench = Workbench[HeadModel]


def one_of_each_question(task: Task, most: float, progress: Progress) -> Task:
    """Leave out copies, so that no question is searched on and held out as well, and say so.

    Raises BadData if more than the share `most` of the examples contradict another one.
    """
    kept = without_copies(task, most)
    if kept.size < task.size:
        tell(
            progress,
            f"{called(task.name)}: {task.size:,} examples put {kept.size:,} different questions; "
            "one of each is asked.",
        )
    return kept


def describe_join(task: Task) -> str:
    """Show how the first example's prompt and right answer are joined, as they are written."""
    request, gold = task.requests(0)[0], task.gold(0)
    if isinstance(request, LogLikelihood):
        gold = request.continuation
    if isinstance(request, Rolling) or gold is None:
        return ""
    return f" Asked as {prompt_of(request)[-BEFORE:]!r} + {gold[:BEFORE]!r}."


def describe_uncovered(part: str) -> str:
    """Say that something mixes tokens beside the heads."""
    return (
        f"Not covered: {part} carries something from token to token, and has no head that could be "
        "knocked out."
    )


def announce(study: Study, tasks: Sequence[Task], heads: int, progress: Progress) -> None:
    """Say what will be done, and how many rows it takes at most."""
    searched, checked = most_searched(study, tasks, heads), most_checked(study, tasks)
    tell(
        progress,
        f"{called(study.task)} in {called(title_of(study.model.name) or study.model.name)}: a "
        f"search among {heads} heads, up to {searched:,} rows; its checks, up to {checked:,} more."
        f"{describe_join(tasks[0])}",
    )
    expect(progress, searched + checked)


def most_searched(study: Study, tasks: Sequence[Task], heads: int) -> int:
    """Bound the rows of a search: its budget, and the intact model on all that it may look at."""
    method, (examples, kept) = METHODS[study.method], study.drawn(tasks[0].size)
    fresh = [] if method.masks else kept[len(held_back(kept)) :]
    intact = len(examples) + len(fresh)
    if method.has_goals:  # how likely right answers are, and what else a head breaks
        intact = 2 * intact + len(study.beside) * ELSEWHERE
    if study.seeks_specific:
        intact += 2 * SEARCHED * len({*study.twins, *study.spare})
    return method.most_rows(Problem(heads, examples, study.settings, fresh=fresh)) + intact


def most_checked(study: Study, tasks: Sequence[Task], found: Found | None = None) -> int:
    """Bound the rows of all stages after a search, before it begins or by what it found."""
    named, sets = study.settings.top, SETS if study.seeks_specific else OFFERED
    if found is not None:
        named = len(found.chosen)
        sets = len(found.candidates) if study.seeks_specific else OFFERED
    named = max(named, 1)
    tried = 4 * named  # its beginnings, each head alone, all but each, the same of a part
    if study.seeks_set:
        tried += named**2  # all but each, again after every head that leaves
    most = study.limit or max(task.size for task in tasks)
    rows = min(CHECKED, most) * (2 + tried + sets + 2 * study.controls) + REPEATED
    rows += MASKS * EXAMPLES if study.controls else 0
    rows += sum(2 * min(most, task.size) for task in tasks)  # before and after
    if not study.quick:
        rows += (1 + named) * CURVED * len(tasks)
    if study.seeks_specific or not study.quick:
        rows += (1 + sets) * JUDGED * len(study.beside)
    return rows


def run_study(
    study: Study,
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
    engine: RowEngine[HeadModel] | None = None,
) -> StudyFindings:
    """Design, measurement, recovery, validation, curve and report, in that order.

    `engine` may be one already loaded for the study's model. Whatever was measured in `folder`
    before is used. Raises UserError for a mistake in the study; RunFailed if the machine gives up;
    rows already measured are kept.
    """
    progress, study = progress or Silent(), study.check()
    tasks, intervention = study.tasks(), study.intervention()
    tasks = [one_of_each_question(task, study.leave_out, progress) for task in tasks]
    study.check_examples(tasks[0].size)
    check_pairs(study.model, intervention, tasks[0])
    begun = rows_file(folder).exists()
    with claim(folder, asdict(study), command, digest_data(tasks)) as store:
        announce(study, tasks, study.model.check().size, progress)
        if not begun and (hint := study.model.hint()):  # rows that are there have their dtype
            tell_once(progress, hint)
        fields = asdict(study) | {"draws_masks": METHODS[study.method].draws_masks}
        with nullcontext(engine) if engine else study.model.answering() as answering:
            bench = Workbench(answering, store, intervention=intervention)
            for part in answering.loaded.uncovered:
                tell_once(progress, describe_uncovered(part))
            tasks = study.without_defects(tasks, answering.misfit)
            stages = locate(study, bench, tasks, progress)
            expect(progress, most_checked(study, tasks, stages.found))
            stages = validated(study, bench, stages, tasks, progress)
            drawn = draw_own_curve(study, bench, stages, tasks, progress)
        progress.start("writing the report", 0)
        if drawn is not None:
            write_json(folder / CURVE, drawn.as_dict())  # before the result, which ends a run
        found = write_findings(folder, fields, stages, bench.cost, command)
    if study.track:
        files = [found.report, folder / RESULT]
        log_run(study.track, f"{study.task} {study.method}", fields, found.result, files)
    return found


def locate(study: Study, bench: HeadBench, tasks: Sequence[Task], progress: Progress) -> Stages:
    """Measure what the method's search asks for, and see what it found."""
    task = tasks[0]
    examples, kept = study.drawn(task.size)
    held_out = held_back(kept)
    # What else a head breaks is judged in the other tasks' own metric.
    meter = bench.meter(task)
    probes = {task.name: meter} | {
        other.name: bench.meter(other.in_metric()) for other in tasks[1:]
    }
    grid, scans = bench.engine.loaded.grid, METHODS[study.method].has_goals
    intact = meter.under(column_mask(grid.size, []), examples, progress, "intact")
    trouble = describe_trouble(task, intact) if task.outcome_kind == "metric" else None
    if trouble:
        tell(progress, trouble)
    problem = Problem(
        heads=grid.size,
        examples=examples,
        settings=study.settings,
        fresh=kept[len(held_out) :],
        elsewhere={  # what breaks a twin too is no universal head for that
            other.name: other.first(None)[:ELSEWHERE]
            for other in tasks[1:]
            if not study.is_twin(other.name)
        },
        chance=task.chance,
        probe=task.name,
        signal=add_signal(bench, probes, task.name, intact) if scans else task.name,
        sides=[*other_tasks(study, bench, probes, progress)] if study.seeks_specific else [],
        excluded=tuple(grid.column(head) for head in grid.named_in(study.exclude)),
    )
    found = search(probes, METHODS[study.method].search(problem), progress)
    before = outcomes_by_example(intact)
    if before and is_binary(before):  # the score, and so what can be lost, lies between 0 and 1
        found = replace(found, estimate=found.estimate.within(np.array([*before.values()])))
    hopeless = nothing_to_lose(problem, before)
    if hopeless and hopeless not in found.notes:  # the default search has seen it itself
        found = replace(found, notes=[hopeless, *found.notes])
    if trouble:
        found = replace(found, notes=[trouble, *found.notes])
    asked = {key for _, key in meter.counted}
    stages = Stages(
        loaded=bench.engine.loaded,
        task=task,
        examples=examples,
        kept=held_out,
        seen=[e for e in (*examples, *problem.fresh) if task.key(e) in asked],
        intact=meter.score(intact),
        found=found,
        searched=bench.cost.rows,
        looked=bench.cost.intact,
    )
    return without_noise(
        stages,
        intact,
        again=partial(bench.meter, task, repeat=1),
        alone=not study.names_sets,
        seed=study.settings.seed,
        progress=progress,
    )


def add_signal(bench: HeadBench, probes: dict[str, Meter], name: str, intact: Sequence[Row]) -> str:
    """Let the signal of a task join the probes; its name, the task's where it is the outcome.

    `intact` are the task's rows with nothing knocked out.
    """
    answers = {row.number: responses_from_json(row.responses) for row in intact}
    signal = Signal(probes[name].task, answers)
    if signal.linear:
        return name
    probes[f"{name}.likelihood"] = bench.meter(signal)
    return f"{name}.likelihood"


def other_tasks(
    study: Study, bench: HeadBench, probes: dict[str, Meter], progress: Progress
) -> Iterator[OtherTask]:
    """Yield the tasks that a specific set must break or spare; their signals join the probes."""
    nothing = column_mask(bench.engine.loaded.grid.size, [])
    for name in dict.fromkeys((*study.twins, *study.spare)):
        examples, _ = split_examples(probes[name].task.size, study.settings.seed)
        rows = probes[name].under(nothing, examples, progress, f"{name}, intact")
        signal = add_signal(bench, probes, name, rows)
        yield OtherTask(name, examples, signal, name in study.twins)


def validated(
    study: Study, bench: HeadBench, stages: Stages, tasks: Sequence[Task], progress: Progress
) -> Stages:
    """Score the heads to name on every example, on other tasks, and on those kept."""
    # The claim is made in the task's own metric, whatever signal found the heads.
    meters = [bench.meter(task.in_metric()) for task in tasks]
    check = Check(
        meter=meters[0],
        grid=bench.engine.loaded.grid,
        examples=(stages.kept or stages.examples)[: min(CHECKED, study.limit or CHECKED)],
        fresh=bool(stages.kept),
        draws=study.controls,
        seed=study.settings.seed + designs.CONTROLS,
        progress=progress,
    )
    if study.seeks_specific:
        stages = keeping_promise(study, stages, check, meters)
    else:
        stages, check = settled(study, stages, check)
    mask = column_mask(check.grid.size, stages.found.chosen)
    judged = [meter.task.first(study.limit) for meter in meters]
    if study.disjoint:
        used = set(stages.seen)
        judged[0] = [e for e in meters[0].task.first(None) if e not in used][: study.limit]
    pairs = zip(meters, judged, strict=True)
    compared = [score_both(meter, mask, examples, progress) for meter, examples in pairs]
    found = [categorize_failures(e.task, e.intact_rows, e.knocked_out_rows) for e in compared]
    parts = [each.result(lost.plain()) for each, lost in zip(compared, found, strict=True)]
    others = [
        each.model_copy(update={"twin": study.is_twin(name)})
        for name, each in zip(study.beside, parts[1:], strict=True)
    ]
    if any(each.is_hurt and not each.twin for each in others) and not study.seeks_specific:
        stages = offering(study, stages, check, meters, others)
    rate = stages.found.diagnostics.get("rate", study.settings.rate)
    held, random = held_out(check, stages.found, rate)
    return replace(
        stages,
        comparison=compared[0],
        labels=found[0].labels,
        validation=Validation(
            task=parts[0],
            controls=random,
            held_out=held,
            other_tasks=others,
            subsets=stages.subsets,
            frontier=stages.frontier,
            members=Members(
                fresh=check.fresh,
                examples=len(check.examples),
                heads=measure_members(check, stages.found.chosen),
            ),
        ),
        estimand=estimand_of(stages.found, study.settings.rate, study.names_sets),
    )


def draw_own_curve(
    study: Study, bench: HeadBench, stages: Stages, tasks: Sequence[Task], progress: Progress
) -> Curve | None:
    """Score all tasks as the named heads go one after another; None without heads, or if quick."""
    if study.quick or not stages.found.chosen:
        return None
    grid, examples = bench.engine.loaded.grid, study.curve_examples(tasks, stages.subsets)
    heads = [str(grid.components[column]) for column in stages.found.chosen]
    meters = [bench.meter(task.in_metric()) for task in tasks]
    return draw_curve(grid, heads, list(zip(meters, examples, strict=True)), progress)


def settled(study: Study, stages: Stages, check: Check) -> tuple[Stages, Check]:
    """Name a smaller set of the heads found that does more than all of them, if there is one.

    A set that was searched for as such loses the heads that add nothing to it beyond doubt.
    """
    judgement = judge(check, stages.found.chosen)
    if judgement is None:
        return stages, check
    found, notes = replace(stages.found, chosen=judgement.named), stages.found.notes
    if judgement.examples:
        check = replace(check, examples=judgement.examples)
        notes = [judgement.subsets.note, *notes]
    if study.seeks_set:
        kept = drop_idle_members(check, found.chosen)
        if idle := [str(check.grid.components[c]) for c in found.chosen if c not in kept]:
            notes = [tell_left_out(idle, check.fresh), *notes]
        found = replace(found, chosen=kept)
    return replace(stages, found=replace(found, notes=notes), subsets=judgement.subsets), check


def keeping_promise(study: Study, stages: Stages, check: Check, meters: Sequence[Meter]) -> Stages:
    """Name the first of the sets found that spares what it must, on fresh examples."""
    if not (sets := stages.found.candidates):
        return stages
    promise = promised(study, check, meters, study.twins, study.spare)
    frontier, named = judge_frontier(promise, sets)
    notes = [*frontier_note(frontier, named), *stages.found.notes]
    found = replace(stages.found, chosen=list(named), notes=notes)
    return replace(stages, found=found, frontier=frontier)


def promised(
    study: Study, check: Check, meters: Sequence[Meter], twins: Sequence[str], spared: Sequence[str]
) -> Promise:
    """Say what a specific set must do, with the examples on which each task is judged."""

    def check_of(name: str) -> Check:
        meter = meters[study.beside.index(name) + 1]
        judged = split_examples(meter.task.size, study.settings.seed)[1]
        return replace(check, meter=meter, examples=judged[: study.limit])

    return Promise(check, [*map(check_of, twins)], [*map(check_of, spared)], study.settings.price)


def offering(
    study: Study,
    stages: Stages,
    check: Check,
    meters: Sequence[Meter],
    others: Sequence[TaskComparison],
) -> Stages:
    """Offer a smaller set that leaves other tasks alone, where the whole does not."""
    if stages.subsets is None or study.quick:
        return stages
    spared = [name for name, each in zip(study.beside, others, strict=True) if not each.twin]
    promise = promised(study, check, meters, (), spared)
    frontier, notes = offer_part(promise, stages.subsets, stages.found.chosen)
    found = replace(stages.found, notes=[*notes, *stages.found.notes])
    return replace(stages, found=found, frontier=frontier)
