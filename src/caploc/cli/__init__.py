"""The command line: arguments to a study, run it, print the result. No logic of its own.

What needs PyTorch is imported inside the commands, so that `--help` and mistakes answer at once.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Annotated

import typer

from caploc import console
from caploc.cli import (
    comparing,
    demo,
    exporting,
    facts,
    locating,
    looking,
    measuring,
    models,
    neurons,
    paper,
    playing,
    studies,
)
from caploc.cli.manual import Commands, Manual
from caploc.cli.obeying import obey
from caploc.launching import launched

os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval and datasets draw bars of their own
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when it is first imported
# GNU OpenMP's threads spin between two small matrices, and on a shared machine spin the others'
# time away: twice the rows a second beside another program, read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    name="caploc",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = {
    "Begin": (demo.demo, models.fetch, models.models, looking.tasks, looking.doctor),
    "Find": (locating.locate, studies.run, studies.plan),
    "Ask more": (
        measuring.evaluate,
        measuring.curve,
        measuring.interactions,
        measuring.universal,
    ),
    "Look": (looking.report, comparing.compare, looking.rows, playing.ui),
    "Hand on": (exporting.export,),
    "Reproduce": (paper.reproduce,),
}


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

    `caploc demo` needs nothing else and shows the whole job; `caploc COMMAND --help` is the manual
    page of a command.
    """


for heading, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=Manual, rich_help_panel=heading)(command)
for study in (facts.fidelity, facts.reliability, facts.decouple):
    neurons.app.command()(study)
for registered in neurons.app.registered_commands:
    registered.cls = Manual
app.add_typer(neurons.app, cls=Commands, rich_help_panel="Feed-forward neurons")


def hush() -> None:
    """Keep the libraries' own remarks off the terminal."""
    warnings.filterwarnings("ignore")
    for name in ("lm_eval", "lm-eval", "transformers", "datasets", "evaluate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)


@contextmanager
def runs_command() -> Iterator[bool]:
    """Whether this process runs the command: yes, unless torchrun started it beside others."""
    if not launched():
        yield True
        return
    from caploc.sharded import is_leader as in_a_team

    with in_a_team() as leads:
        yield leads


def main() -> None:
    """Run a command, or follow the process that does."""
    hush()
    obey(lead_or_follow)


def lead_or_follow() -> None:
    """Run a command and exit, unless this process follows the one that does."""
    with runs_command() as leads:
        if leads:
            obey(partial(app, prog_name="caploc", standalone_mode=False))
