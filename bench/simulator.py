"""Every method on simulated worlds, whose truth is known.

A world's truth is what its heads do over all examples there could be, not over those asked.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

import rivals
from caploc.options import Settings
from caploc.recovery import Measurements
from caploc.search import METHODS, Plan, Problem, Search
from driving import drive
from fixtures import KINDS, World
from truths import Scores, Truth, scores

FIRST_SEED = 200  # those below were used to tune the methods
TOP = 5
CROSSED = 100  # examples of the methods that ask every mask on all of them
FINDING, FRESH = 400, 600
ELSEWHERE = 24  # examples of another task
BUDGETS = (1000, 2000, 4000, 8000)
HALVED = (8192, 32768)
NAMES = (
    "scan (heads)",
    "scan (set)",
    "scan (no budget)",
    "css",
    "css (searched)",
    "csb",
    "ridge regression",
    "least squares",
    "Thompson (as coded)",
    "Thompson (mended)",
    "one-shot",
    "greedy",
    "halving",
)
CHUNK = 8192  # rows simulated at a time
OTHER, SIGNAL = "another", "task.likelihood"  # probes beside the task's own
OTHER_WORLD = 9999  # added to the seed
BREAKS = 9.0  # what a universal head takes from the margin of any example
IDLE = "/idle"  # after a kind's name: the same with heads that do exactly nothing


@dataclass(frozen=True)
class Trial:
    """A method with its settings; `method` and `setting` are how tables name it."""

    method: str
    setting: str
    search: Callable[[Problem], Search]
    settings: Settings
    examples: int = CROSSED
    fresh: int = 0


@dataclass
class Simulated:
    """Answers plans in a world, and in another one where only the universal heads matter."""

    world: World
    other: World = field(init=False)

    def __post_init__(self) -> None:
        """Make the other world."""
        shifts = np.zeros(self.world.heads)
        shifts[list(self.world.universal)] = BREAKS
        self.other = World(shifts, BREAKS / 2, self.world.seed + OTHER_WORLD)

    def __call__(self, plan: Plan) -> Measurements:
        """The outcomes of the plan's rows."""
        world = self.other if plan.probe == OTHER else self.world
        answer = world.logprobs if plan.probe == SIGNAL else world.outcomes
        outcome = np.zeros(len(plan.mask))
        for start in range(0, len(outcome), CHUNK):
            part = slice(start, start + CHUNK)
            outcome[part] = answer(plan.masks[plan.mask[part]], plan.example[part])
        kept = (outcome > np.log(0.5)).astype(float) if plan.probe == SIGNAL else None
        return Measurements(plan.masks, plan.mask, plan.example, outcome, kept)


def trials(seed: int, struck: Sequence[int], budgets: Sequence[int]) -> list[Trial]:
    """Every method at every setting."""
    found = [*scan_trials(seed, budgets), *crossed_trials(seed)]
    for rows in HALVED:
        settings = Settings(seed=seed, budget=rows)
        search = rivals.without(rivals.halving, struck)
        found.append(Trial("halving", f"{rows:,}", search, settings, FINDING))
    settings = Settings(seed=seed)
    searched = partial(rivals.css_searched, struck=struck)
    greedy = rivals.without(METHODS["greedy"].search, struck)
    return [
        *found,
        Trial("css (searched)", "12 settings", searched, settings),
        Trial("one-shot", f"x {CROSSED}", METHODS["one-shot"].search, settings),
        Trial("greedy", f"x {CROSSED}", greedy, settings),
    ]


def scan_trials(seed: int, budgets: Sequence[int]) -> list[Trial]:
    """The default search by both goals at given budgets, and with what it takes by itself."""
    search, found = METHODS["scan"].search, []
    for goal in ("heads", "set"):
        for rows in budgets:
            settings = Settings(seed=seed, goal=goal, budget=rows)
            found.append(Trial(f"scan ({goal})", f"{rows:,}", search, settings, FINDING, FRESH))
    own = Settings(seed=seed)
    return [*found, Trial("scan (no budget)", "default", search, own, FINDING, FRESH)]


def crossed_trials(seed: int) -> list[Trial]:
    """The methods that ask random masks on the same examples."""
    grid = {
        "css": rivals.RATES,
        "csb": (0.02, 0.05),
    }
    found = []
    for method, rates in grid.items():
        for rate in rates:
            for masks in rivals.MASKS:
                settings = Settings(seed=seed, masks=masks, rate=rate)
                setting = f"{masks} x {CROSSED}, {rate:.0%}"
                found.append(Trial(method, setting, METHODS[method].search, settings))
    settings = Settings(seed=seed, masks=max(rivals.MASKS), rate=0.05)
    setting = f"{settings.masks} x {CROSSED}, 5%"
    thompson, mended = replace(settings, rate=0.02), partial(rivals.thompson, mended=True)
    rounds = f"{settings.masks} x {CROSSED}, 2%"
    return [
        *found,
        Trial("ridge regression", setting, rivals.regression, settings),
        Trial("least squares", setting, rivals.ordinary_regression, settings),
        Trial("Thompson (as coded)", rounds, rivals.thompson, thompson),
        Trial("Thompson (mended)", rounds, mended, thompson),
    ]


def world_of(kind: str, seed: int) -> World:
    """A world of a kind; with `/idle` behind its name, all heads of no account do nothing."""
    name = kind.removesuffix(IDLE)
    made = replace(KINDS[name], rest=0.0) if kind.endswith(IDLE) else KINDS[name]
    return World.of_kind(made, seed=seed)


def truth_of(world: World) -> Truth:
    """What is true of a world; the heads to find are the strongest alone."""
    effects = world.single_effects()
    order = np.argsort(np.where(world.common, effects, 0.0), kind="stable")
    best = world.damage_of(world.best_set(TOP))
    moving = np.abs(world.shifts) > 0
    return Truth(
        effects=effects,
        wanted=frozenset(order[:TOP].tolist()) if moving.any() else frozenset(),
        damage=lambda columns: world.damage_of(list(columns)) / best,
        struck=frozenset(world.universal),
        idle=None if moving.all() else ~moving,
        entangled=frozenset(c for each in world.interactions for c in each.columns),
    )


def run_world(
    kind: str, seed: int, methods: Collection[str], budgets: Sequence[int]
) -> list[tuple[str, str, Scores]]:
    """Every trial of the methods named (all if none is) in one world: method, setting, scores."""
    world = world_of(kind, seed)
    truth = truth_of(world)
    found = []
    for trial in trials(seed, world.universal, budgets):
        if methods and trial.method not in methods:
            continue
        done = drive(trial.search(problem_of(world, trial)), Simulated(world))
        found.append((trial.method, trial.setting, scores(done, truth, TOP)))
    return found


def problem_of(world: World, trial: Trial) -> Problem:
    """The first examples to find heads on, the next ones to check them on."""
    finding = list(range(trial.examples))
    fresh = list(range(trial.examples, trial.examples + trial.fresh))
    others = {OTHER: list(range(ELSEWHERE))} if trial.fresh else {}
    signal = SIGNAL if trial.fresh else "task"
    return Problem(world.heads, finding, trial.settings, fresh, others, signal=signal)
