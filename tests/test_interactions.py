"""Heads together: pairs, backups and groups, on a model whose backups were planted."""

import json

import numpy as np
import pytest

from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.heads import HeadGrid
from caploc.interactions import (
    Contrast,
    Rescue,
    behind,
    contrast_rescues,
    describe_contrasts,
    groups,
    interactions,
    pairs,
)
from caploc.measurement import search
from caploc.progress import Silent
from caploc.search import Problem, Settings, column_mask
from caploc.search.published import Sheet
from caploc.study import Study, run_study
from caploc.workbench import ModelOptions
from worlds.planted import Planted, write_planted


class Counter(Silent):
    """Counts the rows that were measured and not merely read."""

    def __init__(self):
        self.measured = 0

    def advance(self, rows, tokens):
        self.measured += rows if tokens else 0


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A finished run on a model of 32 heads with three needed ones, one of which has a backup."""
    folder = tmp_path_factory.mktemp("planted")
    truth = write_planted(
        folder / "model",
        Planted(4, 8, needed=3, backups=1, strengths=(0.3, 0.2, 0.15), examples=300, seed=3),
    )
    study = Study(
        ModelOptions(str(folder / "model"), device="cpu"),
        str(folder / "model" / "planted.yaml"),
        settings=Settings(top=3, budget=2000, recall=0.99),
        controls=0,
        limit=50,
    )
    run_study(study, folder / "run")
    return truth, folder / "run"


@pytest.fixture(scope="module")
def rescuable(tmp_path_factory):
    """A finished run on a model of 32 heads, of whose two needed ones the first can be rescued."""
    folder = tmp_path_factory.mktemp("rescuable")
    truth = write_planted(
        folder / "model", Planted(4, 8, needed=2, rescuers=1, strengths=(0.4, 0.2), seed=5)
    )
    study = Study(
        ModelOptions(str(folder / "model"), device="cpu"),
        str(folder / "model" / "planted.yaml"),
        settings=Settings(top=2, budget=1500, recall=0.99),
        controls=0,
        limit=50,
    )
    run_study(study, folder / "run")
    return truth, folder / "run"


def test_the_head_whose_absence_rescues_is_named_in_file_page_and_sentence(rescuable):
    truth, folder = rescuable
    ((rescuer, head),) = truth.rescuers.items()
    told = interactions(folder, most=2)
    assert set(told["breaking"]) == {str(head) for head in truth.needed}
    named = [row for row in told["interactions"] if row["meaning"].startswith("rescue")]
    # Without the rescuer margins are larger, so that the other head costs nothing either.
    assert {(*row["first"], *row["second"]) for row in named} == {
        (str(each), str(rescuer)) for each in truth.needed
    }
    (row,) = [row for row in named if row["first"] == [str(head)]]
    assert row["cost_alone"] == pytest.approx(0.4, abs=0.15) and row["q"] < 0.05
    assert row["cost_together"] == pytest.approx(0, abs=0.02)
    assert row["effect"] == pytest.approx(row["cost_alone"] - row["cost_together"])
    assert row["low"] < row["effect"] < row["high"]
    page = (folder / "report.html").read_text()
    for sentence in told["summary"]:
        assert f"{rescuer}'s absence rescues the answer" in sentence
        assert sentence.replace("'", "&#39;") in page
    assert told["summary"][0].startswith(f"Removing {head} alone costs {row['cost_alone']:.2f}; ")


def test_a_rescuer_is_judged_on_examples_that_did_not_pick_it(rescuable):
    """Its contrast is the truth's, on the examples of the contrasts less those of the screen."""
    truth, folder = rescuable
    told = interactions(folder, most=2)
    ((rescuer, head),) = truth.rescuers.items()
    study = FinishedRun.read(folder).study
    found, kept = study.drawn(600)
    assert len(kept) >= told["examples"] == 100
    gained = truth.right([head, rescuer]).astype(float) - truth.right([head])
    (row,) = [
        row
        for row in told["interactions"]
        if row["kind"] == "rescue"
        and row["first"] == [str(head)]
        and row["second"] == [str(rescuer)]
    ]
    assert row["effect"] == pytest.approx(gained[kept[:100]].mean())


def test_asked_again_nothing_is_measured(rescuable):
    _, folder = rescuable
    interactions(folder, most=2)
    counter = Counter()
    interactions(folder, most=2, progress=counter)
    assert counter.measured == 0


def test_a_small_budget_says_what_was_not_asked(rescuable):
    truth, folder = rescuable
    told = interactions(folder, most=2, budget=31)
    strong, weak = told["breaking"]
    assert strong == str(next(iter(truth.needed)))
    assert "rescues the answer" in told["summary"][0] or "no other head's" in told["summary"][0]
    assert told["summary"][1].startswith(
        f"{weak} alone takes a fifth of right answers or more; whether"
    )
    assert "--budget is too small" in told["summary"][1]


