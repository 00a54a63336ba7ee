"""Every mistake of docs/mistakes.md is told in the sentence that stands there."""

import importlib.util
from pathlib import Path

import pytest
from every import ORDERED, QUICK
from mistaking import Kept, made

from caploc.cli import UNFORESEEN

ROOT = Path(__file__).parents[2]
# Those that need a finished run cost seconds for the first of them; here they are made too where
# the default suite has the time, and all of them under `slow`.
CHEAP = [wrong for wrong in QUICK if wrong.group == "Options"][::6]


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("mistakes", ROOT / "scripts" / "mistakes.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Kept(tmp_path_factory.mktemp("kept").resolve())


def check(wrong, kept, page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = made(wrong, kept)
    assert said.code == wrong.code
    assert said.sentence.startswith("caploc: ") and UNFORESEEN not in said.sentence
    assert "Traceback" not in said.sentence + said.printed
    assert not [path for path in said.left if path.endswith(".part")]
    assert not said.left or wrong.code == 1
    if not wrong.machine:
        assert page.row(wrong.what, said, wrong.machine) in page.PAGE.read_text()


@pytest.mark.parametrize("wrong", CHEAP, ids=lambda wrong: wrong.what)
def test_a_mistake_gets_the_sentence_of_the_docs(wrong, kept, page, monkeypatch):
    check(wrong, kept, page, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ORDERED, ids=lambda wrong: f"{wrong.group}: {wrong.what}")
def test_every_mistake_gets_the_sentence_of_the_docs(wrong, kept, page, monkeypatch):
    check(wrong, kept, page, monkeypatch)


def test_the_docs_have_a_row_for_every_mistake(page):
    text = page.PAGE.read_text()
    assert len(ORDERED) >= 60
    assert all(f"\n| {wrong.what} | " in text for wrong in ORDERED)
    assert f"every one of these {len(ORDERED)} mistakes" in " ".join(text.split())


def test_a_head_named_twice_is_knocked_out_once():
    from caploc.heads import Head, HeadGrid

    heads = Head.parse_all("L0H1,L0H1")
    assert HeadGrid((2,)).mask(heads).sum() == 1
