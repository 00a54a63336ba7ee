"""Options that commands share, and what they mean."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option(help="SPLIT=FILE: read a split from a file (jsonl, csv, parquet)."),
]
Fewshot = Annotated[
    int | None, typer.Option(help="Examples in the prompt; the task's own if absent.")
]
Chat = Annotated[bool, typer.Option("--chat-template", help="Use the model's chat template.")]
Limit = Annotated[int | None, typer.Option(help="Score on the first N examples only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def default_others(model: str, task: str) -> list[str]:
    """The demo's general benchmark goes with the demo's tasks; others are named by the user."""
    general = "demo/sentences"
    return [general] if task.startswith("demo/") and task != general else []


def placed(name: str) -> str:
    """A model or task given as a path, as an absolute one: a run is continued from anywhere."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_dir() or path.is_file() else name


def slug(*parts: str) -> str:
    """A folder name from what a run is about."""
    text = "-".join(parts)
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-")[:80]


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["caploc", *sys.argv[1:]])
