"""What the terminal shows: progress, tables, errors. Text from a model is never taken as markup."""

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from caploc.errors import HungUp, Stopped, Terminated
from caploc.process import interrupt
from caploc.progress import Silent, Tally, format_clock

STOPPED: dict[int, tuple[type[Stopped], str]] = {
    signal.SIGINT: (Stopped, "Stopped."),
    signal.SIGTERM: (Terminated, "Terminated."),
}
if hasattr(signal, "SIGHUP"):  # Windows has none
    STOPPED[signal.SIGHUP] = HungUp, "The terminal is gone."
LINE_SECONDS = 60.0  # between lines of progress where no bars can be drawn
READY = "getting ready"  # before the first stage: tasks are read, a model is loaded and proved
KEPT = "What was measured is kept; the same command continues."


def stderr_console() -> Console:
    """Rich on standard error: as plain text in a notebook that has no ipywidgets to draw with."""
    return Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)


stderr = stderr_console()


class ProgressDisplay:
    """Progress on standard error: a bar on a terminal, a line a minute in a file.

    Rows are those of the whole once it is known how many it takes, until then those of the stage.
    """

    def __init__(self, bars: Progress | None) -> None:
        self.bars, self.stage, self.tally, self.of_stage = bars, READY, Tally(), True
        self.began = self.written = time.monotonic()
        self.bar = bars.add_task(READY, total=None, figures="") if bars else None

    def expect(self, rows: int) -> None:
        if self.of_stage:
            self.tally, self.of_stage = Tally(), False
        self.tally.rows = self.tally.done + rows
        self.draw()

    def start(self, what: str, rows: int) -> None:
        self.stage = printable(without_folders(what))
        if self.of_stage:
            self.tally = Tally(rows)
        elif not self.tally.done:
            self.tally.began = time.monotonic()  # a model was loaded meanwhile
        self.draw()

    def advance(self, rows: int, tokens: float) -> None:
        self.tally.add(rows, tokens)
        self.draw()

    def tell(self, text: str) -> None:
        stderr.print(escape(printable(text)), soft_wrap=True, highlight=False)

    def draw(self) -> None:
        if self.bars and self.bar is not None:
            self.bars.update(
                self.bar,
                total=self.tally.rows,
                completed=self.tally.done,
                description=escape(self.stage),
                figures=self.figures(),
            )
        elif time.monotonic() - self.written >= LINE_SECONDS:
            self.write(f"{self.stage}, {self.figures()}")

    def figures(self) -> str:
        """Write how many rows are done, how fast they come and how long the rest takes."""
        tally, most = self.tally, "" if self.of_stage else "at most "
        parts = [f"{tally.done:,} of {most}{tally.rows:,} rows" if tally.rows else ""]
        if tally.seconds is not None:
            parts.append(f"{tally.measured / tally.seconds:,.1f} rows/s")
        if tally.left is not None:
            of = " (of this stage)" if self.of_stage else ""
            parts.append(f"{most}{format_clock(tally.left)} left{of}")
        return ", ".join(filter(None, parts))

    def write(self, text: str) -> None:
        """Write a line behind the time that has passed."""
        self.written = time.monotonic()
        clock = format_clock(self.written - self.began)
        stderr.print(escape(f"caploc: {clock} {text}"), soft_wrap=True, highlight=False)


def say_begun(quiet: bool) -> None:
    """Say at once that a command has begun: the libraries that it imports may take many seconds."""
    if not quiet and not stderr.is_jupyter:
        stderr.print(f"caploc: {READY} ...", highlight=False)


def without_folders(what: str) -> str:
    """Name a stage by the last part of its task's file."""
    return re.sub(r"(?<!\S)/(?:[^/:]*/)+", "", what)


@contextmanager
def interruptible(kept: str = KEPT) -> Iterator[None]:
    """Raise Stopped inside the block on Ctrl-C, SIGTERM and SIGHUP; `kept` says what is not lost.

    Only the main thread hears signals. A SIGHUP that is ignored stays so: the command was started
    with `nohup`.
    """
    pressed = [int(signal.SIGINT)]

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        interrupt(number, frame, f"{STOPPED[number][1]} {kept}")

    here = threading.current_thread() is threading.main_thread()
    ignored = [each for each in STOPPED if signal.getsignal(each) == signal.SIG_IGN]
    heard = {*STOPPED} - {*ignored} | {signal.SIGINT} if here else set()
    before = {each: signal.signal(each, press) for each in heard}
    try:
        yield
    except KeyboardInterrupt:
        kind, said = STOPPED[pressed[-1]]
        raise kind(f"{said} {kept}") from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def progress(quiet: bool, kept: str = KEPT) -> Iterator[ProgressDisplay | Silent]:
    """Show progress while the block runs, unless told to be quiet.

    `kept` tells whoever stops it what is not lost. Raises Stopped on Ctrl-C, which typer would
    otherwise turn into a silent exit, on SIGTERM, and on SIGHUP.
    """
    with interruptible(kept), progress_bars(quiet) as shown:
        yield shown


@contextmanager
def progress_bars(quiet: bool) -> Iterator[ProgressDisplay | Silent]:
    """Display progress while the block runs."""
    if quiet:
        yield Silent()
        return
    if not (stderr.is_terminal or stderr.is_jupyter):
        lines = ProgressDisplay(None)
        yield lines
        lines.write("done")
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=stderr) as bars:
        yield ProgressDisplay(bars)


def say(text: str) -> None:
    """Print a line of the result on standard output."""
    sys.stdout.write(printable(text) + "\n")


def say_json(content: Any) -> None:
    """Print the result as JSON on standard output."""
    say(json.dumps(content, indent=1))


def complain(text: str) -> None:
    """Print an error on standard error."""
    tell_apart("red", printable(text))


def warn(text: str) -> None:
    """Print on standard error what to know before a command goes on."""
    tell_apart("yellow", text)


def tell_apart(colour: str, text: str) -> None:
    """Print text on standard error behind the program's name in this colour."""
    message = f"[bold {colour}]caploc:[/] {escape(printable(text))}"
    stderr.print(message, soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """Drop control characters: names and data from elsewhere must not steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\u00a0" else "�" for c in text)


def width(elsewhere: int = 120) -> int:
    """Return how many characters a line of the terminal holds; in a file, as many as told."""
    return Console().width if sys.stdout.isatty() else elsewhere


def show_table(headings: list[str], rows: list[list[str]], title: str = "") -> None:
    """Print a table; the first column is left-aligned, numbers to the right."""
    table = Table(title=escape(printable(title)) or None, title_justify="left", header_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(escape(printable(heading)), justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    Console(width=width(160)).print(table)
