"""How a process is isolated: which system calls it may make, what it sees, what it gives up.

The filter (seccomp) says what is allowed. Another call fails with EPERM, as if the user had no
right to it, or with ENOSYS if it is so new that C libraries ask for it only to see whether it
exists. A program that calls by the numbers of another machine (32-bit, x32) is ended.

Every function here raises OSError where the kernel refuses what it asks for.
"""

import ctypes
import errno
import fcntl
import math
import os
import platform
import random
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from caploc.sandbox.protocol import CALLS, Limits, Profile

# Machine → the kernel's name for it (audit.h), and its column of the tables below.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
ALLOWED, WRITING, CONDITIONAL, RULES, RULES_TO_READ, _ = CALLS.values()
# From this number on, machines share theirs, and a C library that meets EPERM may give up.
NEW_CALLS = 424

LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
CALL_NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
ALLOW, REFUSE, UNKNOWN_CALL, END_PROCESS = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
X32_CALLS = 0x40000000
# One instruction of the filter: code, steps to skip if true and if false, operand.
Step = tuple[int, int, int, int]
PERMIT, DENY = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)


def list_steps(machine: str, process: int, *, read_only: bool) -> Iterator[Step]:
    """Yield the filter's steps for one machine and process."""
    name, column = MACHINES[machine]
    yield (LOAD, 0, 0, ARCHITECTURE)
    yield (EQUAL, 1, 0, name)
    yield (RETURN, 0, 0, END_PROCESS)
    yield (LOAD, 0, 0, CALL_NUMBER)
    yield (AT_LEAST, 0, 1, X32_CALLS)
    yield (RETURN, 0, 0, END_PROCESS)
    allowed = ALLOWED if read_only else ALLOWED | WRITING
    rules = RULES | (RULES_TO_READ if read_only else {})
    for call_name, numbers in (allowed | CONDITIONAL).items():
        # The steps, each way ending in a RETURN, are taken if the call has this number.
        special = call_name in CONDITIONAL
        steps = compile_rule(rules[call_name], process) if special else [PERMIT]
        if numbers[column] >= 0:
            yield from [(EQUAL, 0, len(steps), numbers[column]), *steps]
    yield (AT_LEAST, 1, 0, NEW_CALLS)
    yield DENY
    yield (RETURN, 0, 0, UNKNOWN_CALL)


def compile_rule(rule: list[list[tuple[float, int, list[Any]]]], process: int) -> list[Step]:
    """Return the steps that permit a call if all tests of one of the ways hold, else deny it."""
    steps: list[Step] = []
    for way in rule:
        inside = [PERMIT]
        for position, bits, allowed in reversed(way):
            values = [process if each == "own" else each for each in allowed]
            # One value after another leads on to what is inside; after the last, past it.
            last = len(values) - 1
            leads = [(EQUAL, last - at, 0, value) for at, value in enumerate(values[:-1])]
            look = (LOAD, 0, 0, ARGUMENTS + int(8 * position))
            missed = (EQUAL, 0, len(inside), values[-1])
            inside = [look, (AND, 0, 0, bits), *leads, missed, *inside]
        steps += inside
    return [*steps, DENY]


LIBC = ctypes.CDLL(None, use_errno=True)
# prctl(2)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
CAPABILITIES_VERSION = 0x20080522

# unshare(2); all: control groups, host name, users and network, too.
NEW_MOUNTS, NEW_MESSAGES, NEW_PIDS = 0x00020000, 0x08000000, 0x20000000
ALL_NEW = NEW_MOUNTS | NEW_MESSAGES | NEW_PIDS | 0x02000000 | 0x04000000 | 0x10000000 | 0x40000000
# mount(2) and umount2(2)
READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2
# statvfs(3) flag → mount(2) flag: a bind mount may not lose any of these when it is remounted.
KEPT = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
PYTHON_FOLDERS = [path for path in sys.path if os.path.isdir(path)]  # of the standard library
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
WORKPLACE = "/tmp"
# Which outer user the judge (first) and the program (second) are, tried in this order. Root may
# grant any: two far from any real one, else two that small containers have. The limit on
# processes does not bind root itself.
GRANTED_USERS = (2_000_000_001, 60_001)

