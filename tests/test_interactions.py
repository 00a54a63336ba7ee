"""Heads together: pairs, backups and groups, on a model whose backups were planted."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.components import Heads
from caploc.errors import BadOption, UserError
from caploc.interactions import (
    Contrast,
    behind,
    describe_contrasts,
    groups,
    interactions,
    pairs,
)
from caploc.options import Settings
from caploc.study import run_study
from doubles import Watcher, planted_study
from worlds.planted import Planted, write_planted


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A finished run on a model of 32 heads with three needed ones, one of which has a backup."""
    folder = tmp_path_factory.mktemp("planted")
    truth = write_planted(
        folder / "model",
        Planted(4, 8, needed=3, backups=1, strengths=(0.3, 0.2, 0.15), examples=300, seed=3),
    )
    settings = Settings(top=3, budget=2000)
    study = planted_study(folder / "model", settings=settings, controls=0, limit=50)
    run_study(study, folder / "run")
    return truth, folder / "run"


def test_so_few_examples_that_all_may_be_alike_are_refused(tmp_path):
    with pytest.raises(BadOption, match="--examples must be 10 or more to tell contrasts; got 3"):
        interactions(tmp_path, examples=3)


@pytest.mark.slow
def test_asked_again_nothing_is_measured(planted):
    _, folder = planted
    interactions(folder, most=2)
    counter = Watcher()
    interactions(folder, most=2, progress=counter)
    assert counter.measured == 0


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


def test_the_command_prints_what_it_wrote(planted):
    _, folder = planted
    done = CliRunner().invoke(app, ["interactions", str(folder), "--most", "2", "--examples", "20"])
    assert done.exit_code == 0, done.output
    assert f"Written: {folder / 'interactions.json'}" in done.output
    assert "contrast (95 %)" in done.output and "out of reach" in done.output


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
    grid = Heads((4, 4), (2, 2))
    assert [c.first + c.second for c in pairs([0, 3, 5])] == [(0, 3), (0, 5), (3, 5)]
    assert [(c.first, c.second) for c in behind([1, 2], [7])] == [
        ((1,), (7,)),
        ((2,), (7,)),
        ((1, 2), (7,)),
    ]
    # 0 and 1 are a whole group: nothing is left of it to compare with.
    assert [(c.first, c.second) for c in groups(grid, [0, 1, 6])] == [((6,), (7,))]
    assert not [*groups(grid, [0, 1, 6], excluded=[7])]


def test_interactions_are_told_by_their_sign_and_only_beyond_doubt():
    grid = Heads((3,))
    rows = [
        {"contrast": Contrast(kind, (0,), (1,)), "effect": effect, "low": 0.0, "high": 0.0, "p": p}
        for kind, effect, p in (
            ("pair", -0.3, 1e-6),
            ("backup", -0.3, 1e-6),
            ("pair", 0.3, 1e-6),
            ("pair", -0.3, 0.4),
            ("pair", np.nan, np.nan),
        )
    ]
    told = [row["meaning"].split(":")[0] for row in describe_contrasts(rows, grid)]
    assert sorted(told[:3]) == ["backup", "overlap", "synergy"]
    assert told[3:] == ["no interaction beyond doubt"] * 2
