"""Ctrl-C while modules are imported, when an exception would do harm."""

import os
import signal
import threading
from types import FrameType


def importing(frame: FrameType | None) -> bool:
    """Tell whether a module is being imported in this frame or one that called it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def interrupt(_: int, frame: FrameType | None) -> None:
    """Handle SIGINT: end at once while a module is imported, raise KeyboardInterrupt otherwise.

    C++ code that runs Python while it initializes (as torch and matplotlib do) aborts the process
    or reports something else when that Python raises.
    """
    if importing(frame):
        os.write(2, b"Stopped.\n")
        os._exit(128 + signal.SIGINT)
    raise KeyboardInterrupt


def install_interrupt() -> None:
    """Handle Ctrl-C so, unless it is ignored or the program that imported caploc handles it."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, interrupt)
