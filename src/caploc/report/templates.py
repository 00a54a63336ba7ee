"""Fill in a page template: escaping on, style and script inlined, nothing loaded from elsewhere."""

import base64
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from caploc.files import whole_text
from caploc.report.colours import stylesheet

PACKAGE = "caploc.report"
REPORT, COMPARE = "report.html", "compare.html"


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def render(template: str, **context: Any) -> Markup:
    """Fill in a template of this package."""
    return Markup(_environment().get_template(template).render(**context))  # noqa: S704


def page_policy() -> str:
    """Return the content security policy of a page: its one script, and nothing from outside.

    Escaping already keeps what a model says from being run; this holds should it ever fail.
    """
    digest = base64.b64encode(sha256(_asset("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def write_page(folder: Path, template: str, *, name: str = REPORT, **context: Any) -> Path:
    """Write `folder/name` from a template of this package and return its path.

    Raises OSError if the folder or the file cannot be written.
    """
    page = render(
        template,
        style=_asset("page.css") + stylesheet(),
        script=_asset("page.js"),
        policy=page_policy(),
        **context,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    # Line ends are fixed, because the policy's digest is of the script's exact bytes.
    with whole_text(path) as file:
        file.write(page)
    return path
