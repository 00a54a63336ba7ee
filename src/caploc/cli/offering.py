"""What a terminal is asked to begin with, what it is told was found, and what to do with that."""

import shlex
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.completion import option
from caploc.errors import CaplocError
from caploc.naming import DEMO, is_fetched

if TYPE_CHECKING:
    from caploc.result import Result

USUAL = "smollm2"  # where it was fetched
TOKENS = 60  # of an answer in a chat
ENDS = ("/quit", "/exit", "/bye")  # of a chat, as an empty line is
REPOSITORY = "REPOSITORY"  # asked for when it is chosen


def ask_words() -> list[str]:
    """Ask for a model and a task; return the words of the command that finds its heads."""
    console.say("Which heads of which model does which task need? (`caploc --help`: all commands)")
    real = is_fetched(USUAL)
    model = typer.prompt(
        "Model (Hugging Face id, folder, a name of `caploc models`)",
        default=USUAL if real else DEMO,
    )
    task = typer.prompt(
        "Task (a name of `caploc tasks`, or a YAML)",
        default="words/past" if model != DEMO else "demo/addition",
    )
    words = ["locate", model, "--task", task]
    sys.argv[1:] = words  # what a run's files say of how it was asked for
    console.say(f"\n$ {shlex.join(['caploc', *words])}")
    return words


def show_results(results: "list[Result]") -> None:
    """Print what was found: scores, the answer in words, heads, sets, and what to know."""
    from caploc import tables
    from caploc.report.advice import next_steps
    from caploc.report.headtable import explain_standings
    from caploc.report.sentence import headline, second_sentence
    from caploc.report.wording import called

    console.show_table(*tables.locate_table(results))
    several = len(results) > 1
    for result in results:
        said = f"{headline(result)} {second_sentence(result)}".rstrip()
        console.say(f"{called(result.task.name)}: {said}" if several else said)
        if result.top and result.validation.other_tasks:
            console.show_table(*tables.others_table(result))
        console.show_table(*tables.heads_table(result))
        if standings := explain_standings(result):
            console.say(standings)
    for result in (each for each in results if each.validation.frontier):
        console.show_table(*tables.frontier_table(result))
    for result in results:
        for note in result.search.notes:
            console.say(f"{called(result.task.name)}: {note}")
        for step in () if result.top else next_steps(result, None, "")[:1]:
            console.say(f"{called(result.task.name)}: {step.why}")


def offers(
    folder: Path, top: list[str], again: list[str] | None = None
) -> list[tuple[str, list[str]]]:
    """List what may be done with a finding: what it is for, and the command's words.

    `again` are the words that search with more rows.
    """
    place = str(folder)
    found = [("see every example, and pick heads in the playground", ["view", place])]
    if top:
        found += [
            ("talk to the model with and without these heads", ["chat", place]),
            ("a checkpoint without them", ["export", place, "--to", f"{place}-checkpoint"]),
            ("an adapter (LoRA)", ["export", place, "--to", f"{place}-lora", "--as", "lora"]),
            ("a file of the heads", ["export", place, "--to", f"{place}-heads", "--as", "heads"]),
            (
                "push the checkpoint to the Hugging Face Hub",
                ["export", place, "--to", f"{place}-hub", "--push-to-hub", REPOSITORY],
            ),
        ]
    return found + ([("search on, with twice the rows", again)] if again else [])


def search_on(folder: Path, budget: int | None) -> list[str] | None:
    """Return the words of this command with twice the budget; None for searches without one."""
    if budget is None:
        return None
    more = {"--budget": str(2 * budget), "--out": f"{folder}-{2 * budget}"}
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in more:
            kept.append(word)
        elif not equals:
            next(words, None)
    return kept + [word for option in more.items() for word in option]


def choose(
    folder: Path, top: list[str], report: Path | None, again: list[str] | None = None
) -> Iterator[list[str]]:
    """Ask what to do next, again and again; yield the words of each command that was chosen."""
    listed = offers(folder, top, again)
    while True:
        console.say("\nWhat next? A number, or Enter to end.")
        console.say(f"  0  open the report: {report}")
        for number, (what, words) in enumerate(listed, 1):
            console.say(f"  {number}  {what}: {shlex.join(['caploc', *words])}")
        said = typer.prompt("", default="", show_default=False, prompt_suffix="> ").strip()
        if not said:
            return
        if said == "0" and report is not None:
            webbrowser.open(report.absolute().as_uri())
        elif said.isascii() and said.isdigit() and 0 < int(said) <= len(listed):
            words = listed[int(said) - 1][1]
            yield [typer.prompt(f"{w} (you/name)") if w == REPOSITORY else w for w in words]
        else:
            console.say(f"{said!r} is no number from 0 to {len(listed)}.")


def go_on(context: typer.Context, folder: Path, result: "Result", report: Path | None) -> None:
    """Run what is chosen, each a command as if it had been typed; a mistake ends none but it."""
    root = context.find_root().command
    again = search_on(folder, result.search.budget)
    for words in choose(folder, result.top, report, again):
        sys.argv[1:] = words
        try:
            root.main(words, "caploc", standalone_mode=False)
        except CaplocError as error:
            console.complain(str(error))


@options.takes_groups
def chat(
    folder: options.RunFolder,
    heads: options.HeadNames = None,
    tokens: Annotated[int, option("Tokens of an answer at most.")] = TOKENS,
    plain: Annotated[
        bool, option("Go on with what is typed, without the chat template.", "--plain")
    ] = False,
    trust_remote_code: options.Trust = False,
) -> None:
    """Talk to a run's model, as it is and without the heads that were found.

    Examples:
        caploc chat runs/addition
        caploc chat runs/addition --heads L0H5,L1H3 --tokens 20
        caploc chat runs/past --plain

    See also:
        ui, export
    """
    options.check_heads(folder, heads)
    if heads is None:
        options.check_named_run(folder)
    from caploc.playground.answers import Chat
    from caploc.workbench import Allowed

    allowed = Allowed(code=True, remote_code=trust_remote_code)  # no program is judged
    talk = Chat.of(folder, heads, tokens, allowed, plain=plain)
    console.say(talk.opening())
    while (said := hear()) and said.strip() not in ENDS:
        if said.strip() == "/help":
            console.say(f"{', '.join(ENDS)} or an empty line ends the chat; \\n is a new line.")
            continue
        for side, answer in talk.answer(said.replace("\\n", "\n")):
            console.say(f"{side}: {answer}")


def hear() -> str:
    """Read a line; an empty one where there is none, or Ctrl-C was pressed instead."""
    try:
        said: str = typer.prompt("", default="", show_default=False, prompt_suffix="> ")
    except typer.Abort:
        return ""
    if not sys.stdin.isatty():  # no terminal has shown it
        console.say(said)
    return said
