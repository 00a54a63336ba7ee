"""Help as a manual page: what a command does, its options, examples, files, exit codes.

A command's docstring says what it does, and after that may have sections:

    Examples:
        caploc locate demo --task demo/addition

    Writes:
        result.json: the findings

    See also:
        curve, interactions

`--help` shows the text, arguments and options, those sections, and what holds for every command.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDTH = 92
EXIT_CODES = (
    ("0", "done"),
    ("1", "failed by the machine's fault, or in part; what was measured is kept"),
    ("2", "a mistake in what was asked; nothing was measured"),
    ("130", "stopped by Ctrl-C (143: by SIGTERM, 129: SIGHUP); what was measured is kept"),
)
ENVIRONMENT = (
    ("CAPLOC_CACHE", "where fetched models lie (caploc in HF_HOME, XDG_CACHE_HOME or ~/.cache)"),
    ("HF_HOME, HF_TOKEN", "where models and data from the Hugging Face Hub lie; the token for it"),
    ("HF_HUB_OFFLINE", "1: ask the Hub for nothing, use what was downloaded before"),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that may be used"),
    ("OMP_NUM_THREADS", "CPU threads"),
    ("RAY_ADDRESS", "HOST:PORT of the Ray cluster that `--workers ray` joins"),
    ("XDG_CACHE_HOME", "where shell completion keeps the names of tasks (~/.cache)"),
    ("NO_COLOR", "any value: no colours"),
)
CONTEXT = {"max_content_width": WIDTH, "help_option_names": ["--help", "-h"]}
HEADINGS = ("Examples", "Example", "Writes", "See also")


@dataclass
class HelpSection:
    """A heading and its lines."""

    heading: str
    lines: list[str] = field(default_factory=list)


def sections(docstring: str) -> tuple[str, list[HelpSection]]:
    """The text of a docstring, and the sections after it."""
    found = [HelpSection("")]
    for line in docstring.splitlines():
        heading, colon, rest = line.partition(":")
        if colon and heading in HEADINGS:
            found.append(HelpSection(heading, [rest.strip()] if rest.strip() else []))
        elif found[-1].heading and line and not line.startswith(" "):
            found[0].lines += ["", line]  # text goes on after a section
        elif found[-1].heading:
            found[-1].lines += [line.strip()] if line.strip() else []
        else:
            found[0].lines.append(line)
    return "\n".join(found[0].lines).strip(), found[1:]


class Manual(TyperCommand):
    """A command whose help is a manual page."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the sections out of the docstring."""
        super().__init__(*arguments, **options)
        self.help, self.sections = sections(self.help or "")
        self.context_settings = {**self.context_settings, **CONTEXT}

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Show the sections after the options, then what holds for every command."""
        for section in self.sections:
            with formatter.section(section.heading):
                write_lines(formatter, section)
        for heading, rows in (("Exit codes", EXIT_CODES), ("Environment", ENVIRONMENT)):
            with formatter.section(heading):
                formatter.write_dl(rows)


def write_lines(formatter: Any, section: HelpSection) -> None:
    """Examples as they are, for copying; files as a list; anything else as text."""
    if section.heading.startswith("Example"):
        for line in section.lines:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
    elif section.heading == "Writes":
        formatter.write_dl([split_file(line) for line in section.lines])
    else:
        formatter.write_text(" ".join(section.lines))


def split_file(line: str) -> tuple[str, str]:
    """A file's name and what is in it."""
    name, _, content = line.partition(": ")
    return name, content


class Commands(TyperGroup):
    """A group of commands, listed under the headings that they were registered with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make pages as wide as those of the commands."""
        super().__init__(*arguments, **options)
        self.context_settings = {**self.context_settings, **CONTEXT}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List commands with the first sentence of their help, group by group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.shown(ctx):
            heading = getattr(command, "rich_help_panel", None)
            heading = heading if isinstance(heading, str) else "Commands"
            groups.setdefault(heading, []).append((name, first_sentence(command.help or "")))
        longest = max(len(name) for rows in groups.values() for name, _ in rows)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(longest), text) for name, text in rows])

    def shown(self, ctx: Any) -> Iterator[tuple[str, Any]]:
        """The commands that are not hidden, by their names."""
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield name, command


def first_sentence(text: str) -> str:
    """The first paragraph as one line."""
    return " ".join(text.partition("\n\n")[0].split())
