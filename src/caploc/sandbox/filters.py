"""A filter for system calls (seccomp): what a Python program needs to compute, and nothing else.

The list says what is allowed. Another call fails with EPERM, as if the user had no right to it, or
with ENOSYS if it is so new that C libraries ask for it only to see whether it exists.
A program that calls by the numbers of another machine (32-bit, x32) is ended.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Machine → the kernel's name for it (audit.h), and its column of the tables below.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Call → its number on each machine; None where the machine lacks it.
Calls = dict[str, tuple[int | None, int | None]]
ALLOWED: Calls = {
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216),
    "mprotect": (10, 226), "madvise": (28, 233), "msync": (26, 227),
    # open files
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286),
    "pwritev2": (328, 287), "lseek": (8, 62), "sendfile": (40, 71), "close": (3, 57),
    "copy_file_range": (326, 285), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "eventfd2": (290, 19),
    "fsync": (74, 82), "fdatasync": (75, 83), "fadvise64": (221, 223), "fallocate": (285, 47),
    "ftruncate": (77, 46), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    # paths, to read
    "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79),
    "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "getdents64": (217, 61), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "readlink": (89, None), "readlinkat": (267, 78),
    "umask": (95, 166),
    # pairs of sockets that are connected to each other and to nothing else
    "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204),
    "getsockopt": (55, 209), "getpeername": (52, 205),
    # time
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, None),
    # threads and signals of its own
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293),
    "set_tid_address": (218, 96), "gettid": (186, 178), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "membarrier": (324, 283),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "getcpu": (309, 168), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "pause": (34, None), "restart_syscall": (219, 128), "wait4": (61, 260), "waitid": (247, 95),
    "exit": (60, 93), "exit_group": (231, 94),
    # who it is, what it may use
    "getpid": (39, 172), "getppid": (110, 173), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "uname": (63, 160), "sysinfo": (99, 179), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "getrusage": (98, 165), "getrandom": (318, 278),
}  # fmt: skip
# Allowed where something else keeps a program to a folder of its own. What would change a file that
# is only readable (modes, dates, attributes, hard links, truncation) is missing: Landlock alone
# does not stop all of it, and programs should fare alike everywhere.
WRITING: Calls = {
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "symlink": (88, None), "symlinkat": (266, 36), "creat": (85, None),
}  # fmt: skip
# Allowed only with some arguments: see `conditions`.
CONDITIONAL: Calls = {
    "open": (2, None), "openat": (257, 56), "fcntl": (72, 25), "ioctl": (16, 29),
    "socketpair": (53, 199), "sendto": (44, 206), "kill": (62, 129), "tgkill": (234, 131),
    "prlimit64": (302, 261), "prctl": (157, 167), "clone": (56, 220),
}  # fmt: skip
# From this number on, machines share theirs, and a C library that meets EPERM may give up.
NEW_CALLS = 424

# fcntl(2): copies, close-on-exec and status flags; no owners, signals, leases or locks.
F_SETFL = 4
FCNTL_COMMANDS = (0, 1, 2, 3, 1030)
O_ASYNC = 0x2000
# ioctl(2): TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# prctl(2): a thread's name, and whether no_new_privs is set.
PRCTL_OPTIONS = (15, 16, 39)
AF_UNIX, SOCK_STREAM, KIND_OF_SOCKET = 1, 1, 0xF
ACCESS_MODE, O_WRONLY, O_RDWR, O_CREAT, O_TRUNC = 3, 1, 2, 0x40, 0x200
# The bit that marks O_TMPFILE, which creates files too.
O_TMPFILE = 0x400000
THREAD = 0x00010000
# Every CLONE_NEW... flag: time, mounts, cgroup, hostname, messages, users, pids, network.
NEW_NAMESPACE = 0x7E020080

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
CALL_NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
ALLOW, REFUSE, UNKNOWN_CALL, END_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
X32_CALLS = 0x40000000


class Bpf(NamedTuple):
    """One instruction of the filter: code, steps to skip if true and if false, operand."""

    code: int
    if_true: int
    if_false: int
    operand: int


# Steps as prctl(2) takes them.
STEP = struct.Struct("HBBI")
PERMIT, DENY = Bpf(RETURN, 0, 0, ALLOW), Bpf(RETURN, 0, 0, REFUSE)


def compile_filter(process: int, *, read_only: bool) -> bytes:
    """Return the filter for this machine and the process of this number, which will carry it.

    With `read_only` no file may be written at all. Raises OSError where call numbers are unknown.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    return b"".join(STEP.pack(*step) for step in list_steps(machine, process, read_only=read_only))


