"""Heads that a study leaves in: how they are named, and what becomes of them."""

import pytest

from caploc.components import Head, HeadFile, Heads, find_grid, resolve_excluded, write_heads
from caploc.errors import BadData, BadOption, UserError
from caploc.finished import FinishedRun
from caploc.interactions import interactions
from caploc.options import Settings
from caploc.study import run_study
from doubles import planted_study
from worlds.planted import Planted, write_planted

GRID = Heads((4, 4))


def resolved(*given, top=2, kind="heads"):
    return resolve_excluded(given, GRID, find_grid(kind, GRID), top)


def test_names_and_files_are_joined_each_once(tmp_path):
    write_heads(tmp_path / "heads.json", HeadFile((Head(1, 2), Head(0, 3)), GRID, "tiny"))
    told = resolved("L0H3,L0H1", str(tmp_path / "heads.json"))
    assert told == ("L0H3", "L0H1", "L1H2") and resolved(*told) == told


@pytest.mark.parametrize(
    "given, error, said",
    [
        ("L5H0", UserError, r"There is no head L5H0"),
        ("fifth", BadOption, r"'fifth' is not a head"),
        ("none.json", BadData, r"none.json cannot be read as a file of heads"),
        ("L0H0,L0H1,L0H2,L0H3,L1H0,L1H1,L1H2", BadOption, r"leaves 1 of 8 heads, fewer than the 2"),
    ],
)
def test_what_names_no_heads_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        resolved(given)


def test_a_layer_that_holds_an_excluded_head_is_left_in(tmp_path):
    assert resolved("L1H2,L1", top=1, kind="layers") == ("L1",)
    with pytest.raises(BadOption, match="leaves 0 of 2 layers, fewer than the 1"):
        resolved("L1H2,L0H0", top=1, kind="layers")


def test_a_file_of_another_grid_is_refused(tmp_path):
    write_heads(tmp_path / "heads.json", HeadFile((Head(0, 0),), Heads((2,)), "other"))
    with pytest.raises(BadOption, match=r"The heads were found in other"):
        resolved(str(tmp_path / "heads.json"))


@pytest.mark.parametrize("method", ["scan", "css"])
def test_a_study_says_which_heads_it_left_in_and_names_others(tmp_path, method):
    truth = write_planted(
        tmp_path / "model", Planted(2, 4, needed=3, strengths=(0.4, 0.3, 0.2), examples=400)
    )
    worst = str(max(truth.needed, key=truth.needed.get))
    study = planted_study(
        tmp_path / "model",
        method=method,
        settings=Settings(top=2, masks=30, rate=0.15),
        exclude=(worst,),
        controls=2,
    )
    found = run_study(study, tmp_path / "run").result
    (entry,) = [each for each in found.heads if each.head == worst]
    assert found.search.excluded == [worst] and worst not in found.top and found.top
    assert entry.effect is None and not entry.selected
    assert FinishedRun.read(tmp_path / "run").study.exclude == (worst,)
    assert "excluded" in (tmp_path / "run" / "report.html").read_text()
    told = interactions(tmp_path / "run", most=2, examples=20)
    asked = [
        *told["stand_ins"],
        *(name for each in told["interactions"] for name in each["second"]),
    ]
    assert asked and worst not in asked
