"""The process that runs: how Ctrl-C ends it, and which secrets it keeps.

Secrets are taken out of what is written down: tokens of the Hugging Face Hub, what stands before a
host (`https://user:password@host`), and what a variable of the environment holds that is named like
a secret.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

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


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: end at once while a module is imported, raise KeyboardInterrupt otherwise.

    C++ code that runs Python while it initializes (as torch and matplotlib do) aborts the process
    or reports something else when that Python raises.
    """
    if importing(frame):
        os.write(2, b"Stopped.\n")
        os._exit(128 + number)
    raise KeyboardInterrupt


def install_interrupt() -> None:
    """Handle Ctrl-C so, unless it is ignored or the program that imported caploc handles it."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, interrupt)


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers and datasets from drawing bars; long downloads keep the Hub's."""
    logging, hub, datasets = (
        sys.modules.get(name)
        for name in ("transformers.utils.logging", "huggingface_hub.utils", "datasets")
    )
    with ExitStack() as after:
        if logging and hub and logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            hub.enable_progress_bars()
            after.callback(logging.enable_progress_bar)
        if datasets and not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            after.callback(datasets.enable_progress_bars)
        yield


HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a variable's value that is taken for a secret
VARIABLE = re.compile(r"(?i)token|secret|password|api_?key|access_?key|credential")
SECRET = re.compile(r"\bhf_[A-Za-z0-9]{16,}|(?<=://)[^\s/@'\"]+(?=@)")


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with every secret in it replaced by `[hidden]`."""
    for name, value in environment.items():
        if VARIABLE.search(name) and len(value) >= SHORTEST:
            text = text.replace(value, HIDDEN)
    return SECRET.sub(HIDDEN, text)


def without_secrets(content: Any) -> Any:
    """A file's content with secrets taken out of every text in it."""
    if isinstance(content, str):
        return redacted(content)
    if isinstance(content, dict):
        return {key: without_secrets(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_secrets(value) for value in content]
    return content
