"""A filter for system calls (seccomp): no sockets, no new processes, no hand on other ones.

What a Python program needs to compute stays allowed; what is refused fails with EPERM, as if the
user had no right to it. The kernel's rarely needed corners, where most of its escapes were found,
are refused as well.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Iterable

from caploc.sandbox.inside.kernel import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PR_SET_SECCOMP, call

# Machine → the kernel's name for it (audit.h), and its column of the tables below.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Call → its number on each machine; None where the machine lacks it.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # network, and kernel objects that outlive a process or count towards no memory limit
    "socket": (41, 198), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # new processes and programs (threads: see CLONE)
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    # mounts and namespaces
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "swapon": (167, 224), "swapoff": (168, 225),
    # the kernel's own workings
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "syslog": (103, 116), "acct": (163, 89), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "personality": (135, 92),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58),
    "uselib": (134, None), "seccomp": (317, 277),
}  # fmt: skip
# These are allowed with our own process as their first argument (prlimit64: also 0).
OWN_PROCESS = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}
PRCTL = (157, 167)
CLONE = (56, 220)
CLONE3 = (435, 435)

THREAD = 0x00010000
# Every CLONE_NEW... flag: time, mounts, cgroup, hostname, messages, users, pids, network.
NEW_NAMESPACE = 0x7E020080

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CALL_NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW, REFUSE, UNKNOWN_CALL, END_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
X32_CALLS = 0x40000000


class Step(ctypes.Structure):
    """One instruction of the filter: code, steps to skip if true and if false, operand."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class Filter(ctypes.Structure):
    """The filter as prctl(2) takes it."""

    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(Step)))


def install() -> None:
    """Filter this process and all it starts, for good; needs no_new_privs.

    Raises:
        OSError: if the kernel has no filters, or this machine's call numbers are not known.
    """
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    steps = list(written(platform.machine(), os.getpid()))
    array = (Step * len(steps))(*steps)
    call("prctl", PR_SET_SECCOMP, 2, ctypes.addressof(Filter(len(steps), array)), 0, 0)


def written(machine: str, process: int) -> Iterable[Step]:
    """The filter's steps for one machine and the process that will carry it."""
    name, column = MACHINES[machine]
    yield Step(LOAD, 0, 0, ARCHITECTURE)
    yield Step(EQUAL, 1, 0, name)
    yield Step(RETURN, 0, 0, END_PROCESS)
    yield Step(LOAD, 0, 0, CALL_NUMBER)
    yield Step(AT_LEAST, 0, 1, X32_CALLS)
    yield Step(RETURN, 0, 0, END_PROCESS)
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            yield from rule(number, [Step(RETURN, 0, 0, REFUSE)])
    yield from rule(CLONE3[column], [Step(RETURN, 0, 0, UNKNOWN_CALL)])
    for call_name, numbers in OWN_PROCESS.items():
        allowed = [process, 0] if call_name == "prlimit64" else [process]
        yield from rule(numbers[column], only_if_first_is(allowed))
    yield from rule(PRCTL[column], never_if_first_is([PR_SET_PDEATHSIG, PR_SET_DUMPABLE]))
    yield from rule(
        CLONE[column],
        [
            Step(LOAD, 0, 0, FIRST_ARGUMENT),
            Step(ANY_BIT, 0, 1, THREAD),
            Step(ANY_BIT, 0, 1, NEW_NAMESPACE),
            Step(RETURN, 0, 0, REFUSE),
            Step(RETURN, 0, 0, ALLOW),
        ],
    )
    yield Step(RETURN, 0, 0, ALLOW)


def rule(number: int, steps: list[Step]) -> list[Step]:
    """Take the steps, each way ending in a RETURN, if the call has this number."""
    return [Step(EQUAL, 0, len(steps), number), *steps]


def only_if_first_is(values: list[int]) -> list[Step]:
    """Allow a call whose first argument is one of these."""
    return [*looked_up(values), Step(RETURN, 0, 0, REFUSE), Step(RETURN, 0, 0, ALLOW)]


def never_if_first_is(values: list[int]) -> list[Step]:
    """Refuse a call whose first argument is one of these."""
    return [*looked_up(values), Step(RETURN, 0, 0, ALLOW), Step(RETURN, 0, 0, REFUSE)]


def looked_up(values: list[int]) -> list[Step]:
    """Skip one step if the first argument (its low half) is one of the values."""
    tests = [Step(EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [Step(LOAD, 0, 0, FIRST_ARGUMENT), *tests]
