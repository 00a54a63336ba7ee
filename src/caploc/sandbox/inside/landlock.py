"""Landlock: where there are no namespaces, the kernel still keeps a process to a few folders."""

import ctypes
import os
from collections.abc import Sequence

from caploc.sandbox.inside.kernel import system_call

# The same numbers on every machine.
CREATE, ADD_RULE, RESTRICT = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1

READ_FILE, WRITE_FILE, READ_FOLDER = 1 << 2, 1 << 1, 1 << 3
EXECUTE = 1 << 0
# How many rights over files each version knows: bits 0 up to this one.
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
# From version 4: binding and connecting TCP. From 6: abstract sockets and signals to outside.
TCP, OUTSIDE = 0b11, 0b11
NETWORK_SINCE, SCOPE_SINCE = 4, 6


class Rules(ctypes.Structure):
    """struct landlock_ruleset_attr: what is refused unless a rule allows it."""

    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scope", ctypes.c_uint64),
    )


class Beneath(ctypes.Structure):
    """struct landlock_path_beneath_attr: rights over all that lies below an open folder."""

    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The kernel's version of Landlock.

    Raises:
        OSError: if it has none.
    """
    return system_call(CREATE, None, 0, ASK_VERSION)


def confine(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Keep this process, for good, to reading some paths and to writing some.

    Raises:
        OSError: if the kernel has no Landlock or a path cannot be opened.
    """
    known = version()
    every = (1 << RIGHTS[min(known, max(RIGHTS))]) - 1
    rules = Rules(
        every, TCP if known >= NETWORK_SINCE else 0, OUTSIDE if known >= SCOPE_SINCE else 0
    )
    # Older kernels take the shorter structure; longer ones only if the rest is zero.
    ruleset = system_call(CREATE, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    try:
        for path in readable:
            allow(ruleset, path, READ_FILE | READ_FOLDER)
        for path in writable:
            allow(ruleset, path, every & ~EXECUTE)
        system_call(RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    """Add one rule; folder rights are dropped for a plain file."""
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= READ_FILE | WRITE_FILE
        beneath = Beneath(rights, opened)
        system_call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(opened)
