"""Options that commands share, and what they mean."""

import shlex
import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from caploc import console
from caploc.errors import BadOption
from caploc.sandbox import protection

Number = TypeVar("Number", int, float)

Model = Annotated[str, typer.Argument(help="Hugging Face id, local folder, or `demo`.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16, float16.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the model's repo.")]
Projections = Annotated[
    str | None,
    typer.Option(help="Output projections by hand: 'model.layers.{layer}.self_attn.o_proj'."),
]
Batch = Annotated[int | None, typer.Option(help="Most rows in a batch; found by itself if absent.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="SPLIT=FILE: read a split from a file (jsonl, csv, parquet); words=FILE: swear words."
    ),
]
Fewshot = Annotated[
    int | None, typer.Option(help="Examples in the prompt; the task's own if absent.")
]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Run code that the model writes, in a sandbox."),
]
Chat = Annotated[bool, typer.Option("--chat-template", help="Use the model's chat template.")]
Limit = Annotated[int | None, typer.Option(help="Score on the first N examples only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def tell_of_walls(allow_code: bool) -> None:
    """Say what stands around programs that a model writes, where that is less than it could be."""
    if not allow_code:
        return
    found = protection()
    if found.missing:
        console.warn(found.statement)


def numbers(text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Comma-separated numbers.

    Raises:
        BadOption: if one is none.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadOption(f"{text!r} is no list of numbers; write them as 100,200.") from None


def parse_families(texts: list[str]) -> dict[str, str]:
    """`math=gsm8k,arithmetic` as the family of each task.

    Raises:
        BadOption: if one is not of that form.
    """
    families: dict[str, str] = {}
    for text in texts:
        name, equals, tasks = text.partition("=")
        if not (name and equals and tasks):
            raise BadOption(f"--family takes NAME=TASK,TASK; got {text!r}.")
        families |= {task.strip(): name for task in tasks.split(",") if task.strip()}
    return families


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["caploc", *sys.argv[1:]])
