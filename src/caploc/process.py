"""The process that runs: how Ctrl-C ends it."""

import os
import signal
import threading
from types import FrameType

# In the environment: caploc starts vLLM's processes. In a request's extra arguments: what is left
# of the heads that it cuts.
MASKED_VLLM = "CAPLOC_MASKED_VLLM"


def importing(frame: FrameType | None) -> bool:
    """Tell whether a module is being imported in this frame or one that called it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def interrupt(number: int, frame: FrameType | None, said: str = "Stopped.") -> None:
    """Handle a signal: end at once while a module is imported, raise KeyboardInterrupt otherwise.

    C++ code that runs Python while it initializes (as torch and matplotlib do) aborts the process
    or reports something else when that Python raises.
    """
    if importing(frame):
        os.write(2, f"{said}\n".encode())
        os._exit(128 + number)
    raise KeyboardInterrupt


def install_interrupt() -> None:
    """Handle Ctrl-C so, unless it is ignored or the program that imported caploc handles it."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, interrupt)
