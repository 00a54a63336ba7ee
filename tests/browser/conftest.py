"""The browser that all pages are opened in."""

import os
from pathlib import Path

import pytest

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
