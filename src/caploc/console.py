"""What the terminal shows: progress, tables, errors. Text from a model is never taken as markup."""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from caploc.errors import HungUp, Stopped, Terminated
from caploc.progress import Silent
from caploc.redaction import redacted

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
ENDING = tuple(each for each in (signal.SIGINT, signal.SIGTERM, HANGUP) if each is not None)
SHOWN = 12  # bars
KEPT = "What was measured is kept; the same command continues."


def standard_error() -> Console:
    """Rich on standard error: as plain text in a notebook that has no ipywidgets to draw with."""
    return Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)


stderr = standard_error()


class Rates(ProgressColumn):
    """Rows and tokens a second, over the rows measured now."""

    def render(self, task: Task) -> Text:
        """Say how fast the current task is."""
        elapsed, rows = task.elapsed or 0.0, task.fields["measured"]
        if not rows or elapsed <= 0:
            return Text("")
        tokens = task.fields["tokens"] / elapsed
        return Text(f"{rows / elapsed:,.0f} rows/s  {tokens:,.0f} tokens/s", style="cyan")


class Bars:
    """Progress on standard error: one bar a stage, with rows, rates and the time left."""

    def __init__(self, progress: Progress) -> None:
        """Draw on a running display."""
        self.progress = progress
        self.task: TaskID | None = None

    def start(self, what: str, rows: int) -> None:
        """Begin a stage of so many rows."""
        if self.task is not None:
            self.progress.stop_task(self.task)
        self.task = self.progress.add_task(
            escape(printable(what)), total=rows, measured=0, tokens=0
        )
        for past in self.progress.tasks[:-SHOWN]:  # more than fit on a screen would hide the last
            self.progress.update(past.id, visible=False)

    def advance(self, rows: int, tokens: float) -> None:
        """Count rows; those without tokens were stored before."""
        if self.task is None:
            return
        fields = self.progress.tasks[-1].fields
        measured = fields["measured"] + (rows if tokens else 0)
        self.progress.update(
            self.task, advance=rows, measured=measured, tokens=fields["tokens"] + tokens
        )


class Interruptible:
    """Progress that stops on Ctrl-C, SIGTERM or SIGHUP, even if the exception got lost.

    Python throws away what is raised inside a finalizer or a weak reference's callback, and a
    signal may come just then; every batch asks again.
    """

    def __init__(self, shown: "Bars | Silent") -> None:
        """Pass everything on to `shown`."""
        self.shown, self.asked, self.signal = shown, False, signal.SIGINT

    def press(self, number: int, _: object) -> None:
        """The signals' handler."""
        self.asked, self.signal = True, signal.Signals(number)
        raise KeyboardInterrupt

    def stopped(self, kept: str = KEPT) -> Stopped:
        """Build what to raise when it is time to stop; `kept` says what is not lost."""
        if self.signal == signal.SIGTERM:
            return Terminated(f"Terminated. {kept}")
        if self.signal == HANGUP:
            return HungUp(f"The terminal is gone. {kept}")
        return Stopped(f"Stopped. {kept}")

    def start(self, what: str, rows: int) -> None:
        """Begin a stage of so many rows."""
        self.shown.start(what, rows)

    def advance(self, rows: int, tokens: float) -> None:
        """Count rows, unless it is time to stop."""
        if self.asked:
            raise KeyboardInterrupt
        self.shown.advance(rows, tokens)


@contextmanager
def interruptible(shown: "Bars | Silent") -> Iterator[Interruptible]:
    """Listen inside the block for signals that ask to end; only the main thread hears them.

    A SIGHUP that is ignored stays so: the command was started with `nohup`.
    """
    stopping = Interruptible(shown)
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    heard = [each for each in ENDING if each != HANGUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, stopping.press) for each in heard}
    try:
        yield stopping
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def progress(quiet: bool, kept: str = KEPT) -> Iterator[Interruptible]:
    """Show progress while the block runs, unless told to be quiet.

    `kept` tells whoever stops it what is not lost.

    Raises:
        Stopped: on Ctrl-C, which typer would otherwise turn into a silent exit, on SIGTERM, and
        on SIGHUP.
    """
    with bars(quiet) as shown:
        stopping = Interruptible(shown)
        try:
            with interruptible(shown) as stopping:
                yield stopping
        except KeyboardInterrupt:
            raise stopping.stopped(kept) from None


@contextmanager
def bars(quiet: bool) -> Iterator[Bars | Silent]:
    """The display itself."""
    if quiet:
        yield Silent()
        return
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rates(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=stderr) as display:
        yield Bars(display)


def say(text: str) -> None:
    """A line of the result, on standard output."""
    sys.stdout.write(printable(text) + "\n")


def say_json(content: Any) -> None:
    """The result as JSON, on standard output."""
    say(json.dumps(content, indent=1))


def complain(text: str) -> None:
    """An error, on standard error."""
    message = escape(redacted(printable(text)))
    stderr.print(f"[bold red]caploc:[/] {message}", soft_wrap=True, highlight=False)


def warn(text: str) -> None:
    """Something to know before a command goes on, on standard error."""
    message = escape(printable(text))
    stderr.print(f"[bold yellow]caploc:[/] {message}", soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """Text without control characters: names and data from elsewhere must not steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\u00a0" else "�" for c in text)


def show_table(headings: list[str], rows: list[list[str]], title: str = "") -> None:
    """A table on standard output; the first column is left-aligned, numbers to the right."""
    table = Table(title=escape(printable(title)) or None, title_justify="left", header_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(escape(printable(heading)), justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    width = None if sys.stdout.isatty() else 160
    Console(width=width).print(table)


def figure(value: float | None, signed: bool = False) -> str:
    """A score with three decimals, a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:+.3f}" if signed else f"{value:.3f}"


def with_error(score: dict[str, Any] | None) -> str:
    """A score and its standard error."""
    if score is None or score["score"] is None:
        return "–"
    error = "" if score["stderr"] is None else f" ± {score['stderr']:.3f}"
    return f"{score['score']:.3f}{error}"
