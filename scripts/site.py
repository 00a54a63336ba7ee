"""What the documentation site adds to the pages in docs: tutorials, executed, and the manual.

mkdocs calls the functions `on_...`. Tutorials are notebooks in the percent format; they are run
from top to bottom, and become pages with what their cells printed and drew. The manual is what
`caploc COMMAND --help` says, of every command.
"""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import jupytext
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from nbformat.v4 import new_output
from traitlets import Type

LOG = logging.getLogger("mkdocs.hooks.site")  # a strict building ends at its warnings
MANUAL = "manual.md"
WIDGET = "application/vnd.jupyter.widget-view+json"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
TABLE = re.compile(r"<style.*?</style>", re.S)


def on_config(config: Any) -> Any:
    """Leave pages out of the navigation that are not there."""
    pages = {path.relative_to(config.docs_dir) for path in Path(config.docs_dir).rglob("*.md")}
    made = {Path(MANUAL), *(Path("tutorials") / f"{path.stem}.md" for path in notebooks(config))}
    config.nav = kept(config.nav, {str(page) for page in pages | made})
    return config


def kept(nav: Any, pages: set[str]) -> Any:
    """The navigation without pages that are not there, and without headings over none."""
    if isinstance(nav, str):
        return nav if nav in pages else None
    if isinstance(nav, dict):
        inner = {name: kept(below, pages) for name, below in nav.items()}
        return {name: below for name, below in inner.items() if below} or None
    return [below for each in nav if (below := kept(each, pages))]


def notebooks(config: Any) -> list[Path]:
    """The tutorials."""
    return sorted((Path(config.docs_dir) / "tutorials").glob("*.py"))


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for path in notebooks(config):
        text, pictures = executed(path)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    files.append(File.generated(config, MANUAL, content=manual()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make a link to a file outside the documentation its text: there is no such page."""
    docs = Path(config.docs_dir).resolve()
    here = docs / Path(page.file.src_uri).parent

    def shown(found: re.Match[str]) -> str:
        inside = (here / found[2]).resolve().is_relative_to(docs)
        return found[0] if inside else found[1]

    return LINK.sub(shown, markdown)


class Published(DisplayHook):
    """Shows a cell's last value as whatever else is shown."""

    def __call__(self, result: Any = None) -> None:
        if result is not None:
            self.shell.display_pub.publish(*self.compute_format_data(result))


class Shell(InteractiveShell):
    """Runs cells in this process: a kernel of its own would sometimes wait for a lost message."""

    displayhook_class = Type(Published)

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: there is no window here."""


def executed(path: Path) -> tuple[str, dict[str, bytes]]:
    """A tutorial's page and its pictures, after every cell has run in a folder of its own.

    Raises:
        Exception: whatever a cell raises.
    """
    notebook = jupytext.read(path)
    os.environ["TQDM_DISABLE"] = "1"
    shell = Shell.instance()
    shell.reset()
    shell.enable_matplotlib("inline")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = list(run(shell, cell.source, path.name))
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    pictures = resources.get("outputs", {})
    names = {name: f"{path.stem}_{name}" for name in pictures}
    for name, new in names.items():
        text = text.replace(name, new)
    return text, {names[name]: content for name, content in pictures.items()}


def run(shell: InteractiveShell, source: str, name: str) -> Iterator[Any]:
    """Run a cell; what it printed and showed that is worth a place on a page."""
    with capture_output() as said:
        result = shell.run_cell(source)
    if not result.success:
        print(said.stdout)
    result.raise_error()
    if "Warning" in said.stderr:
        LOG.warning("%s: %s", name, said.stderr)
    if said.stdout:
        yield new_output("stream", text=said.stdout)
    for each in said.outputs:
        output = new_output("display_data", data=each.data, metadata=each.metadata or {})
        if is_kept(output):
            flatten(output)
            yield output


def is_kept(output: Any) -> bool:
    """Whether what is shown is worth a place on a page: bars of progress are not."""
    data = output["data"]
    return WIDGET not in data and bool("".join(data.get("text/plain", " . ")).strip())


def flatten(output: Any) -> None:
    """Make HTML one line: Markdown would take a blank line for its end."""
    data = output["data"]
    if "text/html" in data:
        html = TABLE.sub(lambda found: " ".join(found[0].split()), "".join(data["text/html"]))
        data["text/html"] = "\n".join(line.strip() for line in html.splitlines() if line.strip())


def manual() -> str:
    """Every command's help, as it is printed."""
    os.environ["COLUMNS"] = "92"
    import typer.main

    from caploc.cli import app

    root = typer.main.get_command(app)
    parts = ["# Manual\n\nWhat `--help` says of every command.\n", page(root, "caploc", None)]
    parts += [page(*each) for each in commands(root, "caploc", None)]
    return "\n".join(parts)


def commands(group: Any, name: str, above: Any) -> Iterator[tuple[Any, str, Any]]:
    """Commands below a group, with their whole names, groups among them before their own."""
    context = group.make_context(name, [], parent=above, resilient_parsing=True)
    for each, command in group.commands.items():
        yield command, f"{name} {each}", context
        if hasattr(command, "commands"):
            yield from commands(command, each, context)


def page(command: Any, name: str, above: Any) -> str:
    """The help of one command under its name."""
    last = name.split()[-1]
    context = command.make_context(last, [], parent=above, resilient_parsing=True)
    title = context.command_path
    with redirect_stdout(StringIO()) as shown:  # typer prints what it shows in panels
        context.get_help()
    return f"## {title}\n\n```text\n{shown.getvalue().strip()}\n```\n"
