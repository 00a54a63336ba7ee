"""The papers' tables and figures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from caploc import console
from caploc.cli import completion
from caploc.cli.options import CodeGroup, Limit, Out, OutputGroup, command_line, takes_groups
from caploc.errors import BadOption
from caploc.naming import placed

CNL = "cnl"


@takes_groups
def reproduce(
    items: Annotated[
        list[str],
        typer.Argument(
            help="table1 to table9, fig1 to fig4, sharing, scale, failures, choice, rules; "
            "all; or cnl."
        ),
    ],
    preset: Annotated[
        str,
        typer.Option(
            help="demo, real, paper, or the path of a TOML file such as theirs.",
            autocompletion=completion.presets,
        ),
    ] = "demo",
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this model of the preset, or LABEL=NAME, or a new one; repeat. With cnl "
            "one, in place of the preset's."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this benchmark of the preset; repeat.")
    ] = None,
    limit: Limit = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what it takes, and stop.")] = False,
    out: Out = None,
    *,
    code: CodeGroup,
    output: OutputGroup,
) -> None:
    """Fill the tables and figures of the heads paper, or with `cnl` those of the neurons paper.

    Examples:
        caploc reproduce all --preset demo --out runs/paper
        caploc reproduce table2 --preset paper --plan
        caploc reproduce all --preset real --model SmolLM2 --plan
        caploc reproduce cnl --preset real --model gemma3-270m
        caploc reproduce cnl --preset paper --plan

    Writes:
        index.md: what there is
        table1.md, .csv, .tex: each table; figures as PNG and PDF

    See also:
        run, neurons locate
    """
    if CNL in items:
        given = {"--only": only, "--limit": limit, "--allow-code": code.allow_code or None}
        check_alone(items, given)
        if plan:
            plan_neurons(preset, output)
        else:
            reproduce_neurons(preset, model or [], out, output)
        return
    from caploc import tables
    from caploc.reproduce import plan_exhibits, read_preset
    from caploc.reproduce import reproduce as run

    chosen = read_preset(preset).narrowed(only or [], model or [], limit)
    expected = [one.as_dict() for one in plan_exhibits(chosen, items)]
    if plan and output.as_json:
        console.say_json(expected)
        return
    if not output.as_json:
        console.show_table(*tables.plan_table(expected))
    if plan:
        return
    code.check()
    folder = out or Path("runs") / f"reproduce-{chosen.name}"
    with output.progress() as progress:
        exhibits = run(
            chosen, items, folder, progress, command=command_line(), allow_code=code.allow_code
        )
    print_tables(exhibits, len(exhibits), folder, output)


def print_tables(exhibits: list[Any], shown: int, folder: Path, output: OutputGroup) -> None:
    """Print the first tables, and where all are written; or all of them as JSON."""
    if output.as_json:
        console.say_json([exhibit.as_dict() for exhibit in exhibits])
        return
    for exhibit in exhibits[:shown]:
        rows = [list(map(str, row)) for row in exhibit.rows]
        console.show_table(list(exhibit.columns), rows, exhibit.title)
    console.say(f"Written: {folder / 'index.md'}")


def check_alone(items: list[str], given: dict[str, Any]) -> None:
    """Refuse anything asked for beside CNL, or an option of the heads paper; raises BadOption."""
    if items != [CNL]:
        raise BadOption(f"cnl is reproduced as a whole and by itself; got {' '.join(items)}.")
    if named := [option for option, value in given.items() if value is not None]:
        raise BadOption(f"{named[0]} is not for cnl, whose preset says it; copy the preset.")


def plan_neurons(preset: str, output: OutputGroup) -> None:
    """Print what every experiment of the neurons paper takes, by the shape that a preset names."""
    from caploc.reproduce.cnl_preset import read_cnl_preset
    from caploc.reproduce.neuron_plan import plan_cnl

    chosen = read_cnl_preset(preset)
    if chosen.shape is None:
        raise BadOption(
            f"Preset {preset} names no [shape] to plan for; add one, as the preset paper has it."
        )
    console.show_exhibits({}, [plan_cnl(chosen, chosen.shape)], output.as_json, None)


def reproduce_neurons(
    preset: str, models: list[str], out: Path | None, output: OutputGroup
) -> None:
    """Make every experiment of the neurons paper, on the preset's model or another.

    Raises:
        BadOption: if several models are named.
    """
    from caploc.reproduce.cnl import reproduce_cnl
    from caploc.reproduce.cnl_preset import read_cnl_preset

    if len(models) > 1:
        raise BadOption(f"cnl is reproduced on one model at a time; got {' '.join(models)}.")
    chosen, name = read_cnl_preset(preset), f"reproduce-cnl-{Path(preset).stem}"
    if models:
        chosen = chosen.model_copy(update={"model": placed(models[0])})
        name = f"{name}-{Path(models[0]).name}"
    folder = out or Path("runs") / name
    with output.progress() as progress:
        exhibits = reproduce_cnl(chosen, folder, progress, command=command_line())
    print_tables(exhibits, 2, folder, output)  # checklist, verdicts; the others are in the index
