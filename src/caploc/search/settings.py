"""The constants of the default search, and what it cannot be told."""

from dataclasses import dataclass

from caploc.errors import BadOption
from caploc.options import Settings


@dataclass(frozen=True)
class Knobs:
    """The constants of the default search; where each comes from stands beside it.

    *Measured* ones are of SmolLM2's past tense, upper case and digits, every head of which was
    knocked out alone on 150 examples (docs/experiments.md); the others were set once.
    """

    # the scan and the trial
    scanned: int = (
        4  # examples a head: .940, .965, .986 of the first five tried by 2, 4, 8 (measured)
    )
    least_scanned: int = 2
    most_scanned: int = 8
    breaking: int = 2  # as many heads again, at most, that broke half of what the scan asked
    tried: int = 3  # heads in the trial, times `top`: .982 with 3, .983 with 4 (measured)
    trial: int = 100  # examples each: 3.5 heads are named with 60, 4.7 with 100 (measured)
    least_tried: int = 20  # of fewer a head that takes half of what is right is not sure
    universal: float = 0.5  # share of another task's right answers that a universal head takes
    elsewhere: int = 12  # right answers of another task that each head to name is tried on
    resamples: int = 100  # of scan and trial, for the stability of named heads (arXiv 2510.00845)
    # a set that grows
    added: int = 8  # heads that are tried as its next one
    grown_on: int = 12  # right answers that they are tried on
    least_left: int = 4  # right answers without which it grows no further
    compared: int = 60  # fresh examples on which it is compared with the strongest alone
    # specific sets: shares of the budget, counts of sets and of examples
    per_head: int = 8  # rows a head and task, if no budget is given
    least_budget: int = 2000
    scanning: float = 0.25
    pooling: float = 0.15
    pooled: int = 6  # heads of the pool, times `top`
    least_pool: int = 24
    least_each: int = 4
    most_each: int = 16
    proposed: tuple[int, ...] = (12, 8, 6)  # sets of each round of proposals
    proposing: float = 0.5
    draws: int = 8  # for each set to propose
    finalists: int = 5
    candidates: int = 8  # sets that are judged in the end
    rare: float = 0.03  # variance of single examples beside what few of them show
    unknown: float = 0.3  # standard error of what was not seen at all
    excess: float = 20.0  # weight of what a set loses elsewhere beyond the price


KNOBS = Knobs()


def check_budget(settings: Settings, heads: int, tasks: int = 1) -> None:
    """Refuse a budget with which the default search cannot finish its first stage."""
    each = KNOBS.least_tried if settings.goal == "heads" else KNOBS.least_each
    least = KNOBS.least_scanned * heads * tasks + KNOBS.tried * settings.top * each
    if settings.budget is not None and settings.budget < least:
        raise BadOption(
            f"--budget {settings.budget} is too small: {least:,} rows or more are needed to scan "
            f"{heads} heads on {tasks} {'tasks' if tasks > 1 else 'task'} and to try "
            f"{KNOBS.tried * settings.top}; leave --budget out for what suits them."
        )
