"""What the terminal shows: progress, tables, errors. Text from a model is never taken as markup."""

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

from caploc.errors import HungUp, Stopped, Terminated
from caploc.process import importing, redacted
from caploc.progress import AT_MOST, Silent, Tally, expect, format_clock, lead, tell

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
ENDING = tuple(each for each in (signal.SIGINT, signal.SIGTERM, HANGUP) if each is not None)
LINE_SECONDS = 60.0  # between lines of progress where no bars can be drawn
READY = "getting ready"  # before the first stage: tasks are read, a model is loaded and proved
KEPT = "What was measured is kept; the same command continues."


def stderr_console() -> Console:
    """Rich on standard error: as plain text in a notebook that has no ipywidgets to draw with."""
    return Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False)


stderr = stderr_console()


class Counts(ProgressColumn):
    """Rows done of all."""

    def render(self, task: Task) -> Text:
        tally: Tally = task.fields["tally"]
        counts = "" if tally.rows is None else f"{tally.done:,}/{tally.rows:,}"
        return Text(counts, style="progress.download")


class Rates(ProgressColumn):
    """Rows and tokens a second, over the rows measured now."""

    def render(self, task: Task) -> Text:
        tally: Tally = task.fields["tally"]
        if tally.seconds is None:
            return Text("")
        rows, tokens = tally.measured / tally.seconds, tally.tokens / tally.seconds
        return Text(f"{rows:,.0f} rows/s  {tokens:,.0f} tokens/s", style="cyan")


class Left(ProgressColumn):
    """The time left, and of what."""

    def render(self, task: Task) -> Text:
        of, bound = (" (of this stage)", "") if task.fields["of_stage"] else ("", AT_MOST)
        said = task.fields["tally"].tell_left(bound)
        return Text(f"{said}{of}" if said else "", style="progress.remaining")


class Display(Progress):
    """The bar, and below it the heads that lead so far, on lines that break between names."""

    leading: Sequence[str] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.leading:
            yield Text(f"  {describe_leading(self.leading)}", style="cyan")


def describe_leading(heads: Sequence[str]) -> str:
    """Say which heads lead so far."""
    return f"first in the scan so far: {' '.join(heads)}"


class Bar:
    """Progress on standard error: the stage's name, a bar, rows, rates and the time left.

    They are those of the whole once it is known how many rows that takes; until then, and for
    commands that do not know, those of the stage.
    """

    def __init__(self, progress: Display) -> None:
        self.progress, self.tally, self.of_stage = progress, Tally(), True
        self.bar = progress.add_task(READY, total=None, tally=self.tally, of_stage=True)

    def expect(self, rows: int) -> None:
        """Count the whole from here on."""
        if self.of_stage:
            self.tally, self.of_stage = Tally(), False
        self.tally.rows = self.tally.done + rows
        self.draw()

    def tell(self, text: str) -> None:
        self.progress.console.print(escape(printable(text)), highlight=False)

    def lead(self, heads: Sequence[str]) -> None:
        self.progress.leading = heads

    def start(self, what: str, rows: int) -> None:
        if self.of_stage:
            self.tally = Tally(rows)
        elif not self.tally.done:
            self.tally.began = time.monotonic()  # a model was loaded meanwhile
        self.draw(description=escape(printable(without_folders(what))))

    def advance(self, rows: int, tokens: float) -> None:
        self.tally.add(rows, tokens)
        self.draw()

    def draw(self, **more: Any) -> None:
        more |= {"total": self.tally.rows, "completed": self.tally.done}
        self.progress.update(self.bar, tally=self.tally, of_stage=self.of_stage, **more)


