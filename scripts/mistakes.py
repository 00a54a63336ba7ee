"""Write docs/mistakes.md: every mistake is really made, and what it printed is written down.

    python scripts/mistakes.py

It takes minutes: a few mistakes need a finished run, or wait for the Hub, which is not asked.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "mistakes.md"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["COLUMNS"] = "200"
sys.path.insert(0, str(ROOT / "tests" / "mistakes"))

from every import GROUPS, ORDERED  # noqa: E402  (after the path is set)
from mistaking import Kept, Said, made  # noqa: E402

from caploc import cli  # noqa: E402

LONGEST = 150  # characters of a command that are shown
ABOVE = """\
# What can go wrong, and what caploc says

A mistake gets one sentence on standard error: what was wrong, what is allowed, what to do. The exit
code is 2 for a mistake in what was asked and 1 where the machine gives up. Nothing that was
measured is lost, and no half-written file stays behind. A file of studies is the exception to one
sentence: all its mistakes are named at once, a line each.

`python scripts/mistakes.py` makes every one of these {count} mistakes with the command shown and
writes down what it printed; a test makes them again and compares. `model` is a tiny Llama,
`/home/me` where it lies for runs, `run` a finished run of it. There was no network.
Where a sentence ends in *(here)*, it depends on the machine.

## Not mistakes

| what | what happens |
|---|---|
| the same head twice (`--heads L0H1,L0H1`) | it is knocked out once |
| a prompt longer than the model's window | it is cut from the left, as lm-eval does it |
| `--masks`, `--rate` with a method that draws no masks | they are not used |
| a task that the intact model cannot do | it is run; a note says that nothing can be lost |
| a task at chance | it is run; a note says that heads cannot be told from noise, and what to do |
| blank lines in a file of JSON lines | they are passed over |
"""


def row(wrong: object, said: Said, machine: bool) -> str:
    """A mistake as a row of its table."""
    command = said.command
    shown = command if len(command) <= LONGEST else command[: LONGEST - 4] + " ..."
    sentence = said.sentence.removeprefix("caploc: ").replace("\n", "<br>")
    mark = " *(here)*" if machine else ""
    cells = (wrong, f"`` {shown} ``", sentence + mark, said.code)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def page(said: list[Said]) -> str:
    """The whole page."""
    lines = [ABOVE.format(count=len(said))]
    told = dict(zip(ORDERED, said, strict=True))
    for group in GROUPS:
        lines += [
            f"## {group}\n",
            "| mistake | command | caploc says | exit |",
            "|---|---|---|---|",
        ]
        lines += [row(w.what, s, w.machine) for w, s in told.items() if w.group == group]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Make every mistake and write the page."""
    cli.hush()
    with TemporaryDirectory() as folder:
        kept = Kept(Path(folder).resolve())
        said = []
        for wrong in ORDERED:
            said.append(made(wrong, kept))
            print(f"{said[-1].code} {wrong.group}: {wrong.what}", flush=True)
    PAGE.write_text(page(said))
    print(f"{len(said)} mistakes: {PAGE}")


if __name__ == "__main__":
    main()
