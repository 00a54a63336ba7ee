"""How a command ends: an exit code, and one sentence where something went wrong."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Any

import typer

from caploc import console
from caploc.errors import CaplocError, Stopped, UserError

# What every mistake in typing a command is, among typer's exceptions.
MISTYPED: type[Exception] = typer.BadParameter.__mro__[1]
UNFORESEEN = "caploc failed in a way that it should have foreseen"


def exit_after(command: Callable[[], Any]) -> None:
    """Run a command, and exit: 0 done, 1 failed, 2 a mistake in what was asked, 130 Ctrl-C."""
    try:
        code = command() or 0
        ignore_interrupts()
        if code == Stopped.code:  # typer's own answer to Ctrl-C is silent
            console.complain(f"Stopped. {console.KEPT}")
        sys.exit(code)
    except BrokenPipeError:  # whoever read the output has left, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (Python flushes it at its end)
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        ignore_interrupts()
        code, sentence = ending(error)
        console.complain(sentence)
        sys.exit(code)


def ignore_interrupts() -> None:
    """Let a process that is ending end: one more Ctrl-C would only print where it was."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def ending(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error, and what to say."""
    if isinstance(error, MISTYPED):
        return 2, mistyped(error)
    if isinstance(error, Stopped):
        return error.code, str(error)
    if isinstance(error, CaplocError):
        return (2 if isinstance(error, UserError) else 1), str(error)
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):  # Ctrl-C outside of what shows progress
        return Stopped.code, f"Stopped. {console.KEPT}"
    if isinstance(error, OSError):  # a full disk while the report or a figure is written, say
        return 1, (
            f"A file could not be used ({error}); rows that were measured are kept. Free disk "
            "space or check the rights, then run the same command again."
        )
    return 1, unforeseen(error)


def mistyped(error: Any) -> str:
    """Say what is wrong with a command as it was typed."""
    said = str(error.format_message()).strip()
    if error.ctx is None:
        return said
    if not said:  # typed without a command, for which typer has printed the help
        return f"{error.ctx.command_path} takes one of the commands above."
    end = "" if said.endswith("?") else ";"
    return f"{said.rstrip('.')}{end} `{error.ctx.command_path} --help` says what there is."


def unforeseen(error: BaseException) -> str:
    """Write down the details of a failure of caploc's own, and say where."""
    with NamedTemporaryFile("w", prefix="caploc-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    first = (str(error).strip() or "no text").splitlines()[0]
    return (
        f"{UNFORESEEN} ({type(error).__name__}: {first}); rows that were measured are kept. "
        f"{file.name} holds the details: please report them."
    )
