"""Hand a finding on."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console
from caploc.cli import completion
from caploc.cli.options import (
    Device,
    Dtype,
    Gguf,
    Json,
    Projections,
    Quiet,
    Revision,
    Trust,
    command_line,
)
from caploc.naming import placed


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="A finished run's folder, or a model (with --heads).",
            autocompletion=completion.runs,
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder to write; new or empty.")],
    top: Annotated[
        int | None, typer.Option(help="The run's most needed heads, so many; all if absent.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Heads by name, such as L0H5,L1H3, instead of the run's.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--as", help="checkpoint, lora, or heads (their names alone).")
    ] = "checkpoint",
    push_to_hub: Annotated[
        str | None, typer.Option(help="Upload to this repository of the Hugging Face Hub, too.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make that repository private.")] = (
        False
    ),
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a model without the heads that a run found, an adapter, or a file of the heads.

    Examples:
        caploc export runs/addition --top 5 --to addition-cut
        caploc export demo --heads L0H5,L1H3 --to heads --as heads
        caploc export runs/addition --to adapter --as lora

    Writes:
        model.safetensors ...: the checkpoint or adapter, for stock transformers
        heads.json: the heads, for `caploc.knockout` and lm-eval
        README.md: a model card with the evidence and its limits

    See also:
        evaluate, ui
    """
    from caploc.export.export import Export
    from caploc.workbench import ModelOptions

    model = ModelOptions("", device, dtype, revision, trust_remote_code, projections, gguf=gguf)
    wanted = Export.find(
        placed(source),
        model,
        top,
        heads,
        kind=kind,
        target=to,
        repository=push_to_hub,
        private=private,
        command=command_line(),
    )
    with console.progress(quiet or as_json) as progress:
        written = wanted.write(progress)
    if as_json:
        console.say_json(written.as_dict())
        return
    for agreement in written.agreements:
        console.say(agreement.sentence())
    console.say(f"Written: {written.folder}")
    if written.address:
        console.say(f"Uploaded: {written.address}")
