"""The documentation before it is built: every page is reached, every public name is told."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import caploc

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
MADE = {"manual.md"} | {f"tutorials/{path.stem}.md" for path in DOCS.glob("tutorials/*.py")}
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
TOLD = re.compile(
    r"^::: caploc\.([\w.]+)\.(\w+)\n    options:\n      heading: caploc\.(\w+)$", re.M
)


def navigation() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    return set(re.findall(r": (\S+\.md)$", text, re.M))


def test_every_page_is_in_the_navigation():
    assert set(PAGES) | MADE <= navigation()


@pytest.mark.parametrize("page", PAGES)
def test_links_between_files_lead_somewhere(page):
    here = DOCS / page
    for target in LINK.findall(here.read_text()):
        known = str((here.parent / target).resolve().relative_to(ROOT)).removeprefix("docs/")
        assert (here.parent / target).exists() or known in MADE, target


def test_the_api_pages_tell_every_public_name_and_no_other():
    told = [found for page in DOCS.glob("api/*.md") for found in TOLD.findall(page.read_text())]
    homes = {name: home for home, name, heading in told if name == heading}
    assert homes == caploc.HOMES
    assert len(told) == len(homes)


def test_pictures_of_the_explanation_stay_small():
    pictures = list(DOCS.glob("how/*.png"))
    assert len(pictures) == 5
    assert all(picture.stat().st_size < 60_000 for picture in pictures)


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


def test_every_test_that_the_page_on_security_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "security.md").read_text()))
    there = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in there} == set()


@pytest.mark.parametrize(
    "place", re.findall(r"`(test[\w/.]+)`", (DOCS / "security.md").read_text())
)
def test_places_of_tests_that_the_page_on_security_names_are_there(place):
    if "." in place or "/" in place:
        here = [ROOT / place, ROOT / "tests/security" / place, ROOT / "tests/sandbox" / place]
        assert any(path.exists() for path in here)


def test_the_readme_stays_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    for target in LINK.findall(text):
        assert (ROOT / target).exists(), target
