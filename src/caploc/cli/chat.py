"""Talk in the terminal to a run's model, with and without the heads that were found."""

import sys
from typing import Annotated

import typer

from caploc import console
from caploc.cli import options
from caploc.cli.options import option
from caploc.folder import check_named

TOKENS = 60  # of an answer
ENDS = ("/quit", "/exit", "/bye")  # of a chat, as an empty line is


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
    """Talk to a run's model, with and without its heads.

    Examples:
        caploc chat runs/addition
        caploc chat runs/addition --heads L0H5,L1H3 --tokens 20
        caploc chat runs/past --plain

    See also:
        view, export
    """
    options.check_heads(heads)
    if heads is None:
        check_named(folder)
    from caploc.declaration import Allowed
    from caploc.playground.chat import Chat

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
