"""What holds of the heads that a search found: which of them are named, and what they break."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caploc import designs
from caploc.contents import Curve
from caploc.declaration import CHECKED, split_examples
from caploc.measurement import Meter
from caploc.models.loading import LoadedModel
from caploc.options import ZERO
from caploc.result import (
    Frontier,
    HeadAction,
    Lost,
    Members,
    Strongest,
    TaskComparison,
    TextChange,
    Validation,
)
from caploc.search import column_mask
from caploc.session import SearchResult, Session
from caploc.validation import Check, Comparison, draw_curve, held_out, score_both
from caploc.validation.frontier import (
    CONFIRMED,
    Promise,
    frontier_note,
    judge_frontier,
)
from caploc.validation.lost import find_lost
from caploc.validation.members import confirm_members, measure_members
from caploc.validation.text import measure_text

ENOUGH = 0.5  # of what a set takes, that one of its heads must take to be named in its place


@dataclass(frozen=True)
class Naming:
    """The columns of the heads to name, the most needed first, and why these.

    `check` holds the examples that no search saw; which heads are named is decided on them.
    `unconfirmed` are heads of the search that the check does not confirm, `costly` ones that break
    other tasks (see `Validation`).
    """

    chosen: list[int]
    check: Check
    notes: list[str]
    frontier: Frontier | None = None
    unconfirmed: Sequence[int] = ()
    costly: Sequence[int] = ()


@dataclass(frozen=True)
class Scores:
    """What every task scores before and after, by name; the study's own task is the first."""

    answers: dict[str, Comparison]
    tasks: dict[str, TaskComparison]

    @classmethod
    def measure(cls, session: Session, columns: Sequence[int]) -> "Scores":
        """Score every task intact and without these heads."""
        study, mask = session.study, column_mask(session.grid.size, columns)
        answers = {
            name: score_both(
                session.score_of(name), mask, task.first(study.limit), session.progress
            )
            for name, task in session.tasks.items()
        }
        tasks = {
            name: each.result().model_copy(
                update={"twin": name != study.task and study.is_twin(name)}
            )
            for name, each in answers.items()
        }
        return cls(answers, tasks)

    @property
    def others(self) -> list[TaskComparison]:
        """The tasks beside the study's own."""
        return list(self.tasks.values())[1:]

    @property
    def hurt(self) -> set[str]:
        """The names of the tasks, not in other words, that surely lose something."""
        return {each.name for each in self.others if each.is_hurt and not each.twin}

    @property
    def twins(self) -> set[str]:
        """The names of the tasks in other words that surely lose something."""
        return {each.name for each in self.others if each.is_hurt and each.twin}


@dataclass(frozen=True)
class Checks:
    """What was checked of the heads `chosen`, which are those that are named.

    `answers` are those to the task before and after.
    """

    chosen: list[int]
    notes: list[str]
    validation: Validation
    answers: Comparison


def validate(session: Session, search: SearchResult) -> Checks:
    """Choose the heads to name; score them on every task, on held-out examples, beside controls."""
    study = session.study
    naming = choose_specific(session, search) if study.seeks_specific else choose(session, search)
    scores = Scores.measure(session, naming.chosen)
    strongest, column = None, find_strongest(naming)
    if column is not None and len(naming.chosen) > 1:
        alone = Scores.measure(session, [column])
        strongest = Strongest(
            head=str(session.grid.components[column]),
            task=alone.tasks[study.task],
            other_tasks=alone.others,
        )
        if not study.seeks_specific and is_cleaner(alone, scores, study.task):
            costly = [each for each in naming.chosen if each != column]
            naming, scores = replace(naming, chosen=[column], costly=costly), alone
    answers = scores.answers[study.task]
    task, lost = scores.tasks[study.task], find_lost(answers)
    held, random = held_out(naming.check, replace(search.found, chosen=naming.chosen))
    names = session.grid.components
    return Checks(
        chosen=naming.chosen,
        notes=naming.notes,
        validation=Validation(
            unconfirmed=[str(names[column]) for column in naming.unconfirmed],
            costly=[str(names[column]) for column in naming.costly],
            strongest=strongest,
            action=show_action(session, lost, column),
            text=compare_text(session, naming.chosen),
            task=task.model_copy(update={"lost": lost}),
            controls=random,
            held_out=held,
            other_tasks=scores.others,
            frontier=naming.frontier,
            members=Members(
                fresh=naming.check.fresh,
                examples=len(naming.check.examples),
                heads=measure_members(naming.check, naming.chosen),
            ),
        ),
        answers=answers,
    )


