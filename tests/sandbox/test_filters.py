"""The system-call filter, read by a second interpreter of its language."""

import re
from pathlib import Path

import pytest

from caploc.sandbox import isolation
from caploc.sandbox.protocol import CALLS

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
MACHINES = pytest.mark.parametrize("machine", isolation.MACHINES)
OWN = 4321
ALLOWED, REFUSED, MISSING, ENDED = "allowed", "refused", "missing", "ended"
MEANING = {0x7FFF0000: ALLOWED, 0x00050001: REFUSED, 0x00050026: MISSING, 0x80000000: ENDED}
EVERY = {**isolation.ALLOWED, **isolation.WRITING, **isolation.CONDITIONAL}


def decide(machine, number, *arguments, architecture=None, read_only=False):
    """What the filter says to a call, by the kernel's rules for its language."""
    name, _ = isolation.MACHINES[machine]
    data = {0: number, 4: name if architecture is None else architecture}
    for position, value in enumerate((*arguments, *(0,) * (6 - len(arguments)))):
        data[16 + 8 * position] = value & 0xFFFFFFFF
        data[20 + 8 * position] = value >> 32 & 0xFFFFFFFF
    steps = list(isolation.list_steps(machine, OWN, read_only=read_only))
    at = held = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            held = data[operand]
        elif code == 0x54:  # BPF_ALU | BPF_AND | BPF_K
            held &= operand
        elif code == 0x06:  # BPF_RET | BPF_K
            return MEANING[operand]
        else:
            holds = {0x15: held == operand, 0x35: held >= operand}[code]
            at += if_true if holds else if_false


def call(machine, name, *arguments, read_only=False):
    """What the filter says to a call by its name; None if the machine has none."""
    number = EVERY[name][isolation.MACHINES[machine][1]]
    return None if number < 0 else decide(machine, number, *arguments, read_only=read_only)


def numbers(machine):
    """Every call of a machine by name, as its system headers say."""
    path = HEADERS[machine]
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)"
    return {name: int(number) for name, number in re.findall(pattern, path.read_text())}


@MACHINES
@pytest.mark.parametrize("table", [EVERY, CALLS["unusual"]], ids=["filter", "rehearsal"])
def test_numbers_are_those_of_the_system_headers(machine, table):
    known = numbers(machine)
    for name, pair in table.items():
        number = pair[isolation.MACHINES[machine][1]]
        if number < 0:
            continue
        # Headers may be older than a call; no other call may have its number then.
        assert known.get(name, number) == number, name
        assert number not in known.values() or known.get(name, number) == number, name


@MACHINES
@pytest.mark.parametrize("read_only", [False, True])
def test_only_what_is_listed_is_allowed(machine, read_only):
    column = isolation.MACHINES[machine][1]
    tables = [isolation.ALLOWED] if read_only else [isolation.ALLOWED, isolation.WRITING]
    allowed = {pair[column] for table in tables for pair in table.values()}
    special = {pair[column] for pair in isolation.CONDITIONAL.values()}
    for number in {*range(700), 2**20, 2**29} - special:
        expected = ALLOWED if number in allowed else MISSING if number >= 424 else REFUSED
        assert decide(machine, number, read_only=read_only) == expected, number


@MACHINES
def test_nothing_dangerous_is_listed(machine):
    """Every call of the headers that is allowed was looked at by name: none of these is."""
    danger = re.compile(
        "chmod|chown|utime|xattr|^link|mknod|^truncate|^socket$|connect|bind|listen|accept|sendm|"
        "io_|ptrace|process_|pidfd|kcmp|sigqueue|tkill|^execve|fork|mount|namespace|unshare|setns|"
        "bpf|perf|keyctl|_key|userfault|module|kexec|reboot|settime|swap|memfd|splice|vmsplice|tee|"
        "shm|msg|sem|mq_|personality|seccomp|landlock|quota|handle|fanotify|set.*id$|chroot|setgroups"
        "|sched_set|setpriority|ioprio|mlock|inotify|flock|setsockopt|clone3|acct|syslog|sethost"
    )
    known = numbers(machine)
    allowed = {name for name in known if decide(machine, known[name], OWN) == ALLOWED}
    assert {name for name in allowed if danger.search(name)} <= {"tgkill"}
    assert len(allowed) > 80


