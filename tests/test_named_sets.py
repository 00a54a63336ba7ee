"""What a study names when a part of the set found does more than all of it, end to end."""

from functools import partial

import pytest

from caploc.contents import read_file
from caploc.declaration import ModelOptions, Study
from caploc.export import Export
from caploc.options import Settings
from caploc.recovery import Measurements, fit_paired
from caploc.result import Result
from caploc.search import METHODS, Found, Method
from caploc.search.plan import Plan, intact_plan
from caploc.study import run_study
from worlds.planted import Planted, write_planted

PLAN = Planted(2, 4, needed=2, rescuers=1, strengths=(0.4, 0.2), examples=200, seed=1)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A model of 8 heads, of whose needed ones the first costs nothing with its rescuer gone."""
    folder = tmp_path_factory.mktemp("planted") / "model"
    return write_planted(folder, PLAN), folder


def given(columns, problem):
    """A search that has made up its mind."""
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    asked = Plan.crossed(problem.probe, problem.empty()[None], problem.examples)
    seen = Measurements.none(problem.heads).joined((yield asked))
    estimate = fit_paired(seen, intact)
    rest = [column for column in range(problem.heads) if column not in columns]
    return Found(list(columns), [*columns, *rest], estimate, seen, notes=["Made up."])


def study_of(folder, method, **settings):
    return Study(
        ModelOptions(str(folder), device="cpu"), str(folder / "planted.yaml"), method=method,
        settings=Settings(**settings), controls=2,
    )  # fmt: skip


def columns(heads):
    return [4 * head.layer + head.index for head in heads]


@pytest.fixture(scope="module")
def replaced(planted, tmp_path_factory):
    """A run whose search found a needed head and the head whose absence rescues what it breaks."""
    truth, folder = planted
    ((rescuer, head),) = truth.rescuers.items()
    with pytest.MonkeyPatch.context() as patch:
        search = partial(given, columns([rescuer, head]))
        patch.setitem(METHODS, "one-shot", Method(search, lambda problem: 1))
        findings = run_study(study_of(folder, "one-shot", top=2), tmp_path_factory.mktemp("run"))
    return findings, str(head), str(rescuer)


def test_the_head_that_does_more_alone_is_named_and_scored(planted, replaced):
    truth, _ = planted
    findings, head, rescuer = replaced
    result = read_file(findings.folder / "result.json", Result)
    assert result.top == [row.head for row in result.heads if row.selected] == [head]
    assert len(result.heads) == 8  # the rescuer stays in the ranking
    subsets = result.validation.subsets
    assert subsets.found == [rescuer, head] and subsets.named == [head]
    drops = {tuple(row.heads): row.drop for row in subsets.tried}
    assert set(drops) == {(rescuer, head), (rescuer,), (head,)}
    assert drops[rescuer, head] == 0 and drops[head,] == pytest.approx(0.4, abs=0.15)
    score = result.validation.task.knocked_out.score
    assert score == pytest.approx(truth.accuracy([head])) == 0.5


def test_it_is_checked_on_the_examples_that_did_not_pick_it(planted, replaced):
    truth, folder = planted
    findings, head, _ = replaced
    held_out = findings.result.validation.held_out
    judged = study_of(folder, "css").draw(200).held_out[1::2]
    assert held_out.fresh is True and held_out.examples == len(judged) == 50
    assert held_out.knocked_out == pytest.approx(truth.right([head])[judged].mean())


def test_a_note_says_so_first_and_the_page_says_it_too(replaced):
    findings, head, rescuer = replaced
    note, *others = findings.result.search.notes
    assert others == ["Made up."]
    assert note.startswith(f"Knocking out all 2 heads found ({rescuer}, {head}) leaves 0.")
    assert f"; {head} alone leaves 0." in note and "named instead" in note
    page = findings.report.read_text()
    for wanted in (f"{head} alone leaves", "caploc interactions"):
        assert wanted in page, wanted


def test_the_named_head_is_what_is_exported(replaced):
    findings, head, _ = replaced
    found = Export.find(
        str(findings.folder),
        ModelOptions(""),
        None,
        None,
        kind="heads",
        target=findings.folder / "out",
    )
    assert [str(each) for each in found.heads] == [head]


def test_a_run_repeated_measures_nothing_and_finds_the_same(planted, replaced):
    findings, *_ = replaced
    before = findings.result.cost.rows
    truth, folder = planted
    with pytest.MonkeyPatch.context() as patch:
        ((rescuer, head),) = truth.rescuers.items()
        search = partial(given, columns([rescuer, head]))
        patch.setitem(METHODS, "one-shot", Method(search, lambda problem: 1))
        again = run_study(study_of(folder, "one-shot", top=2), findings.folder)
    assert again.result.cost.rows == before
    assert again.result.validation == findings.result.validation


SEARCHES = [
    ("css", {"masks": 12, "rate": 0.25}),
    ("csb", {"masks": 12, "rate": 0.25}),
    ("css-search", {"mask_counts": (6, 8), "rates": (0.2, 0.3)}),
    ("csb-search", {"mask_counts": (6, 8), "rates": (0.2, 0.3)}),
    ("one-shot", {}),
    ("greedy", {}),
    ("scan", {"budget": 400}),
    ("scan", {"budget": 400, "goal": "set"}),
]
LONGER = ("csb", "csb-search", "one-shot")


@pytest.mark.parametrize(
    ("method", "settings"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in LONGER)) for each in SEARCHES],
)
def test_no_method_names_a_set_that_was_not_held_against_its_parts(
    planted, tmp_path, method, settings
):
    _, folder = planted
    result = run_study(study_of(folder, method, top=2, **settings), tmp_path).result
    subsets = result.validation.subsets
    unconfirmed = result.validation.unconfirmed
    assert (subsets is None) == (len(result.top) + len(unconfirmed) < 2)
    if subsets:
        assert {*subsets.named} == {*result.top, *unconfirmed}
        assert subsets.tried[0].heads == subsets.found
        assert subsets.fresh is True and len(subsets.tried) == 3
    assert {method for method, _ in SEARCHES} == set(METHODS)
