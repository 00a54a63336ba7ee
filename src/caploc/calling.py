"""What a program that calls caploc is told: arguments in place of options, no bars of libraries."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any

from caploc.errors import UserError

# Options whose argument has another name, and those that are fields of what an argument takes.
ARGUMENTS = {"twin": "twins", "amount": "amounts", "family": "families"}
FIELDS = {
    "TaskOptions": ("outcome", "metric", "fewshot", "chat-template", "data", "allow-code"),
    "ModelOptions": (
        "device", "dtype", "revision", "gguf", "trust-remote-code", "projections", "quantize",
        "batch-size", "workers",
    ),
    "Mode": ("corrupted", "positions"),
}  # fmt: skip
HOLDERS = {option: kind for kind, options in FIELDS.items() for option in options}
WORDS = "heads|set|specific|zero|mean|resample|patch|logprob|auto|packed|paged|vllm|masks|cpu|cuda"
OPTION = re.compile(
    rf"`[^`]*`|(?<![\w-])--([a-z][a-z-]*)(?: (\d[\d,]*(?:\.\d+)?|\.\d+|(?:{WORDS})(?![\w-])))?"
)


def as_arguments(text: str) -> str:
    """Name arguments of `caploc.locate` where a sentence names options of commands.

    What stands in backticks is a command and stays one.
    """

    def put(match: re.Match[str]) -> str:
        option, value = match[1], match[2]
        if option is None:
            return match[0]
        name = ARGUMENTS.get(option, option.replace("-", "_"))
        given = f"{name}={value if value[0] in '.0123456789' else repr(value)}" if value else name
        if kind := HOLDERS.get(option):
            return f"{given} of {kind}"
        return given

    return OPTION.sub(put, text)


@cache
def for_programs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function speak to a program: mistakes name its arguments, libraries draw no bars."""

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            with without_bars():
                return function(*args, **given)
        except UserError as error:
            error.args = tuple(as_arguments(str(each)) for each in error.args)
            raise

    return call


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers and datasets, where they are loaded, from drawing bars of their own.

    Downloads from the Hub keep theirs: they may take long.
    """
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