@MACHINES
def test_only_threads_may_be_cloned(machine):
    assert call(machine, "clone", 0x3D0F00) == ALLOWED  # what the C library asks for a thread
    assert call(machine, "clone", 0x01200011) == REFUSED  # and for a process
    assert call(machine, "clone", 0x4111) == REFUSED  # vfork
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert call(machine, "clone", 0x3D0F00 | namespace) == REFUSED
    assert decide(machine, 435, 0, 0) == MISSING  # clone3, so that clone is asked instead


@MACHINES
def test_signals_reach_only_ourselves(machine):
    for name in ("kill", "tgkill", "prlimit64"):
        assert call(machine, name, OWN) == ALLOWED
        for other in (1, -1, OWN + 1, -OWN, OWN | 1 << 20):
            assert call(machine, name, other) == REFUSED
    assert call(machine, "kill", 0) == REFUSED  # our group
    assert call(machine, "prlimit64", 0) == ALLOWED  # ourselves


@MACHINES
def test_what_kills_us_with_our_parent_stays_set(machine):
    assert call(machine, "prctl", 1) == call(machine, "prctl", 4) == REFUSED
    assert call(machine, "prctl", 15) == ALLOWED  # a thread's name


@MACHINES
def test_no_file_sends_signals(machine):
    for command in (0, 1, 2, 3, 1030):
        assert call(machine, "fcntl", 3, command, OWN) == ALLOWED
    for command in (5, 8, 9, 10, 15, 1024, 1026, 1031, 1033):  # F_SETOWN, F_SETSIG, ...
        assert call(machine, "fcntl", 3, command, OWN) == REFUSED
    assert call(machine, "fcntl", 3, 4, 0x800) == ALLOWED  # F_SETFL, O_NONBLOCK
    assert call(machine, "fcntl", 3, 4, 0x800 | 0x2000) == REFUSED  # and O_ASYNC
    for command in (0x8901, 0x8902, 0x5452, 0x5412, 0x5410):  # FIOSETOWN, ..., TIOCSTI
        assert call(machine, "ioctl", 3, command) == REFUSED
    assert call(machine, "ioctl", 3, 0x5421) == ALLOWED  # FIONBIO


@MACHINES
def test_pairs_of_sockets_reach_nothing_else(machine):
    assert call(machine, "socketpair", 1, 1 | 0x80000 | 0x800) == ALLOWED
    for family, kind in ((1, 2), (1, 5), (1, 3), (2, 1), (16, 1), (1, 2 | 0x80000)):
        assert call(machine, "socketpair", family, kind) == REFUSED
    assert call(machine, "sendto", 3, 4096, 1, 0, 0, 0) == ALLOWED
    for address in (1, 1 << 32, 0x7FFF00000000):
        assert call(machine, "sendto", 3, 4096, 1, 0, address, 110) == REFUSED


@MACHINES
def test_files_are_written_only_where_something_else_keeps_them_apart(machine):
    flags = {0: True, 0x241: False, 0x1: False, 0x2: False, 0x40: False, 0x410000: False}
    for flag, also_read_only in flags.items():
        assert call(machine, "openat", -100, 4096, flag) == ALLOWED
        expected = ALLOWED if also_read_only else REFUSED
        assert call(machine, "openat", -100, 4096, flag, read_only=True) == expected
    for truncating in (0x200, 0x203):  # O_TRUNC without a right to write
        assert call(machine, "openat", -100, 4096, truncating) == REFUSED
    assert call(machine, "unlinkat") == ALLOWED
    assert call(machine, "unlinkat", read_only=True) == REFUSED


def test_calls_by_another_machines_numbers_end_the_process():
    assert decide("x86_64", 41, architecture=0x40000003) == ENDED  # 32-bit calls
    assert decide("x86_64", 0x40000000 | 41) == ENDED  # x32 calls
    assert decide("aarch64", 41, architecture=0x40000028) == ENDED