def sheet_of(outcomes, examples):
    """A sheet whose outcomes are known: 4 heads, `outcomes` by the columns cut."""
    known = {
        column_mask(4, columns).tobytes(): np.asarray(values, dtype=float)
        for columns, values in outcomes.items()
    }
    return Sheet(Problem(4, examples, Settings()), examples, known)


def rescued(outcomes, examples, rescue):
    """The one contrast of a rescue on a sheet that nothing is left to ask for."""
    (row,) = search([], contrast_rescues(sheet_of(outcomes, examples), [rescue]), Silent())
    return row


def test_a_rescue_of_log_probabilities_leaves_out_what_was_screened_and_what_is_unknown():
    outcomes = {
        (): [-1.0, -2.0, -1.5, -1.0, -1.2],
        (1,): [-9.0, -8.0, -7.0, np.nan, -6.0],
        (1, 3): [-1.0, -2.5, -1.0, -1.0, -2.0],
    }
    row = rescued(outcomes, [10, 11, 12, 13, 14], Rescue(1, (3,), (10, 99)))
    assert row["contrast"] == Contrast("rescue", (1,), (3,))
    assert row["effect"] == pytest.approx((5.5 + 6 + 4) / 3)
    assert row["cost_alone"] == pytest.approx((6 + 5.5 + 4.8) / 3)
    assert row["cost_together"] == pytest.approx((0.5 - 0.5 + 0.8) / 3)
    assert row["low"] < row["effect"] < row["high"] and row["p"] < 0.05


def test_a_rescue_of_two_answers_is_no_proof():
    """Of right and wrong answers few may change: two of two brought back come by chance."""
    outcomes = {(): [1, 1], (1,): [0, 0], (1, 3): [1, 1]}
    row = rescued(outcomes, [0, 1], Rescue(1, (3,), (7,)))
    assert row["effect"] == 1 and row["p"] > 0.05
    row = rescued(outcomes, [0, 1], Rescue(1, (3,), (0, 1)))
    assert np.isnan(row["effect"]) and np.isnan(row["cost_alone"])


@pytest.mark.slow
def test_the_backup_of_a_found_head_is_named(planted):
    truth, folder = planted
    told = interactions(folder, most=3, examples=100)
    ((backup, pair),) = truth.backups.items()
    assert set(told["heads"]) == {str(head) for head in truth.needed}
    assert str(backup) in told["stand_ins"]
    named = {
        (row["first"][0], row["second"][0])
        for row in told["interactions"]
        if row["kind"] == "backup" and len(row["first"]) == 1 and row["meaning"].startswith("back")
    }
    assert named == {(str(pair.behind), str(backup))}


@pytest.mark.slow
def test_heads_whose_costs_add_up_have_no_interaction(planted):
    """Costs are shares of the examples that add up, as long as there is something left to lose."""
    _, folder = planted
    told = interactions(folder, most=3, examples=100)
    between = [row for row in told["interactions"] if row["kind"] == "pair"]
    assert len(between) == 3
    assert all(abs(row["effect"]) < 0.03 for row in between)
    assert json.loads((folder / "interactions.json").read_text()) == told


def test_a_run_without_heads_has_nothing_to_combine(planted, tmp_path):
    _, folder = planted
    result = json.loads((folder / "result.json").read_text())
    for name in ("result.json", "run.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "result.json").write_text(json.dumps(result | {"top": []}))
    with pytest.raises(UserError, match="named no head"):
        interactions(tmp_path)
    with pytest.raises(BadOption, match="--most must be 1 or more; got 0"):
        interactions(folder, most=0)


def test_contrasts_are_of_pairs_stand_ins_and_groups():
    grid = HeadGrid((4, 4), (2, 2))
    assert [c.first + c.second for c in pairs([0, 3, 5])] == [(0, 3), (0, 5), (3, 5)]
    assert [(c.first, c.second) for c in behind([1, 2], [7])] == [
        ((1,), (7,)),
        ((2,), (7,)),
        ((1, 2), (7,)),
    ]
    # 0 and 1 are a whole group: nothing is left of it to compare with.
    assert [(c.first, c.second) for c in groups(grid, [0, 1, 6])] == [((6,), (7,))]


def test_interactions_are_told_by_their_sign_and_only_beyond_doubt():
    grid = HeadGrid((3,))
    rows = [
        {"contrast": Contrast(kind, (0,), (1,)), "effect": effect, "low": 0.0, "high": 0.0, "p": p}
        for kind, effect, p in (
            ("pair", -0.3, 1e-6),
            ("backup", -0.3, 1e-6),
            ("pair", 0.3, 1e-6),
            ("rescue", 0.3, 1e-6),
            ("rescue", -0.3, 1e-6),
            ("rescue", 0.3, 0.4),
            ("pair", -0.3, 0.4),
            ("pair", np.nan, np.nan),
        )
    ]
    told = [row["meaning"].split(":")[0] for row in describe_contrasts(rows, grid)]
    assert sorted(told[:5]) == ["backup", "no rescue", "overlap", "rescue", "synergy"]
    assert told[5:] == ["no interaction beyond doubt"] * 3
