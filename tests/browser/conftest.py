"""The browser that all pages are opened in, and how one is."""

import os
from pathlib import Path

import pytest
from views import VIEWS

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="session")
def chromium():
    if not Path(CHROMIUM).exists():
        pytest.fail(f"There is no browser at {CHROMIUM}; name one in the environment as CHROMIUM.")
    driving = pytest.importorskip("playwright.sync_api")
    with driving.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open an address in some view; what goes wrong there or is asked elsewhere fails the test."""
    contexts, wrong = [], []

    def opened(address, view="desk", **options):
        contexts.append(chromium.new_context(**VIEWS[view] | options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        own = "http://127.0.0.1:" if address.startswith("http:") else address
        known = (own, "data:", "blob:", "about:")
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda one: one.url.startswith(known) or wrong.append(one.url))
        page.goto(address)
        return page

    opened.wrong = wrong
    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
