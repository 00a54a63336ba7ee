"""Commands on single facts and single items (CNL)."""

from pathlib import Path
from typing import Annotated, Any

import typer

from caploc.cli.neurons import run_and_show
from caploc.cli.options import Device, Dtype, Json, Model, Quiet
from caploc.naming import default_folder, placed

Facts = Annotated[
    str, typer.Option(help="A file of facts, or demo/quiz, demo/statement of the demo model.")
]
Form = Annotated[str, typer.Option(help="lines (our JSON lines), counterfact, zsre.")]
Rewrites = Annotated[
    str | None, typer.Option(help="JSON lines of further wordings: name and texts.")
]
Ways = Annotated[
    list[str] | None,
    typer.Option("--method", help="neurons, tracing, circuits; all if absent; repeat."),
]
Count = Annotated[int | None, typer.Option(help="Facts that the model knows, at most.")]
CircuitShare = Annotated[float, typer.Option("--share", help="Share of edges a circuit keeps.")]


def fact_study(model: str, device: str, dtype: str, facts: str, **asked: Any) -> Any:
    """Make the study of facts that these options ask for."""
    from caploc.neurons.fact_study import METHODS, FactStudy
    from caploc.workbench import ModelOptions

    methods = tuple(asked.pop("method") or METHODS)
    loading = ModelOptions(placed(model), device, dtype)
    return FactStudy(loading, placed(facts), methods=methods, **asked)


def fidelity(
    model: Model,
    facts: Facts,
    form: Form = "lines",
    rewrites: Rewrites = None,
    method: Ways = None,
    count: Count = 30,
    share: CircuitShare = 0.05,
    steps: Annotated[int, typer.Option(help="Steps of edge attribution.")] = 20,
    seed: Annotated[int, typer.Option(help="Draws other facts and noise.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Is a single fact located alike however it is worded? Three families of methods.

    Examples:
        caploc neurons fidelity demo --facts demo/quiz --count 10
        caploc neurons fidelity demo --facts demo/statement --method neurons --out runs/facts

    Writes:
        fidelity.json: how alike wordings of a fact are located, by method
        fidelity/report.html: the page

    See also:
        neurons reliability, neurons decouple
    """
    from caploc.neurons.fact_study import measure_fidelity

    folder = out or default_folder("facts", model, facts)
    study = fact_study(
        model, device, dtype, facts, form=form, rewrites=rewrites, method=method, count=count,
        share=share, steps=steps, seed=seed,
    )  # fmt: skip
    page = folder / "fidelity"
    run_and_show(measure_fidelity, study, folder, page=page, quiet=quiet, as_json=as_json)


def reliability(
    model: Model,
    facts: Facts,
    form: Form = "lines",
    rewrites: Rewrites = None,
    method: Ways = None,
    count: Count = 30,
    draws: Annotated[int, typer.Option(help="Draws of random sets, 5 or more.")] = 20,
    share: CircuitShare = 0.05,
    steps: Annotated[int, typer.Option(help="Steps of edge attribution.")] = 20,
    texts: Annotated[
        str | None, typer.Option(help="Texts, one a line, for the covariance of an edit.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws random sets and noise.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Does changing what was located, and nothing else, change the fact? Three families.

    Examples:
        caploc neurons reliability demo --facts demo/statement --count 10
        caploc neurons reliability demo --facts demo/quiz --method tracing --draws 50

    Writes:
        reliability.json: what changing the located does, by method
        reliability/report.html: the page

    See also:
        neurons fidelity, neurons decouple
    """
    from caploc.neurons.fact_study import measure_reliability

    folder = out or default_folder("facts", model, facts)
    study = fact_study(
        model, device, dtype, facts, form=form, rewrites=rewrites, method=method, count=count,
        draws=draws, share=share, steps=steps, texts=texts, seed=seed,
    )  # fmt: skip
    page = folder / "reliability"
    run_and_show(measure_reliability, study, folder, page=page, quiet=quiet, as_json=as_json)


def decouple(
    model: Model,
    contrasts: Annotated[
        str,
        typer.Option(
            help="arithmetic, sentiment; of the demo model demo/sums, demo/capitals, demo/elements."
        ),
    ] = "arithmetic",
    items: Annotated[int, typer.Option(help="Base items, each with four partners.")] = 1000,
    method: Annotated[
        list[str] | None,
        typer.Option(help="gradient (if absent), integrated, activation ...; repeat."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Points of an integral (S).")] = 19,
    sigma: Annotated[float, typer.Option(help="Standard deviations above an item's mean.")] = 6.0,
    share: Annotated[
        float | None, typer.Option(help="Choose this share of all neurons instead.")
    ] = None,
    within: Annotated[
        int | None, typer.Option(help="Only items whose prompts differ by so many tokens.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the items.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out: Annotated[Path | None, typer.Option(help="Run folder; resumes what lies there.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Do the neurons of single items follow the capability, the content, or the item?

    Examples:
        caploc neurons decouple demo --contrasts demo/sums --items 100
        caploc neurons decouple demo --contrasts demo/capitals --method gradient --method activation

    Writes:
        decoupling.json: similarities of items' neurons, by what the items share
        report.html: the page

    See also:
        neurons fidelity, neurons locate
    """
    from caploc.neurons.attribution import Attribution
    from caploc.neurons.decoupling import DecouplingStudy, measure_decoupling
    from caploc.neurons.finding import Rule
    from caploc.workbench import ModelOptions

    ways = tuple(Attribution(each, steps=steps) for each in method or ["gradient"])
    loading, rule = ModelOptions(placed(model), device, dtype), Rule(sigma, share)
    study = DecouplingStudy(loading, contrasts, items, ways, rule, within, seed)
    folder = out or default_folder("decoupling", model, contrasts)
    run_and_show(measure_decoupling, study, folder, page=folder, quiet=quiet, as_json=as_json)
