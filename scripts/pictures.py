"""Make the documentation's pictures from what `make demo` left.

    python scripts/pictures.py [runs/demo]

Needs `make .venv/.installed-browser` and the system's Chromium, which $CHROMIUM may name.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
CAPLOC = Path(sys.executable).with_name("caploc")
DOCS = Path(__file__).parents[1] / "docs"
RUN = "words-antonym"
DESK = {"viewport": {"width": 1100, "height": 1120}}
WIDE = {"viewport": {"width": 1360, "height": 1264}}
LIST = {"viewport": {"width": 1360, "height": 450}}
BESIDE = {"viewport": {"width": 1100, "height": 1620}}
ANSWERED = 120_000  # milliseconds that a model on a busy CPU may take


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the runs of a folder; the address that is printed."""
    words = [str(CAPLOC), "view", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            server.terminate()


def main() -> None:
    """Open each page and keep what it looks like."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo").resolve()
    report, compared = (runs / RUN / "report.html").as_uri(), (runs / "compare.html").as_uri()
    pages: list[tuple[str, str, dict[str, Any]]] = [
        ("report.png", report, DESK),
        ("compare.png", compared, BESIDE),
    ]
    with sync_playwright() as driver, serving(runs) as listed:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        pages += [("view.png", listed, LIST), ("playground.png", listed, WIDE)]
        for name, address, view in pages:
            page = browser.new_context(**view).new_page()
            page.goto(address)
            if address == listed:
                expect(page.locator("#runs tbody tr").first).to_be_visible()
            if name == "playground.png":
                page.get_by_role("link", name=RUN, exact=True).click()
                page.get_by_role("link", name="Playground").click()
                page.locator("#load").click()
                expect(page.locator("#status")).to_contain_text("done", timeout=ANSWERED)
            page.screenshot(path=DOCS / name)
        browser.close()


if __name__ == "__main__":
    main()