def list_steps(machine: str, process: int, *, read_only: bool) -> Iterator[Bpf]:
    """Yield the filter's steps for one machine and process."""
    name, column = MACHINES[machine]
    yield Bpf(LOAD, 0, 0, ARCHITECTURE)
    yield Bpf(EQUAL, 1, 0, name)
    yield Bpf(RETURN, 0, 0, END_PROCESS)
    yield Bpf(LOAD, 0, 0, CALL_NUMBER)
    if machine == "x86_64":
        yield Bpf(AT_LEAST, 0, 1, X32_CALLS)
        yield Bpf(RETURN, 0, 0, END_PROCESS)
    rules = dict.fromkeys(ALLOWED if read_only else {**ALLOWED, **WRITING}, [PERMIT])
    numbers = {**ALLOWED, **WRITING, **CONDITIONAL}
    for call_name, steps in {**rules, **list_conditions(process, read_only)}.items():
        # The steps, each way ending in a RETURN, are taken if the call has this number.
        number = numbers[call_name][column]
        if number is not None:
            yield from [Bpf(EQUAL, 0, len(steps), number), *steps]
    yield Bpf(AT_LEAST, 1, 0, NEW_CALLS)
    yield DENY
    yield Bpf(RETURN, 0, 0, UNKNOWN_CALL)


def list_conditions(process: int, read_only: bool) -> dict[str, list[Bpf]]:
    """Return, for each call of `CONDITIONAL`, the steps that look at its arguments.

    Only the low half of an argument is looked at where the kernel reads no more (an int).
    """
    own = allow_among(0, [process])
    return {
        "open": allow_opening(1, read_only),
        "openat": allow_opening(2, read_only),
        "fcntl": [
            *[peek(1), Bpf(EQUAL, 0, 4, F_SETFL)],
            *[peek(2), Bpf(ANY_BIT, 0, 1, O_ASYNC), DENY, PERMIT],
            *allow_among(1, FCNTL_COMMANDS),
        ],
        "ioctl": allow_among(1, IOCTL_COMMANDS),
        # A pair of datagram sockets could be connected to others, or send to them.
        "socketpair": [
            *[peek(0), Bpf(EQUAL, 0, 3, AF_UNIX), peek(1), Bpf(AND, 0, 0, KIND_OF_SOCKET)],
            *[Bpf(EQUAL, 1, 0, SOCK_STREAM), DENY, PERMIT],
        ],
        # send(2) is sendto(2) without an address, whose two halves are zero.
        "sendto": [
            *[peek(4), Bpf(EQUAL, 0, 3, 0), peek(4, 4), Bpf(EQUAL, 0, 1, 0)],
            *[PERMIT, DENY],
        ],
        "kill": own,
        "tgkill": own,
        "prlimit64": allow_among(0, [process, 0]),
        "prctl": allow_among(0, PRCTL_OPTIONS),
        "clone": [
            *[peek(0), Bpf(ANY_BIT, 0, 1, THREAD), Bpf(ANY_BIT, 0, 1, NEW_NAMESPACE)],
            *[DENY, PERMIT],
        ],
    }


def peek(position: int, half: int = 0) -> Bpf:
    """Look at an argument's low half, or (4) its high one; both machines are little-endian."""
    return Bpf(LOAD, 0, 0, ARGUMENTS + 8 * position + half)


def allow_among(position: int, values: Iterable[int]) -> list[Bpf]:
    """Allow a call whose argument (its low half) is one of these values."""
    wanted = list(values)
    tests = [Bpf(EQUAL, len(wanted) - at, 0, value) for at, value in enumerate(wanted)]
    return [peek(position), *tests, DENY, PERMIT]


def allow_opening(position: int, read_only: bool) -> list[Bpf]:
    """Allow to open a file with these flags, unless they truncate what is not opened to write.

    Early versions of Landlock let a file that is only readable be truncated that way.
    """
    if read_only:
        writes = O_CREAT | O_TRUNC | O_TMPFILE | ACCESS_MODE
        return [peek(position), Bpf(ANY_BIT, 0, 1, writes), DENY, PERMIT]
    return [
        *[peek(position), Bpf(ANY_BIT, 0, 4, O_TRUNC), Bpf(AND, 0, 0, ACCESS_MODE)],
        *[Bpf(EQUAL, 2, 0, O_WRONLY), Bpf(EQUAL, 1, 0, O_RDWR), DENY, PERMIT],
    ]