def find_strongest(naming: Naming) -> int | None:
    """Return the named head that takes most alone; None without heads."""
    members = measure_members(naming.check, naming.chosen)
    pairs = zip(naming.chosen, members, strict=True)
    column, _ = min(pairs, key=lambda each: each[1].alone.effect or 0.0, default=(None, None))
    return column


def show_action(session: Session, lost: Lost, column: int | None) -> HeadAction | None:
    """Describe what a head does on the first lost example; None where there is none."""
    from caploc.validation.action import describe_action  # loads the engine of this process

    example = lost.samples[0].example if lost.samples else None
    if example is None or column is None:
        return None
    component = session.grid.components[column]
    return describe_action(session.meters.engine, session.task, example, component)


def compare_text(session: Session, columns: Sequence[int]) -> TextChange | None:
    """Measure ordinary text without these heads, where the model is in this process.

    None without heads, or where something else than zero takes their place.
    """
    loaded, zero = session.meters.engine.loaded, session.study.mode.name == ZERO
    if not columns or not zero or not isinstance(loaded, LoadedModel):
        return None
    mask = session.grid.cut_mask(column_mask(session.grid.size, columns)[None])[0]
    return measure_text(loaded, mask)


def is_cleaner(alone: Scores, together: Scores, task: str) -> bool:
    """Tell whether one head surely breaks the task and no other one, where the set breaks others.

    It must take half of what the set takes, and break the task in all words in which the set does.
    """
    own, whole = alone.tasks[task].change, together.tasks[task].change
    if not alone.tasks[task].is_hurt or own is None or whole is None:
        return False
    enough = (own.outcome or 0.0) <= ENOUGH * (whole.outcome or 0.0)
    return enough and bool(together.hurt) and not alone.hurt and together.twins <= alone.twins


def make_check(session: Session) -> Check:
    """Return the check on examples that no search saw; of a task with few, on those it did."""
    study = session.study
    return Check(
        meter=session.score_of(study.task),
        grid=session.grid,
        examples=session.draw.judged[: min(CHECKED, study.limit or CHECKED)],
        fresh=bool(session.draw.held_out),
        draws=study.controls,
        seed=study.settings.seed + designs.CONTROLS,
        progress=session.progress,
    )


def choose(session: Session, search: SearchResult) -> Naming:
    """Choose the heads found that the check confirms."""
    check, found = make_check(session), search.found
    confirmed = confirm_members(check, found.chosen)
    unconfirmed = [column for column in found.chosen if column not in confirmed]
    return Naming(confirmed, check, found.notes, unconfirmed=unconfirmed)


def choose_specific(session: Session, search: SearchResult) -> Naming:
    """Choose the first of the sets found that spares what it must, on fresh examples."""
    check, found, study = make_check(session), search.found, session.study
    if not found.candidates:
        return Naming(found.chosen, check, found.notes)
    promise = make_promise(session, check, study.twins, study.spare)
    frontier, named = judge_frontier(promise, found.candidates, CONFIRMED)
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


def draw_own_curve(session: Session, checks: Checks) -> Curve | None:
    """Score all tasks as the named heads go one after another; None without heads, or if quick."""
    study, grid = session.study, session.grid
    if study.quick or not checks.chosen:
        return None
    heads = [str(grid.components[column]) for column in checks.chosen]
    examples = study.curve_examples(session.tasks)
    judged: list[tuple[Meter, Sequence[int]]] = [
        (session.score_of(name), each) for name, each in examples.items()
    ]
    return draw_curve(grid, heads, judged, session.progress)
