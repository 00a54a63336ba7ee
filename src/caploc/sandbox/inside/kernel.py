"""Calls into the C library that Python 3.11 does not wrap."""

import ctypes
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LINUX = sys.platform == "linux"

# prctl(2)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39

UNSIGNED = ctypes.c_ulong
SIGNATURES = {
    "prctl": (ctypes.c_int, UNSIGNED, UNSIGNED, UNSIGNED, UNSIGNED),
    "mount": (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, UNSIGNED, ctypes.c_char_p),
    "umount2": (ctypes.c_char_p, ctypes.c_int),
    "pivot_root": (ctypes.c_char_p, ctypes.c_char_p),
    "unshare": (ctypes.c_int,),
    "setns": (ctypes.c_int, ctypes.c_int),
    "capset": (ctypes.c_void_p, ctypes.c_void_p),
}


def call(name: str, *arguments: object) -> int:
    """Call a C function of `SIGNATURES`.

    Raises:
        OSError: with the call's errno, or ENOSYS where the library lacks it.
    """
    function = getattr(LIBC, name, None)
    if function is None:
        raise OSError(38, f"{name}: this system has no such call")
    function.argtypes = SIGNATURES[name]
    return checked(name, function(*arguments))


def control_process(option: int, value: object = 0) -> None:
    """prctl(2) with one argument.

    Raises:
        OSError: if the kernel says no.
    """
    call("prctl", option, value, 0, 0, 0)


def system_call(number: int, *arguments: object) -> int:
    """A raw system call; integers are passed as longs.

    Raises:
        OSError: with the call's errno.
    """
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(f"system call {number}", LIBC.syscall(ctypes.c_long(number), *longs))


def checked(name: str, result: int) -> int:
    """The result of a C function that answers -1 for failure.

    Raises:
        OSError: if it did.
    """
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
