"""The pages: links lead somewhere, the citation is right, the README stays short."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
PLACE = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
SOURCE = re.compile(r"`((?:src|bench|scripts|tests|[a-z_]+)(?:/[a-z_]+)+\.py)`")


def places(page: Path) -> set[str]:
    """The headings of a page as GitHub addresses them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_files_lead_somewhere(page):
    here = DOCS / page
    for target in LINK.findall(here.read_text()):
        assert (here.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_lead_to_one(page):
    here = DOCS / page
    for target, place in PLACE.findall(here.read_text()):
        assert place in places(here.parent / target if target else here), (target, place)


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page):
    for name in SOURCE.findall((DOCS / page).read_text()):
        assert (ROOT / name).exists() or (ROOT / "src/caploc" / name).exists(), name


def test_every_picture_stands_on_a_page():
    pages = [ROOT / "README.md", *(DOCS / page for page in PAGES)]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in LINK.findall(page.read_text())
    }
    assert set(DOCS.rglob("*.png")) <= shown


def test_the_citation_names_this_version_and_both_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"]
    for paper, page in zip(cited["references"], ("method.md", "cnl.md"), strict=True):
        number = paper["url"].rpartition("/")[2]
        text = " ".join((DOCS / page).read_text().split())
        assert f"arXiv {number}" in text and paper["title"] in text
        assert paper["identifiers"][0]["value"] == f"arXiv:{number}"


def test_the_readme_stays_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    for target in LINK.findall(text):
        assert (ROOT / target).exists(), target
