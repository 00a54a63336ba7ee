"""The command line: arguments to a study, run it, print the result. No logic of its own.

What needs PyTorch is imported inside the commands, and a command's module when its name is typed,
so that `--help`, the Tab key and mistakes answer at once.
"""

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module, metadata
from inspect import cleandoc
from io import TextIOWrapper
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from caploc import console
from caploc.errors import CaplocError, Stopped, UserError

os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval and datasets draw bars of their own
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for library in ("TRANSFORMERS", "HF_HUB"):  # read when it is first imported
    os.environ.setdefault(f"{library}_VERBOSITY", "error")
# GNU OpenMP's threads spin between two small matrices, and on a shared machine spin the others'
# time away: twice the rows a second beside another program, read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# What every mistake in typing a command is, among typer's exceptions.
MISTYPED: type[Exception] = typer.BadParameter.__mro__[1]
UNFORESEEN = "caploc failed in a way that it should have foreseen"
# Under which heading of the help a command stands, and where it is: module and function.
COMMANDS = {
    "Commands": (
        "studies.demo",
        "locating.locate",
        "measuring.evaluate",
        "looking.view",
        "chat.chat",
        "models.export",
        "looking.tasks",
    ),
    "More": (
        "models.models",
        "studies.run",
        "measuring.curve",
        "measuring.interactions",
        "measuring.universal",
        "looking.rows",
        "looking.doctor",
        "neurons.neurons",
    ),
}
ON_FIRST_PAGE = (None, "Options", "Output")  # headings of options, if there are many
MANY = 14


def unwrap(docstring: str) -> str:
    """Make one line of each paragraph of prose, for terminals of any width."""
    paragraphs = cleandoc(docstring).split("\n\n")
    return "\n\n".join(p if "\n  " in p else " ".join(p.split()) for p in paragraphs)


class Announced(TyperCommand):
    """A command that says at once that it has begun, if it shows progress at all.

    Of many options its help shows the basic ones, and `--help-all` all.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show every option where that is asked."""
        if "--help-all" not in args:
            return super().parse_args(ctx, args)
        hidden = [each for each in self.params if getattr(each, "hidden", False)]
        for each in hidden:
            each.hidden = False  # type: ignore[attr-defined]
        try:
            ctx.get_help()  # rich prints it
        finally:
            for each in hidden:
                each.hidden = True  # type: ignore[attr-defined]
        raise typer.Exit

    def hide(self) -> None:
        """Keep for `--help-all` what is no basic option, if there are many."""
        options = [each for each in self.params if each.param_type_name == "option"]
        rest = [each for each in options if each.rich_help_panel not in ON_FIRST_PAGE]  # type: ignore[attr-defined]
        if len(options) > MANY and rest:
            for each in rest:
                each.hidden = True  # type: ignore[attr-defined]
            self.epilog = f"{len(rest)} more options, for whoever needs them: --help-all"

    def invoke(self, ctx: Any) -> Any:
        said = ctx.params.get
        console.say_begun(said("quiet", True) or said("json") or said("as_json"))
        return super().invoke(ctx)


@cache
def build(place: str, heading: str) -> Any:
    """Make what typer runs of a command, or of the group of commands, at a place of `COMMANDS`."""
    module, name = place.split(".")
    found = getattr(import_module(f"caploc.cli.{module}"), name)
    if isinstance(found, typer.Typer):
        group = found
    else:
        group = typer.Typer(add_completion=False, rich_markup_mode="rich")
        group.command()(found)
    for each in group.registered_commands:
        each.cls = Announced
        each.help = unwrap(each.callback.__doc__ or "")
    built: Any = typer.main.get_command(group)
    for command in getattr(built, "commands", {"": built}).values():
        command.hide()
    built.rich_help_panel = heading
    return built


class Commands(Mapping[str, Any]):
    """All commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self.places = {
            place.rpartition(".")[2]: (place, heading)
            for heading, places in COMMANDS.items()
            for place in places
        }

    def __getitem__(self, name: str) -> Any:
        return build(*self.places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class Root(TyperGroup):
    """`caploc` itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Commands()  # type: ignore[assignment]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, without options for completion, which are typed once."""
        for each in self.params:
            each.hidden = "completion" in str(each.name)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """List names; typer's own would ask for every command too."""
        return list(self.commands)


app = typer.Typer(
    name="caploc",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def show_version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        console.say(f"caploc {metadata.version('caploc')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=show_version
        ),
    ] = False,
) -> None:
    """Find the few attention heads that a capability of a language model depends on.

    `caploc demo` shows the whole job.
    """


def hush() -> None:
    """Keep the libraries' own remarks off the terminal."""
    warnings.filterwarnings("ignore")
    for name in ("lm_eval", "lm-eval", "transformers", "datasets", "evaluate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)


def main() -> None:
    """Run a command and exit."""
    hush()
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no sign for a minus gets a `?`
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    exit_after(partial(app, prog_name="caploc", standalone_mode=False))


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
