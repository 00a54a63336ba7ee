"""Experiments of CNL: everything, or facts located, or items decoupled; each goes on if stopped."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from caploc import console
from caploc.errors import CaplocError
from caploc.naming import default_folder, placed
from caploc.stats.threshold import Rule
from caploc.workbench import ModelOptions
from papers.cnl.contrasts import CONTRASTS, ITEMS
from papers.cnl.decoupling import DecouplingStudy, measure_decoupling
from papers.cnl.fact_study import FIDELITY, METHODS, RELIABILITY, FactStudy, measure_facts
from papers.cnl.preset import read_preset
from papers.cnl.reproduction import reproduce_cnl
from papers.exhibits import Exhibit

ALL, DECOUPLE = "all", "decouple"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m papers.cnl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    every = commands.add_parser(ALL, help="every experiment of a preset")
    every.add_argument("--preset", default="real", help="real, paper, or a TOML file like them")
    every.add_argument("--model", help="in place of the preset's")
    for question in (FIDELITY, RELIABILITY):
        facts = commands.add_parser(question, help=f"{question} of single facts, located")
        facts.add_argument("model")
        facts.add_argument("--facts", default="words/facts", help="a file, or words/facts")
        facts.add_argument("--method", dest="methods", action="append", choices=METHODS)
        facts.add_argument("--rewrites", help="JSON lines of further wordings: name and texts")
        facts.add_argument("--texts", help="texts, one a line, for the covariance of an edit")
        facts.add_argument("--count", type=int, help="facts that the model knows, at most")
        facts.add_argument("--draws", type=int, help="draws of random sets, 5 or more")
        facts.add_argument("--share", type=float, help="of the edges that a circuit keeps")
    items = commands.add_parser(DECOUPLE, help="capability, content and wording varied apart")
    items.add_argument("model")
    items.add_argument("--contrasts", default="arithmetic", choices=CONTRASTS)
    items.add_argument("--items", type=int, default=ITEMS, help="base items")
    items.add_argument("--method", dest="methods", action="append", help="of a score or a fact")
    items.add_argument("--share", type=float, help="of all neurons, instead of 6 sigma")
    for command in commands.choices.values():
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--out", type=Path, help="folder; resumes what lies there")
        command.add_argument("--quiet", action="store_true")
    return parser.parse_args(arguments)


def given(kind: type, asked: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a study that were given, but its model."""
    for name in (field.name for field in fields(kind)):
        value = getattr(asked, name, None)
        if value is not None and name != "model":
            yield name, tuple(value) if isinstance(value, list) else value


def main(arguments: Sequence[str]) -> None:
    """Run what is asked for into a folder; what was measured there is not measured again."""
    asked = parse(arguments)
    command = shlex.join(["python", "-m", "papers.cnl", *arguments])
    with console.progress(asked.quiet) as progress:
        if asked.command == ALL:
            preset, name = read_preset(asked.preset), f"cnl-{Path(asked.preset).stem}"
            if asked.model:
                preset = preset.model_copy(update={"model": placed(asked.model)})
                name = f"{name}-{Path(asked.model).name}"
            folder = asked.out or Path("runs") / name
            reproduce_cnl(preset, folder, progress, command=command)
            shown: list[Exhibit] = []
        else:
            what = asked.contrasts if asked.command == DECOUPLE else asked.facts
            folder = asked.out or default_folder(asked.command, asked.model, what)
            model = ModelOptions(placed(asked.model))
            if asked.command == DECOUPLE:
                rule = Rule(share=asked.share)
                study = DecouplingStudy(model, rule=rule, **dict(given(DecouplingStudy, asked)))
                _, shown = measure_decoupling(study, folder, progress, command=command)
            else:
                study = FactStudy(model, **dict(given(FactStudy, asked)))
                measure = partial(measure_facts, asked.command)
                _, shown = measure(study, folder, progress, command=command)
    for exhibit in shown:
        console.say(exhibit.markdown())
    console.say(f"Written: {folder}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CaplocError as error:
        sys.exit(str(error))