class Lines:
    """Progress in a file, such as a job's log: a line a minute while rows come."""

    def __init__(self) -> None:
        self.began = self.written = time.monotonic()
        self.what, self.stage, self.whole = READY, Tally(), Tally()
        self.leading: Sequence[str] = ()

    def expect(self, rows: int) -> None:
        self.whole.rows = self.whole.done + rows

    def tell(self, text: str) -> None:
        stderr.print(escape(f"caploc: {printable(text)}"), soft_wrap=True, highlight=False)

    def lead(self, heads: Sequence[str]) -> None:
        self.leading = heads

    def start(self, what: str, rows: int) -> None:
        self.what, self.stage = printable(without_folders(what)), Tally(rows)
        if not self.whole.done:
            self.whole.began = self.stage.began

    def advance(self, rows: int, tokens: float) -> None:
        self.stage.add(rows, tokens)
        self.whole.add(rows, tokens)
        if time.monotonic() - self.written >= LINE_SECONDS:
            self.write()

    def line(self) -> str:
        """How far the stage is, how fast it goes and how long it will take."""
        stage, whole = self.stage, self.whole
        parts = [f"caploc: {format_clock(time.monotonic() - self.began)} {self.what}"]
        if stage.rows:
            parts.append(f"{stage.done:,} of {stage.rows:,}")
        if stage.seconds is not None:
            parts.append(f"{stage.measured / stage.seconds:,.1f} rows/s")
        if whole.rows is not None:
            parts.append(f"{whole.done:,} of at most {whole.rows:,} rows in all")
            parts.append(whole.tell_left(AT_MOST))
        elif stage.done < (stage.rows or 0) and (said := stage.tell_left()):
            parts.append(f"{said} (of this stage)")
        if self.leading:
            parts.append(describe_leading(self.leading))
        return ", ".join(filter(None, parts))

    def write(self) -> None:
        self.written = time.monotonic()
        stderr.print(escape(self.line()), soft_wrap=True, highlight=False)

    def end(self) -> None:
        """Write the last line: what was done."""
        measured = self.whole.measured
        self.what = f"done, {measured:,} rows measured" if measured else "done"
        self.stage, self.whole, self.leading = Tally(), Tally(), ()
        self.write()


def say_begun(quiet: bool) -> None:
    """Say at once that a command has begun: the libraries that it imports may take many seconds."""
    if not quiet and not stderr.is_jupyter:
        stderr.print(f"caploc: {READY} ...", highlight=False)


Shown = Bar | Lines | Silent


def without_folders(what: str) -> str:
    """Name a stage by the last part of its task's file."""
    return re.sub(r"(?<!\S)/(?:[^/:]*/)+", "", what)


class Interruptible:
    """Progress that stops on Ctrl-C, SIGTERM or SIGHUP, even if the exception got lost.

    Python throws away what is raised inside a finalizer or a weak reference's callback, and a
    signal may come just then; every batch asks again.
    """

    def __init__(self, shown: Shown) -> None:
        self.shown, self.asked, self.signal = shown, False, signal.SIGINT

    def press(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; while a module is imported, the next batch raises in its place."""
        self.asked, self.signal = True, signal.Signals(number)
        if not importing(frame):
            raise KeyboardInterrupt

    def stopped(self, kept: str = KEPT) -> Stopped:
        """Build what to raise when it is time to stop; `kept` says what is not lost."""
        if self.signal == signal.SIGTERM:
            return Terminated(f"Terminated. {kept}")
        if self.signal == HANGUP:
            return HungUp(f"The terminal is gone. {kept}")
        return Stopped(f"Stopped. {kept}")

    def start(self, what: str, rows: int) -> None:
        self.shown.start(what, rows)

    def expect(self, rows: int) -> None:
        expect(self.shown, rows)

    def tell(self, text: str) -> None:
        tell(self.shown, text)

    def lead(self, heads: Sequence[str]) -> None:
        lead(self.shown, heads)

    def advance(self, rows: int, tokens: float) -> None:
        """Count rows, unless it is time to stop."""
        if self.asked:
            raise KeyboardInterrupt
        self.shown.advance(rows, tokens)


@contextmanager
def interruptible(shown: Shown) -> Iterator[Interruptible]:
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

    `kept` tells whoever stops it what is not lost. Raises Stopped on Ctrl-C, which typer would
    otherwise turn into a silent exit, on SIGTERM, and on SIGHUP.
    """
    with progress_bars(quiet) as shown:
        stopping = Interruptible(shown)
        try:
            with interruptible(shown) as stopping:
                yield stopping
        except KeyboardInterrupt:
            raise stopping.stopped(kept) from None


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Shown]:
    """Display progress while the block runs."""
    if quiet:
        yield Silent()
        return
    if not (stderr.is_terminal or stderr.is_jupyter):
        lines = Lines()
        yield lines
        lines.end()
        return
    left = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    right = [Counts(), Rates(), Left()]
    with Display(*left, *right, console=stderr) as display:
        yield Bar(display)


def is_interactive() -> bool:
    """Tell whether somebody sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def say(text: str) -> None:
    """Print a line of the result on standard output."""
    sys.stdout.write(printable(text) + "\n")


def say_json(content: Any) -> None:
    """Print the result as JSON on standard output."""
    say(json.dumps(content, indent=1))


def complain(text: str) -> None:
    """Print an error on standard error."""
    tell_apart("red", redacted(printable(text)))


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
