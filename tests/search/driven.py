"""Searches driven to their end on planted outcomes."""

from dataclasses import dataclass, field

import numpy as np

from caploc.options import Settings
from caploc.recovery import Measurements
from caploc.search import Found, Plan, Problem
from worlds.simulate import World

SEARCHED, FRESH = range(200), range(200, 500)  # examples to search on, and for the check


@dataclass
class Run:
    """What a search planned, what it was sent, and what it found."""

    found: Found | None = None
    plans: list[Plan] = field(default_factory=list)
    measured: list[Measurements] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows but the intact ones, which every method needs."""
        return sum(len(plan.mask) for plan in self.plans if plan.what != "intact")

    def of(self, what: str) -> list[Plan]:
        """The plans for one purpose."""
        return [plan for plan in self.plans if plan.what == what]

    def after(self, first: Plan) -> list[Plan]:
        """The plans that came after one."""
        return self.plans[[plan is first for plan in self.plans].index(True) + 1 :]

    def answers(self, asked: Plan) -> Measurements:
        """What a plan was sent."""
        return self.measured[[plan is asked for plan in self.plans].index(True)]


def answered(plan, answer) -> Measurements:
    """One plan, measured; an answer is the rows' outcomes, or these and what was kept."""
    told = answer(plan)
    outcome, kept = told if isinstance(told, tuple) else (told, None)
    return Measurements(plan.masks, plan.mask, plan.example, outcome, kept)


def drive(search, answer) -> Run:
    """Answer every plan of a search until it returns."""
    run, measured = Run(), None
    while True:
        try:
            plan = next(search) if measured is None else search.send(measured)
        except StopIteration as end:
            run.found = end.value
            return run
        assert len(plan.mask), "a plan without rows"
        measured = answered(plan, answer)
        run.plans.append(plan)
        run.measured.append(measured)


def inside(*worlds, ask=World.outcomes):
    """Answers plans in the worlds of the tasks `task`, `task1`, `task2`, by their probes.

    A signal (`task.likelihood`) is the log-probability of the right answer, with whether it is
    still the likelier one.
    """

    def answer(plan):
        task, _, signal = plan.probe.partition(".")
        world, knocked_out = worlds[int(task[4:] or 0)], plan.masks[plan.mask]
        if not signal:
            return ask(world, knocked_out, plan.example)
        logprob = world.logprobs(knocked_out, plan.example)
        return logprob, (logprob > np.log(0.5)).astype(float)

    return answer


def with_holes(answer, share, seed=0):
    """Answers of which a share, the same whenever they are asked, cannot be scored."""

    def holed(plan):
        lost = World(np.zeros(plan.masks.shape[1]), 0.0, seed).luck(
            plan.masks[plan.mask], plan.example
        )
        told = answer(plan)
        if isinstance(told, tuple):
            return tuple(np.where(lost < share, np.nan, each) for each in told)
        return np.where(lost < share, np.nan, told)

    return holed


def problem(
    heads,
    *,
    examples=SEARCHED,
    fresh=FRESH,
    elsewhere=None,
    chance=0.0,
    signal="task",
    sides=(),
    excluded=(),
    **given,
):
    """A problem on so many heads, whose signal is the outcome or a task of its own.

    The rest are settings.
    """
    return Problem(
        heads,
        examples,
        Settings(**given),
        fresh=fresh,
        elsewhere=elsewhere or {},
        chance=chance,
        signal=signal,
        sides=sides,
        excluded=excluded,
    )


def breaking(heads, columns, shift=9.0, seed=7):
    """Another task: these heads break it, and nothing else matters."""
    shifts = np.zeros(heads)
    shifts[list(columns)] = shift
    return World(shifts, shift / 2, seed)
