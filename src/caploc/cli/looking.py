"""Look at runs, tasks, models and the machine."""

from pathlib import Path
from typing import Annotated

import typer

from caploc import console
from caploc.cli.options import (
    Device,
    Dtype,
    Json,
    Projections,
    Revision,
    Trust,
)


def report(folder: Annotated[Path, typer.Argument(help="A finished run's folder.")]) -> None:
    """Write report.html and the figures of a finished run again.

    Example: caploc report runs/addition
    """
    from caploc.sweep import rewrite_report

    console.say(f"Report: {rewrite_report(folder)}")


def tasks(
    text: Annotated[
        str | None, typer.Argument(help="Show names that contain this; caploc's own if absent.")
    ] = None,
) -> None:
    """List tasks and groups: caploc's own, and every one that lm-eval registers.

    Example: caploc tasks arithmetic
    """
    from caploc.tasks.catalog import own_task_names, task_names

    found = own_task_names() if text is None else [n for n in task_names() if text in n]
    for name in found:
        console.say(name)
    if not found:
        console.say(f"No task's name contains {text!r}; a path to an lm-eval YAML works too.")


def models(
    name: Annotated[
        str | None, typer.Argument(help="A model to look at; the demo if absent.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    projections: Projections = None,
    as_json: Json = False,
) -> None:
    """Load a model, prove that its heads can be knocked out, and show its grid.

    Example: caploc models meta-llama/Llama-3.2-1B-Instruct
    """
    from caploc.doctor import model_facts
    from caploc.workbench import ModelOptions

    loading = ModelOptions(name or "demo", device, dtype, revision, trust_remote_code, projections)
    facts = model_facts(loading)
    if as_json:
        console.say_json(facts)
        return
    console.show_table(["model", facts["name"]], [[k, str(v)] for k, v in facts.items()])


def doctor(
    folder: Annotated[Path | None, typer.Argument(help="A run folder to check.")] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine and installation can do, and whether a run folder is sound.

    Example: caploc doctor runs/addition
    """
    from caploc.doctor import folder_facts, machine_facts

    facts = machine_facts() if folder is None else folder_facts(folder)
    if as_json:
        console.say_json(facts)
        return
    console.show_table(["fact", "value"], [[k, str(v)] for k, v in facts.items()])
