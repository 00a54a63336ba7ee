"""What is judged, and what is said about it."""

import math
import signal
from dataclasses import dataclass
from typing import Any

from caploc.sandbox.limits import Limits

LONGEST_DETAIL = 200
# Reason → what it means.
REASONS = {
    "passed": "the tests ran to their end",
    "failed": "an assertion of the tests did not hold",
    "error": "program or tests raised an exception, could not be read, or ended early",
    "timeout": "it took more processor time or more time by the clock than allowed",
    "memory": "it needed more memory than allowed",
    "output": "it printed more than allowed",
    "killed": "the system ended it, or the sandbox's worker died",
    "refused": "it is too long, or what program and tests say to each other is not plain data",
}
STOPPED = {
    "timeout": "still running after {limits.wall_seconds:g} seconds",
    "memory": "more than {limits.memory_bytes} bytes of memory",
    "output": "printed more than {limits.output_bytes} bytes",
    "killed": "more than {limits.processes} processes",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A candidate program and the code that tests it.

    Attributes:
        text: the program, as Python.
        tests: statements that raise unless the program is right; what they name and do not
            define is the program's.
    """

    text: str
    tests: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a program.

    Attributes:
        passed: whether the tests ran to their end.
        reason: a key of `REASONS`.
        detail: one short printable line for a person; empty for a pass.
    """

    passed: bool
    reason: str
    detail: str


def verdict(reason: str, detail: str = "") -> Verdict:
    """A verdict whose detail is short, and harmless on a terminal."""
    line = " ".join(detail.split())
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)
    if len(shown) > LONGEST_DETAIL:
        shown = shown[: LONGEST_DETAIL - 1] + "…"
    return Verdict(reason == "passed", reason, shown)


def conclude(report: Any, record: dict[str, Any], limits: Limits) -> Verdict:
    """The verdict from what the judge's process reported and how both processes ended.

    Args:
        report: the judge's, or None if it sent none.
        record: what the worker saw: `caploc.sandbox.inside.watch.Watch.until_over`.
        limits: what the two were given.
    """
    stopped = record["stopped"]
    if stopped is not None:
        return verdict(stopped, STOPPED[stopped].format(limits=limits))
    match report:
        case {"reason": "lost"}:
            return ended("the program", record["candidate"], limits)
        case {"reason": str(reason), "detail": str(detail)} if reason in REASONS:
            return verdict(reason, detail)
    return ended("the test code", record["judge"], limits)


def ended(who: str, end: tuple[int | None, float], limits: Limits) -> Verdict:
    """The verdict on a process that ended before the tests did; its exit code and seconds."""
    code, seconds = end
    if code is None:
        return verdict("error", f"{who} closed its connection to the tests")
    if code >= 0:
        return verdict("error", f"{who} ended itself before the tests were over")
    # Nobody else kills it but a system out of memory, which it does not take much time to be. The
    # kernel's own clock for the limit is coarse: on a busy machine the two differ by a third.
    if -code == signal.SIGKILL and seconds > math.ceil(limits.cpu_seconds) / 2:
        return verdict("timeout", f"{who} used {limits.cpu_seconds:g} seconds of processor time")
    return verdict("killed", f"{who} was ended by {signal.Signals(-code).name}")
