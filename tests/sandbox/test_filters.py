"""The system-call filter, read by a second interpreter of its language."""

import re
from pathlib import Path

import pytest

from caploc.sandbox.inside import filters

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
OWN = 4321
ALLOWED, REFUSED, MISSING, ENDED = "allowed", "refused", "missing", "ended"
MEANING = {0x7FFF0000: ALLOWED, 0x00050001: REFUSED, 0x00050026: MISSING, 0x80000000: ENDED}


def decided(machine, number, first=0, architecture=None):
    """What the filter says to a call, by the kernel's rules for its language."""
    name, _ = filters.MACHINES[machine]
    data = {0: number, 4: name if architecture is None else architecture, 16: first & 0xFFFFFFFF}
    steps = list(filters.written(machine, OWN))
    at = held = 0
    while True:
        step = steps[at]
        at += 1
        if step.code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            held = data[step.operand]
        elif step.code == 0x06:  # BPF_RET | BPF_K
            return MEANING[step.operand]
        else:
            holds = {0x15: held == step.operand, 0x35: held >= step.operand,
                     0x45: bool(held & step.operand)}[step.code]  # fmt: skip
            at += step.if_true if holds else step.if_false


def numbers(machine):
    """Every call of a machine by name, as its system headers say."""
    path = HEADERS[machine]
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
    return {name: int(number) for name, number in re.findall(pattern, path.read_text())}


def listed(machine):
    """Every number that the filter knows, by name."""
    column = filters.MACHINES[machine][1]
    special = {"prctl": filters.PRCTL, "clone": filters.CLONE, "clone3": filters.CLONE3}
    every = {**filters.REFUSED, **filters.OWN_PROCESS, **special}
    return {name: pair[column] for name, pair in every.items() if pair[column] is not None}


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_numbers_are_those_of_the_system_headers(machine):
    known = numbers(machine)
    for name, number in listed(machine).items():
        # Headers may be older than a call; no other call may have its number then.
        assert known.get(name, number) == number, name
        assert number not in known.values() or known.get(name, number) == number, name


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_calls_are_refused_as_listed_and_all_others_are_allowed(machine):
    column = filters.MACHINES[machine][1]
    refused = {pair[column] for pair in filters.REFUSED.values()}
    special = set(listed(machine).values()) - refused
    for number in range(500):
        if number not in special:
            expected = REFUSED if number in refused else ALLOWED
            assert decided(machine, number) == expected, number


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_only_threads_may_be_cloned(machine):
    clone = listed(machine)["clone"]
    assert decided(machine, clone, 0x3D0F00) == ALLOWED  # what the C library asks for a thread
    assert decided(machine, clone, 0x01200011) == REFUSED  # and for a process
    assert decided(machine, clone, 0x4111) == REFUSED  # vfork
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decided(machine, clone, 0x3D0F00 | namespace) == REFUSED
    assert decided(machine, listed(machine)["clone3"]) == MISSING  # so that clone is asked instead


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_signals_reach_only_ourselves(machine):
    for name in ("kill", "tgkill", "prlimit64"):
        number = listed(machine)[name]
        assert decided(machine, number, OWN) == ALLOWED
        for other in (1, -1, OWN + 1, -OWN, OWN | 1 << 20):
            assert decided(machine, number, other) == REFUSED
    assert decided(machine, listed(machine)["kill"], 0) == REFUSED  # our group
    assert decided(machine, listed(machine)["prlimit64"], 0) == ALLOWED  # ourselves


@pytest.mark.parametrize("machine", filters.MACHINES)
def test_what_kills_us_with_our_parent_stays_set(machine):
    prctl = listed(machine)["prctl"]
    assert decided(machine, prctl, 1) == decided(machine, prctl, 4) == REFUSED
    assert decided(machine, prctl, 15) == ALLOWED  # a thread's name


def test_calls_by_another_machines_numbers_end_the_process():
    assert decided("x86_64", 41, architecture=0x40000003) == ENDED  # 32-bit calls
    assert decided("x86_64", 0x40000000 | 41) == ENDED  # x32 calls
