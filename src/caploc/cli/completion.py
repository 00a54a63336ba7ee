"""What the shell offers at the Tab key: tasks, methods, models, run folders. Imports no torch.

Names are read where they are defined: tasks from the YAML files of caploc and lm-eval, models from
the cache of the Hugging Face Hub, runs from the folders below the one at hand. lm-eval has some
14,000 files of tasks, so what is read there is kept in `$XDG_CACHE_HOME/caploc`.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from caploc.errors import unknown
from caploc.naming import PRETRAINED, harness_tasks, own_tasks

PACKAGE = Path(__file__).parents[1]
METHODS = ("adaptive", "css", "csb", "css-search", "csb-search", "one-shot", "greedy")
MODES = ("zero", "mean", "resample", "patch")
EXPORTS = ("checkpoint", "heads")
GOALS = ("heads", "set", "specific")
OPENINGS = ("auto", "likelihood", "masks")
ESTIMATORS = ("lasso", "lasso-cv", "logistic", "means", "paired", "spike-slab")
OUTCOMES, ENGINES = ("metric", "logprob"), ("auto", "packed", "paged", "vllm")
SCORES = ("gradient", "integrated", "joint", "activation", "logit")  # of neurons
TARGETS = ("logprob", "logprob-sum", "probability")
READ_AT, RULES = ("all", "answer", "last"), ("midpoint", "left", "right")
Completer = Callable[[str], list[str]]
Names = tuple[str, ...]
MARKS = ("run.json", "studies.json")  # what a run, or a folder of runs, holds


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin so, in order."""
    return sorted(name for name in set(names) if name.startswith(incomplete))


def offer(*names: str) -> Completer:
    """Return what completes one of these names."""

    def complete(incomplete: str) -> list[str]:
        return starting(names, incomplete)

    return complete


def option(help: str, *names: str, offered: Completer | None = None, **more: Any) -> Any:
    """Return an option, with the values that the shell offers; `more` is as typer has it."""
    return typer.Option(*names, help=help, autocompletion=offered, **more)


def choice(help: str, names: Names, *spelt: str, **more: Any) -> Any:
    """Return an option that takes one of these names, and refuses others before anything loads."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            raise unknown(names, value, parameter.opts[0])
        return value

    return option(help, *spelt, offered=offer(*names), callback=check, **more)


def argument(help: str, offered: Completer | None = None, **more: Any) -> Any:
    """Return an argument, with the values that the shell offers; `more` is as typer has it."""
    return typer.Argument(help=help, autocompletion=offered, **more)


methods = offer(*METHODS)
isolations = offer("full", "weak")
trackers = offer("mlflow", "trackio", "wandb")
devices = offer("auto", "cpu", "cuda", "mps", "spread", "shard")
dtypes = offer("auto", "float32", "bfloat16", "float16")
quantized = offer("8bit", "4bit", "int8", "int4")
scores = offer(*SCORES)
locators = offer(*SCORES, "neurons", "tracing", "circuits")  # of single items
arms = offer(
    "none", "located", "random-uniform", "random-layer-matched", "bottom", "complement", "full",
    "lora",
)  # fmt: skip
presets = offer("demo", "real", "paper")
fetched = offer(*PRETRAINED, "all")  # models that `caploc fetch` gets


def tasks(incomplete: str) -> list[str]:
    """Tasks, groups and tags, caploc's and lm-eval's; nothing for a path, which the shell knows."""
    if incomplete.startswith((".", "/", "~")):
        return []
    own = starting(own_tasks(), incomplete)
    if incomplete.startswith("demo") or not incomplete:
        return own
    return own + starting(harness_tasks(), incomplete)


def listed_tasks(incomplete: str) -> list[str]:
    """The last of several tasks with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in tasks(last)]


def models(incomplete: str) -> list[str]:
    """The model inside the package, those with short names, and those in the Hub's cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    names = ["demo", *PRETRAINED]
    with suppress(OSError):
        folders = [folder.name.removeprefix("models--") for folder in hub.glob("models--*--*")]
        names += [name.replace("--", "/", 1) for name in folders]
    return starting(names, incomplete)


def runs(incomplete: str) -> list[str]:
    """Folders of runs, and on the way to them folders that hold any."""
    above = incomplete.rpartition("/")[0]
    start = Path(above or ("/" if incomplete.startswith("/") else ".")).expanduser()
    shown = f"{above}/" if "/" in incomplete else ""
    found = []
    with suppress(OSError):
        for folder in start.iterdir():
            if folder.is_dir() and not folder.name.startswith("."):
                found += [f"{shown}{folder.name}"] if is_run(folder) else []
                with suppress(OSError):
                    below = any(each.is_dir() and is_run(each) for each in folder.iterdir())
                    found += [f"{shown}{folder.name}/"] if below else []
    return starting(found, incomplete)


def is_run(folder: Path) -> bool:
    """Tell whether a command left its mark in the folder."""
    return any((folder / mark).is_file() for mark in MARKS)
