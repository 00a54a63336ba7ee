"""Options that commands share, and what they mean."""

import shlex
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from caploc import console
from caploc.cli import completion
from caploc.errors import BadOption
from caploc.naming import placed
from caploc.redaction import redacted
from caploc.sandbox import choose_profile, protection, require_isolation

if TYPE_CHECKING:
    from caploc.workbench import Allowed

Number = TypeVar("Number", int, float)

Model = Annotated[
    str,
    typer.Argument(
        help="Hugging Face id, folder, GGUF file, a name of `caploc models`, or `demo`.",
        autocompletion=completion.models,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:1, mps; spread: layers over all devices, main memory and disk; "
        "shard: among torchrun's processes.",
        autocompletion=completion.devices,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto (the checkpoint's), float32, bfloat16, float16.",
        autocompletion=completion.dtypes,
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        help="Quantize weights: 8bit, 4bit (bitsandbytes), int8, int4 (torchao).",
        autocompletion=completion.quantized,
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")]
Gguf = Annotated[
    str | None,
    typer.Option("--gguf", help="GGUF file to read, of the model's folder or repository."),
]


def warn_of_code(trusted: bool) -> bool:
    """Say loudly what `--trust-remote-code` means."""
    if trusted:
        console.warn(
            "--trust-remote-code: Python code of the model's repository, and code that a task's "
            "file names, is run with your rights and no walls around it."
        )
    return trusted


Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code from the model's repository, or named by the file of a run's task.",
        callback=warn_of_code,
    ),
]
Projections = Annotated[
    str | None,
    typer.Option(help="Output projections by hand: 'model.layers.{layer}.self_attn.o_proj'."),
]
Batch = Annotated[int | None, typer.Option(help="Most rows in a batch; found by itself if absent.")]
Workers = Annotated[
    str | None,
    typer.Option(help="Answer rows in N processes of this machine, or `ray`: on a Ray cluster."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a Ray cluster's head, or auto; RAY_ADDRESS if absent."),
]
WorkerGpus = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", help="GPUs of a worker, 1 if absent; 0.5: two share one."),
]
WorkerCpus = Annotated[
    int | None,
    typer.Option("--cpus-per-worker", help="CPU cores of a worker, which are its threads."),
]
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


def set_isolation(name: str) -> str:
    """Require this isolation of every sandbox, as the option says; the option's own value."""
    require_isolation(name)
    return name


IsolationName = Annotated[
    str,
    typer.Option(
        "--isolation",
        callback=set_isolation,
        help="With --allow-code: full, or weak for the best that this machine gives.",
    ),
]
Chat = Annotated[bool, typer.Option("--chat-template", help="Use the model's chat template.")]
Limit = Annotated[int | None, typer.Option(help="Score on the first N examples only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def check_isolation(allow_code: bool) -> None:
    """Refuse to run programs that a model writes in weak isolation, unless it was asked for.

    Raises:
        BadOption: saying what is missing, and what to do.
        RunFailed: if no program can be run at all.
    """
    if not allow_code:
        return
    if not choose_profile().full:
        console.warn(protection().statement)


def tell_of_code(tasks: list[str]) -> None:
    """Say which tasks are files that name Python code: it runs with the user's rights."""
    from caploc.tasks.taskfiles import code_in

    for task in tasks:
        if code := code_in(task):
            console.warn(
                f"{task} names Python code ({code}), which is run with your rights: use only task "
                "files that you trust."
            )


def allowed(code: bool, remote_code: bool, workers: tuple[Any, ...] | None = None) -> "Allowed":
    """What a finished run may be asked to do, which its folder alone cannot say.

    `workers` are the options of that name, as they were typed.
    """
    from caploc.workbench import Allowed
    from caploc.workers.ray_backend import Workers as Asked

    return Allowed(code, remote_code, Asked.parse(*workers) if workers else None)


def permit(code: bool, remote_code: bool, tasks: Iterable[str] = ()) -> "Allowed":
    """The same (`allowed`), once it is said what programs and these tasks' files may do."""
    check_isolation(code)
    tell_of_code([*tasks])
    return allowed(code, remote_code)


def numbers(text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Comma-separated numbers.

    Raises:
        BadOption: if one is none.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadOption(f"{text!r} is no list of numbers; write them as 100,200.") from None


def parse_families(texts: list[str], option: str = "--family") -> dict[str, str]:
    """`math=gsm8k,arithmetic` as the family of each task.

    Raises:
        BadOption: if one is not of that form.
    """
    families: dict[str, str] = {}
    for text in texts:
        name, equals, tasks = text.partition("=")
        if not (name and equals and tasks):
            raise BadOption(f"{option} takes NAME=TASK,TASK; got {text!r}.")
        families |= {task.strip(): name for task in tasks.split(",") if task.strip()}
    return families


def kinds_of(texts: list[str] | None) -> dict[str, str]:
    """The kind of each task, tasks named as the commands keep them."""
    return {placed(task): kind for task, kind in parse_families(texts or [], "--kind").items()}


def command_line() -> str:
    """The command as it was typed, without secrets."""
    return redacted(shlex.join(["caploc", *sys.argv[1:]]))
