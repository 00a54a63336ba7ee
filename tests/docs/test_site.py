"""The documentation as built: without a warning, and nothing of it lies elsewhere."""

import html
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import caploc
from caploc.cli import COMMANDS

sys.path.insert(0, str(Path(__file__).parents[1] / "tutorials"))
from test_tutorials import FINDINGS

ROOT = Path(__file__).parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
HARMLESS = {"canonical", "prev", "next"}  # links that no browser fetches

pytestmark = pytest.mark.docs


class Fetched(HTMLParser):
    """Addresses that a browser asks for when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in FETCHED and named.get("rel") not in HARMLESS:
            self.addresses.append(named.get(FETCHED[tag]) or "")


def build(place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    built = build(place)
    assert built.returncode == 0, built.stderr
    assert not re.search(r"^(WARNING|ERROR)", built.stderr, re.M)
    return place


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text())
        far = [each for each in parser.addresses if re.match(r"(https?:)?//", each)]
        assert not far, f"{page.name}: {far}"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", styles)


def test_every_public_name_has_a_place_on_an_api_page(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    for name, home in caploc.HOMES.items():
        assert f'id="caploc.{home}.{name}"' in text


def test_tutorials_show_what_their_cells_printed(site):
    """Every cell has run, and none warned: the building would have ended."""
    for name, words in FINDINGS.items():
        shown = html.unescape((site / "tutorials" / f"{name}.html").read_text())
        assert [word for word in words if word not in shown] == []
    assert len(list((site / "tutorials").glob("demo_*.png"))) == 2


def test_the_manual_has_every_command(site):
    manual = (site / "manual.html").read_text()
    for places in COMMANDS.values():
        for place in places:
            name = place.rpartition(".")[2]
            assert f'id="caploc-{name}"' in manual
    assert 'id="caploc-neurons-locate"' in manual


def test_pages_that_are_opened_from_disk_are_searched(site):
    sync = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in ("index.html", "bench/real.html"):
            page, said = browser.new_page(), []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("requestfailed", lambda request, said=said: said.append(request.url))
            page.goto((site / name).as_uri())
            page.locator("input.md-search__input").click()
            page.keyboard.type("universal heads")
            page.locator(".md-search-result__item").first.wait_for()
            assert said == []
        browser.close()
