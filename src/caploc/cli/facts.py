"""Commands on single facts and single items (CNL)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from caploc.cli import completion
from caploc.cli.neurons import Points, Seed, Share, Sigma, run_and_show
from caploc.cli.neurons import app as neurons
from caploc.cli.options import Model, ModelGroup, Out, OutputGroup, takes_groups
from caploc.naming import default_folder, placed

Facts = Annotated[
    str, typer.Option(help="A file of facts, or demo/quiz, demo/statement of the demo model.")
]


@dataclass(frozen=True)
class FactGroup:
    """Which facts are located, and how."""

    panel: ClassVar = "Facts"
    form: Annotated[str, typer.Option(help="lines (our JSON lines), counterfact, zsre.")] = "lines"
    rewrites: Annotated[
        str | None, typer.Option(help="JSON lines of further wordings: name and texts.")
    ] = None
    method: Annotated[
        list[str] | None, typer.Option(help="neurons, tracing, circuits; all if absent; repeat.")
    ] = None
    count: Annotated[int | None, typer.Option(help="Facts that the model knows, at most.")] = 30
    share: Annotated[float, typer.Option(help="Share of edges a circuit keeps.")] = 0.05
    steps: Annotated[int, typer.Option(help="Steps of edge attribution.")] = 20
    neuron_share: Annotated[
        float, typer.Option(help="Share of the largest score that a knowledge neuron has.")
    ] = 0.2
    neuron_steps: Annotated[int, typer.Option(help="Points of a knowledge neuron's integral.")] = 20
    neuron_rule: Annotated[
        str,
        typer.Option(
            help="Where these points lie: midpoint, left (the paper's), right.",
            autocompletion=completion.rules,
        ),
    ] = "midpoint"

    def study(self, loading: ModelGroup, model: str, facts: str, **more: Any) -> Any:
        """Make the study of facts that these options ask for."""
        from caploc.neurons.fact_study import METHODS, FactStudy

        asked = vars(self) | more
        methods = tuple(asked.pop("method") or METHODS)
        return FactStudy(loading.of(model), placed(facts), methods=methods, **asked)


@neurons.command()
@takes_groups
def fidelity(
    model: Model,
    facts: Facts,
    seed: Seed = 0,
    out: Out = None,
    *,
    locating: FactGroup,
    loading: ModelGroup,
    output: OutputGroup,
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
    study = locating.study(loading, model, facts, seed=seed)
    run_and_show(measure_fidelity, study, folder, page=folder / "fidelity", output=output)


@neurons.command()
@takes_groups
def reliability(
    model: Model,
    facts: Facts,
    draws: Annotated[int, typer.Option(help="Draws of random sets, 5 or more.")] = 20,
    texts: Annotated[
        str | None, typer.Option(help="Texts, one a line, for the covariance of an edit.")
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    *,
    locating: FactGroup,
    loading: ModelGroup,
    output: OutputGroup,
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
    study = locating.study(loading, model, facts, draws=draws, texts=texts, seed=seed)
    run_and_show(measure_reliability, study, folder, page=folder / "reliability", output=output)


@neurons.command()
@takes_groups
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
        typer.Option(
            help="gradient (if absent), integrated, joint, activation, logit; of single facts "
            "neurons, tracing, circuits; repeat.",
            autocompletion=completion.locators,
        ),
    ] = None,
    steps: Points = 19,
    sigma: Sigma = 6.0,
    share: Share = None,
    seed: Seed = 0,
    out: Out = None,
    *,
    loading: ModelGroup,
    output: OutputGroup,
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
    from caploc.neurons.decoupling import DecouplingStudy, measure_decoupling
    from caploc.stats.threshold import Rule

    ways, rule = tuple(method or ["gradient"]), Rule(sigma, share)
    study = DecouplingStudy(loading.of(model), contrasts, items, ways, steps, rule, seed)
    folder = out or default_folder("decoupling", model, contrasts)
    run_and_show(measure_decoupling, study, folder, page=folder, output=output)
