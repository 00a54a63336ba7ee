"""Fill in a page template: escaping on, style and script inlined, nothing loaded from elsewhere."""

import base64
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from caploc.report import colours

PACKAGE = "caploc.report"


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


def security_policy(script: str) -> str:
    """Return the content security policy of a page: this one script, and nothing from outside.

    Escaping already keeps what a model says from being run; this holds should it ever fail.
    """
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def write_page(folder: Path, template: str, **context: Any) -> Path:
    """Write `folder/report.html` from a template of this package and return its path.

    Raises:
        OSError: if the folder or the file cannot be written.
    """
    script = _asset("page.js")
    page = (
        _environment()
        .get_template(template)
        .render(
            style=_asset("page.css") + colours.stylesheet(),
            script=script,
            policy=security_policy(script),
            **context,
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    # Line ends are fixed, because the policy's digest is of the script's exact bytes.
    path.write_text(page, encoding="utf-8", newline="\n")
    return path
