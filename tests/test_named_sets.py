"""What a study names of the heads that a search found, end to end."""

from functools import partial

import pytest

from caploc.contents import read_file
from caploc.declaration import ModelOptions
from caploc.export import Export
from caploc.options import Settings
from caploc.recovery import Measurements, fit_paired
from caploc.result import Result
from caploc.search import METHODS, Found, Method
from caploc.search.plan import Plan, intact_plan
from caploc.study import run_study
from doubles import planted_study
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
    return planted_study(folder, method=method, settings=Settings(**settings), controls=2)


def columns(heads):
    return [4 * head.layer + head.index for head in heads]


@pytest.fixture(scope="module")
def confirmed(planted, tmp_path_factory):
    """A run whose search found a needed head and the head whose absence rescues what it breaks."""
    truth, folder = planted
    ((rescuer, head),) = truth.rescuers.items()
    with pytest.MonkeyPatch.context() as patch:
        search = partial(given, columns([rescuer, head]))
        patch.setitem(METHODS, "one-shot", Method(search, lambda problem: 1))
        findings = run_study(study_of(folder, "one-shot", top=2), tmp_path_factory.mktemp("run"))
    return findings, str(head), str(rescuer)


def test_the_head_whose_loss_costs_something_is_named_and_scored(planted, confirmed):
    truth, _ = planted
    findings, head, rescuer = confirmed
    result = read_file(findings.folder / "result.json", Result)
    assert result.top == [row.head for row in result.heads if row.selected] == [head]
    assert len(result.heads) == 8  # the rescuer stays in the ranking
    assert result.validation.unconfirmed == [rescuer]
    score = result.validation.task.knocked_out.score
    assert score == pytest.approx(truth.accuracy([head])) == 0.5


def test_the_named_head_is_what_is_exported(confirmed):
    findings, head, _ = confirmed
    found = Export.find(
        str(findings.folder),
        ModelOptions(""),
        None,
        None,
        kind="heads",
        target=findings.folder / "out",
    )
    assert [str(each) for each in found.heads] == [head]


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
def test_every_method_names_only_what_the_check_confirms(planted, tmp_path, method, settings):
    _, folder = planted
    result = run_study(study_of(folder, method, top=2, **settings), tmp_path).result
    assert [each.head for each in result.validation.members.heads] == result.top
    confirmed = [each.is_confirmed for each in result.validation.members.heads]
    # of heads of which none is, the loss together is sure
    assert all(confirmed) or (not any(confirmed) and result.validation.held_out.change.high < 0)
    assert {method for method, _ in SEARCHES} == set(METHODS)