# Landlock's calls, the same numbers on every machine; its rights over files.
CREATE_RULES, ADD_RULE, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
# How many rights over files each version knows.
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
OPEN_FILES = 64
# Chance must not change a verdict from run to run; every fork draws new chances otherwise.
SEED = 0
# Out of the way of 0, 1, 2, ..., and below the fewest that a system lets a process open.
HIGH_FILE = 100


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library, integers as longs."""
    longs = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    result: int = getattr(LIBC, name)(*longs)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def control_process(option: int, value: int = 0) -> int:
    """Call prctl(2) with one argument."""
    return call("prctl", option, value, 0, 0, 0)


def isolate(
    profile: Profile, limits: Limits, files: Sequence[int], folder: str | None, user: int | None
) -> None:
    """Turn this fresh child into one that may run anything.

    Its `files` become 0, 1, 2, ..., all others are closed. It works in a new `folder`; without one,
    in one of its mount namespace. Without a `user` to become (and a group) it stays who it is.
    """
    parent = os.getppid()
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Out of the way first, so that none is overwritten before it has moved.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH_FILE) for file in files]
    for at, file in enumerate(moved):
        os.dup2(file, at)
    os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))
    if folder is None:  # mounts and message queues of its own, and an empty, small /tmp
        call("unshare", NEW_MOUNTS | NEW_MESSAGES)
        owner = user or 0
        options = f"size={limits.file_bytes},nr_inodes=4096,mode=700,uid={owner},gid={owner}"
        mount("tmpfs", WORKPLACE, "tmpfs", NO_SETUID | NO_DEVICES | NO_EXECUTION, options)
    else:
        os.mkdir(folder, 0o700)
        if user is not None:
            os.chown(folder, user, user)
    os.chdir(folder or WORKPLACE)
    set_limits(limits)
    shed_rights(user)
    # After the change of user, which forgets it.
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if profile == "landlock":
        restrict_paths()
    install_filter(read_only=profile == "filter")
    os.environ.clear()
    sys.argv[:] = [""]
    random.seed(SEED)


def set_limits(limits: Limits) -> None:
    """Set every resource limit, soft and hard alike: the kernel kills at the hard one."""
    wanted = {
        resource.RLIMIT_CPU: math.ceil(limits.cpu_seconds),
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


def shed_rights(user: int | None) -> None:
    """Give up every right of root for good, and become another user if one is given."""
    with suppress(OSError):  # refused to plain users, who have none; else up to the last number
        for capability in range(64):
            control_process(PR_CAPBSET_DROP, capability)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    call("capset", struct.pack("II", CAPABILITIES_VERSION, 0), bytes(24))
    control_process(PR_SET_DUMPABLE, 0)
    control_process(PR_SET_NO_NEW_PRIVS, 1)


def install_filter(*, read_only: bool) -> None:
    """Filter the system calls of this process and all it starts, for good; needs no_new_privs.

    With `read_only` no file may be written at all.
    """
    listed = list_steps(platform.machine(), os.getpid(), read_only=read_only)
    steps = [struct.pack("HBBI", *step) for step in listed]
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    call("prctl", PR_SET_SECCOMP, 2, program, 0, 0)


def restrict_paths() -> None:
    """Keep this process, by Landlock and for good, to reading Python and to writing in its folder.

    Sockets and signals, which later versions of it know too, are the filter's.
    """
    version = call("syscall", CREATE_RULES, None, 0, 1)
    every = (1 << RIGHTS[min(version, max(RIGHTS))]) - 1
    ruleset = call("syscall", CREATE_RULES, struct.pack("Q", every), 8, 0)
    rights = dict.fromkeys(PYTHON_FOLDERS, READ_FILE | READ_FOLDER)
    for path, allowed in {**rights, os.devnull: READ_FILE, ".": every & ~EXECUTE}.items():
        opened = os.open(path, os.O_PATH)
        call("syscall", ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, opened), 0)
        os.close(opened)
    call("syscall", RESTRICT, ruleset, 0)
    os.close(ruleset)


def enter_namespaces() -> bool:
    """Move into new namespaces; return in their process 1, for which this process only waits.

    What is returned says whether users 1 and 2 exist inside, apart from the worker's own; always
    if that is root.
    """
    ready, begin = os.pipe()
    parent = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        os.close(begin)
        os.read(ready, 1)
        with suppress(BaseException):
            os._exit(map_users(parent))
        os._exit(9)
    # The mapper stays behind: only a process of the outer namespace may map other users.
    call("unshare", ALL_NEW)
    os.close(ready)
    os.close(begin)
    _, status = os.waitpid(mapper, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        raise OSError(errno.EPERM, "the users of a new namespace could not be mapped")
    inner = os.fork()
    if inner:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        os.waitpid(inner, 0)
        os._exit(0)
    return code == 1


def map_users(process: int) -> int:
    """Write the user and group maps of a process; return 1 if it got two more users."""
    folder = Path(f"/proc/{process}")
    user, group = os.getuid(), os.getgid()
    if user == 0:
        for granted in GRANTED_USERS:
            with suppress(OSError):
                (folder / "uid_map").write_text(f"0 0 1\n1 {granted} 2\n")
                (folder / "gid_map").write_text(f"0 {group} 1\n1 {granted} 2\n")
                return 1
        raise OSError(errno.EPERM, "root cannot become another user")
    (folder / "setgroups").write_text("deny")
    (folder / "uid_map").write_text(f"0 {user} 1\n")
    (folder / "gid_map").write_text(f"0 {group} 1\n")
    return 0


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    texts = [text and text.encode() for text in (source, target, kind)]
    call("mount", *texts, flags, options.encode() or None)


def build_root() -> None:
    """Make a root of Python and four devices, all read-only, and forget the old one."""
    mount("none", "/", None, RECURSIVE | PRIVATE)
    root = "/proc"  # hides none of the wanted paths
    flags = NO_SETUID | NO_DEVICES
    mount("tmpfs", root, "tmpfs", flags, "size=1m,mode=755")
    for path in filter(os.path.exists, (*PYTHON_FOLDERS, *DEVICES)):
        mount_path(path, root + path)
    os.makedirs(root + WORKPLACE, exist_ok=True)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", DETACH)
    os.chdir("/")
    mount(None, "/", None, REMOUNT | BIND | READ_ONLY | flags)


def mount_path(path: str, inside: str) -> None:
    """Make a path of the old root visible in the new one, read-only, without its packages."""
    if os.path.isdir(path):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        Path(inside).touch()
    mount(path, inside, None, BIND | RECURSIVE)
    given = os.statvfs(inside).f_flag
    kept = sum(flag for known, flag in KEPT.items() if given & known)
    mount(None, inside, None, REMOUNT | BIND | READ_ONLY | NO_SETUID | kept)
    for packages in ("site-packages", "dist-packages"):
        if os.path.isdir(f"{inside}/{packages}"):  # covered by an empty one
            flags = READ_ONLY | NO_SETUID | NO_DEVICES | NO_EXECUTION
            mount("tmpfs", f"{inside}/{packages}", "tmpfs", flags, "size=4k,mode=555")


def fork_into_namespace(own: int) -> int:
    """Call fork(2) so that the child is process 1 of a pid namespace; `own` is ours, opened."""
    call("unshare", NEW_PIDS)
    process = os.fork()
    if process:
        call("setns", own, NEW_PIDS)
    return process
