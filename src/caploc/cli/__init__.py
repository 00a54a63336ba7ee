"""The command line: arguments to a study, run it, print the result. No logic of its own.

What needs PyTorch is imported inside the commands, so that `--help` and mistakes answer at once.
"""

import logging
import os
import sys
import warnings

import typer

from caploc import console
from caploc.cli import facts, locating, looking, measuring, neurons, paper
from caploc.errors import CaplocError, Stopped, UserError

os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval and datasets draw bars of their own
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when it is first imported
# GNU OpenMP's threads spin between two small matrices, and on a shared machine spin the others'
# time away: twice the rows a second beside another program, read when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    name="caploc",
    help="Find the few attention heads that a capability of a language model depends on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    locating.locate,
    measuring.evaluate,
    measuring.curve,
    measuring.interactions,
    measuring.universal,
    paper.reproduce,
    looking.report,
    looking.tasks,
    looking.models,
    looking.doctor,
):
    app.command()(command)
for study in (facts.fidelity, facts.reliability, facts.decouple, facts.together):
    neurons.app.command()(study)
app.add_typer(neurons.app)


def hush() -> None:
    """Keep the libraries' own remarks off the terminal."""
    warnings.filterwarnings("ignore")
    for name in ("lm_eval", "lm-eval", "transformers", "datasets", "evaluate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)


def main() -> None:
    """Run a command; turn errors into a sentence and an exit code."""
    hush()
    try:
        app()
    except UserError as error:
        console.complain(str(error))
        sys.exit(2)
    except Stopped as error:
        console.complain(str(error))
        sys.exit(130)
    except CaplocError as error:
        console.complain(str(error))
        sys.exit(1)
    except OSError as error:  # a full disk while the report or a figure is written, say
        console.complain(
            f"A file could not be used ({error}); rows that were measured are kept. Free disk "
            "space or check the rights, then run the same command again."
        )
        sys.exit(1)
