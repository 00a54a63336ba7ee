"""What holds of the heads that a search found: which of them are named, and what they break."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from caploc import designs
from caploc.contents import Curve
from caploc.declaration import CHECKED
from caploc.measurement import Meter
from caploc.result import Frontier, Members, Subsets, TaskComparison, Validation
from caploc.search import column_mask
from caploc.session import SearchResult, Session
from caploc.validation import CURVED, Check, Comparison, draw_curve, held_out, score_both
from caploc.validation.categories import Category, tell_left_out
from caploc.validation.failures import categorize_failures
from caploc.validation.frontier import (
    Promise,
    frontier_note,
    judge_frontier,
    offer_part,
    split_examples,
)
from caploc.validation.members import drop_idle_members, judge, measure_members


@dataclass(frozen=True)
class Naming:
    """The columns of the heads to name, the most needed first, and why these.

    `check` holds the examples that had no part in the choice.
    """

    chosen: list[int]
    check: Check
    notes: list[str]
    subsets: Subsets | None = None
    frontier: Frontier | None = None


@dataclass(frozen=True)
class Checks:
    """What was checked of the heads `chosen`, which are those that are named.

    `answers` are those to the task before and after, `labels` say of what kind each is.
    """

    chosen: list[int]
    notes: list[str]
    validation: Validation
    answers: Comparison
    labels: Mapping[int, Category]


def validate(session: Session, search: SearchResult) -> Checks:
    """Choose the heads to name; score them on every task, on held-out examples, beside controls."""
    study = session.study
    naming = choose_specific(session, search) if study.seeks_specific else choose(session, search)
    mask = column_mask(session.grid.size, naming.chosen)
    compared = {
        name: score_both(
            session.score_of(name), mask, examples_of(session, search, name), session.progress
        )
        for name in session.tasks
    }
    failures = {
        name: categorize_failures(each.task, each.intact_rows, each.knocked_out_rows)
        for name, each in compared.items()
    }
    scores = {
        name: each.result(failures[name].plain()).model_copy(
            update={"twin": name != study.task and study.is_twin(name)}
        )
        for name, each in compared.items()
    }
    own, others = scores[study.task], {name: scores[name] for name in study.beside}
    if any(each.is_hurt and not each.twin for each in others.values()) and not study.seeks_specific:
        naming = offer(session, naming, others)
    found = replace(search.found, chosen=naming.chosen)
    rate = found.diagnostics.get("rate", study.settings.rate)
    held, random = held_out(naming.check, found, rate)
    members = measure_members(naming.check, naming.chosen)
    return Checks(
        chosen=naming.chosen,
        notes=naming.notes,
        validation=Validation(
            task=own,
            controls=random,
            held_out=held,
            other_tasks=[*others.values()],
            subsets=naming.subsets,
            frontier=naming.frontier,
            members=Members(
                fresh=naming.check.fresh, examples=len(naming.check.examples), heads=members
            ),
        ),
        answers=compared[study.task],
        labels=failures[study.task].labels,
    )


def make_check(session: Session) -> Check:
    """Return the check on examples that no search saw; of a task with few, on those it did."""
    study = session.study
    return Check(
        meter=session.score_of(study.task),
        grid=session.grid,
        examples=(session.held_out or session.examples)[: min(CHECKED, study.limit or CHECKED)],
        fresh=bool(session.held_out),
        draws=study.controls,
        seed=study.settings.seed + designs.CONTROLS,
        progress=session.progress,
    )


def examples_of(session: Session, search: SearchResult, name: str) -> list[int]:
    """Choose the examples that a task is scored on before and after."""
    study, meter = session.study, session.score_of(name)
    if study.disjoint and name == study.task:
        seen = set(search.seen)
        return [e for e in meter.task.first(None) if e not in seen][: study.limit]
    return meter.task.first(study.limit)


def choose(session: Session, search: SearchResult) -> Naming:
    """Choose a smaller set of the heads found that does more than all of them, if there is one.

    A set that was searched for as such loses the heads that add nothing to it beyond doubt.
    """
    check, found, notes = make_check(session), search.found, search.found.notes
    judgement = judge(check, found.chosen)
    if judgement is None:
        return Naming(found.chosen, check, notes)
    chosen = judgement.named
    if judgement.examples:
        check = replace(check, examples=judgement.examples)
        notes = [judgement.subsets.note, *notes]
    if session.study.seeks_set:
        adding = drop_idle_members(check, chosen)
        if idle := [str(check.grid.components[c]) for c in chosen if c not in adding]:
            notes = [tell_left_out(idle, check.fresh), *notes]
        chosen = adding
    return Naming(chosen, check, notes, judgement.subsets)


def choose_specific(session: Session, search: SearchResult) -> Naming:
    """Choose the first of the sets found that spares what it must, on fresh examples."""
    check, found, study = make_check(session), search.found, session.study
    if not found.candidates:
        return Naming(found.chosen, check, found.notes)
    promise = make_promise(session, check, study.twins, study.spare)
    frontier, named = judge_frontier(promise, found.candidates)
    notes = [*frontier_note(frontier, named), *found.notes]
    return Naming(list(named), check, notes, frontier=frontier)


def make_promise(
    session: Session, check: Check, twins: Sequence[str], spared: Sequence[str]
) -> Promise:
    """Say what a specific set must do, with the examples on which each task is judged."""

    def check_of(name: str) -> Check:
        meter = session.score_of(name)
        judged = split_examples(meter.task.size, session.study.settings.seed)[1]
        return replace(check, meter=meter, examples=judged[: session.study.limit])

    price = session.study.settings.price
    return Promise(check, [*map(check_of, twins)], [*map(check_of, spared)], price)


def offer(session: Session, naming: Naming, others: Mapping[str, TaskComparison]) -> Naming:
    """Offer a smaller set that leaves other tasks alone, where the whole does not."""
    if naming.subsets is None or session.study.quick:
        return naming
    spared = [name for name, each in others.items() if not each.twin]
    promise = make_promise(session, naming.check, (), spared)
    frontier, notes = offer_part(promise, naming.subsets, naming.chosen)
    return replace(naming, notes=[*notes, *naming.notes], frontier=frontier)


def draw_own_curve(session: Session, checks: Checks) -> Curve | None:
    """Score all tasks as the named heads go one after another; None without heads, or if quick."""
    study, grid = session.study, session.grid
    if study.quick or not checks.chosen:
        return None
    heads = [str(grid.components[column]) for column in checks.chosen]
    subsets = checks.validation.subsets
    examples = study.curve_examples([*session.tasks.values()], subsets)
    judged: list[tuple[Meter, Sequence[int]]] = [
        (session.score_of(name), each[:CURVED])
        for name, each in zip(session.tasks, examples, strict=True)
    ]
    return draw_curve(grid, heads, judged, session.progress)
