"""A small world of its own: Linux namespaces, and a root with Python in it and nothing else."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from caploc.sandbox.inside.kernel import call

NEW_MOUNTS = 0x00020000
NEW_CGROUP = 0x02000000
NEW_HOSTNAME = 0x04000000
NEW_MESSAGES = 0x08000000
NEW_USERS = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000
ALL_NEW = NEW_MOUNTS | NEW_CGROUP | NEW_HOSTNAME | NEW_MESSAGES | NEW_USERS | NEW_PIDS | NEW_NETWORK

READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2
# statvfs(3) flag → mount(2) flag: a bind mount may not lose any of these when it is remounted.
KEPT = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
WORKPLACE = "/tmp"
# Which outer user the judge (first) and the program (second) are, tried in this order. Root may
# grant any: two far from any real one, else two that small containers have. The limit on
# processes does not bind root itself.
GRANTED_USERS = (2_000_000_001, 60_001)


def enter() -> bool:
    """Move into new namespaces; return in their process 1. This process only waits for it.

    Returns:
        Whether users 1 and 2 exist inside, apart from the worker's own; always if that is root.

    Raises:
        OSError: if the machine does not allow it.
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
        raise OSError(1, "the users of a new namespace could not be mapped")
    with suppress(OSError):  # read-only in some containers; the system-call filter holds too
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    inner = os.fork()
    if inner:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        while True:  # whatever else this process started before ends meanwhile
            process, status = os.wait()
            if process == inner:
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    return code == 1


def map_users(process: int) -> int:
    """Write the user and group maps of a process; return 1 if it got two more users.

    Raises:
        OSError: if the kernel refuses, or root would stay root.
    """
    folder = Path(f"/proc/{process}")
    user, group = os.getuid(), os.getgid()
    if user == 0:
        for granted in GRANTED_USERS:
            with suppress(OSError):
                (folder / "uid_map").write_text(f"0 0 1\n1 {granted} 2\n")
                (folder / "gid_map").write_text(f"0 {group} 1\n1 {granted} 2\n")
                return 1
        raise OSError(1, "root cannot become another user")
    (folder / "setgroups").write_text("deny")
    (folder / "uid_map").write_text(f"0 {user} 1\n")
    (folder / "gid_map").write_text(f"0 {group} 1\n")
    return 0


def build_root(folders: Sequence[str]) -> None:
    """Make a root of these folders and four devices, all read-only, and forget the old one.

    Raises:
        OSError: if a mount is refused.
    """
    call("mount", b"none", b"/", None, RECURSIVE | PRIVATE, None)
    wanted = [path for path in (*folders, *DEVICES) if os.path.exists(path)]
    root = mount_point(wanted)
    flags = NO_SETUID | NO_DEVICES
    call("mount", b"tmpfs", root.encode(), b"tmpfs", flags, b"size=1m,mode=755")
    for path in wanted:
        show(path, root + path)
    os.makedirs(root + WORKPLACE, exist_ok=True)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", DETACH)
    os.chdir("/")
    call("mount", None, b"/", None, REMOUNT | BIND | READ_ONLY | flags, None)


def mount_point(wanted: Sequence[str]) -> str:
    """A folder to mount the new root on that hides none of the wanted paths."""
    for name in sorted(os.listdir("/")):
        path = f"/{name}"
        hides = any(each == path or each.startswith(path + "/") for each in wanted)
        if name != "proc" and not hides and os.path.isdir(path) and not os.path.islink(path):
            return path
    raise OSError(2, "no folder of / is free to mount the sandbox's root on")


def show(path: str, inside: str) -> None:
    """Make a path of the old root visible in the new one, read-only, without its packages."""
    if os.path.isdir(path):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        Path(inside).touch()
    call("mount", path.encode(), inside.encode(), None, BIND | RECURSIVE, None)
    given = os.statvfs(inside).f_flag
    kept = sum(flag for known, flag in KEPT.items() if given & known)
    flags = REMOUNT | BIND | READ_ONLY | NO_SETUID | kept
    call("mount", None, inside.encode(), None, flags, None)
    for packages in ("site-packages", "dist-packages"):
        if os.path.isdir(f"{inside}/{packages}"):
            hide(f"{inside}/{packages}")


def hide(folder: str) -> None:
    """Cover a folder with an empty one that nobody can write to."""
    flags = READ_ONLY | NO_SETUID | NO_DEVICES | NO_EXECUTION
    call("mount", b"tmpfs", folder.encode(), b"tmpfs", flags, b"size=4k,mode=555")


def own_workplace(size: int, user: int) -> None:
    """Give this process mounts and message queues of its own, and an empty, small /tmp."""
    call("unshare", NEW_MOUNTS | NEW_MESSAGES)
    options = f"size={size},nr_inodes=4096,mode=700,uid={user},gid={user}"
    flags = NO_SETUID | NO_DEVICES | NO_EXECUTION
    call("mount", b"tmpfs", WORKPLACE.encode(), b"tmpfs", flags, options.encode())
    os.chdir(WORKPLACE)


class PidNamespaces:
    """Starts children as process 1 of a pid namespace each."""

    def __init__(self) -> None:
        """Remember our own namespace, while /proc can still be seen."""
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self, start: Callable[[], int] = os.fork) -> int:
        """fork(2), the child in a new pid namespace."""
        call("unshare", NEW_PIDS)
        try:
            return start()
        finally:
            # In the child this fails, since it has no way back, and need not work.
            with suppress(OSError):
                call("setns", self._own, NEW_PIDS)


def python_folders() -> list[str]:
    """Where this interpreter keeps its standard library."""
    return [path for path in sys.path if os.path.isdir(path)]
