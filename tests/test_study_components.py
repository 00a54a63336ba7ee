"""Key-value groups and layers knocked out, from the search to the result and what follows it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from caploc.components import Heads, find_grid
from caploc.declaration import ModelOptions
from caploc.errors import BadOption
from caploc.evaluation import Evaluation, curve, evaluate
from caploc.export import Export
from caploc.finished import FinishedRun
from caploc.interactions import interactions
from caploc.measurement import Meters
from caploc.options import Settings, TaskOptions
from caploc.progress import Silent
from caploc.search.plan import Plan
from caploc.store import Store
from caploc.study import run_study
from caploc.universal import Trials, find_universal
from caploc.verdict import make_card
from doubles import planted_study
from worlds.planted import Planted, write_planted

PLAN = Planted(8, 8, needed=2, strengths=(0.4, 0.3), sharing=2, seed=1)
GRID = Heads((8,) * 8, (2,) * 8)
KINDS = ("groups", "layers")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted") / "model"
    return folder, write_planted(folder, PLAN)


def study_of(folder, kind, method="scan", **settings):
    settings = {"top": 2, "masks": 40, "rate": 0.2} | settings
    return planted_study(
        folder, "other", method=method, components=kind, settings=Settings(**settings),
        controls=3, limit=40,
    )  # fmt: skip


def needed(truth, kind):
    """Name the components that hold the needed heads, which differ."""
    grid = find_grid(kind, GRID)
    names = {str(grid.component(column)) for column in grid.owners[GRID.mask(truth.needed)]}
    assert len(names) == 2
    return names


@pytest.fixture(scope="module")
def found(planted, tmp_path_factory):
    folder, _ = planted
    return {
        kind: run_study(study_of(folder, kind), tmp_path_factory.mktemp(kind) / "run")
        for kind in KINDS
    }


@pytest.mark.slow  # whole studies
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", ["set", "specific"])
def test_sets_are_sought_among_components(planted, tmp_path, kind, goal):
    folder, truth = planted
    study = study_of(folder, kind, price=0.2)
    settings, sides = replace(study.settings, goal=goal), {}
    if goal == "specific":
        sides = {"spare": study.other_tasks, "other_tasks": (), "twins": ("none",)}
    study = replace(study, settings=settings, **sides)
    result = run_study(replace(study, quick=True), tmp_path / "run").result
    assert set(result.top) == needed(truth, kind)
    sets = result.validation.frontier.sets if goal == "specific" else []
    assert all(find_grid(kind, GRID).columns(each.heads) for each in sets)


@pytest.mark.slow  # whole studies
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_about_components_from_the_map_to_the_card(planted, found, kind):
    _, truth = planted
    result, grid = found[kind].result, find_grid(kind, GRID)
    assert set(result.top) == needed(truth, kind) and result.grid.components == kind
    assert {each.head for each in result.heads} == {*map(str, grid.components)}
    effects = {each.head: each for each in result.heads}
    intact = truth.accuracy()
    for name in result.top:
        lost = truth.accuracy(GRID.named_in([name])) - intact
        assert effects[name].low - 1e-9 <= lost <= effects[name].high + 1e-9
    checks = result.validation
    assert checks.controls.scores and checks.controls.mean > checks.held_out.knocked_out
    assert [each.head for each in checks.members.heads] == result.top
    assert f"of {grid.size} {grid.COMPONENT.KIND}s of" in repr_of(result)
    page = found[kind].report.read_text()
    assert all(name in page for name in result.top)
    written = json.loads((found[kind].folder / "result.json").read_text())
    assert written["grid"]["components"] == kind and written["grid"]["heads"] == [8] * 8


def repr_of(result):
    from caploc.report.card import write_text

    return write_text(make_card(result), width=200)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_components_are_those_of_their_heads(planted, tmp_path, kind):
    folder, _ = planted
    model = ModelOptions(str(folder), device="cpu")
    (task,) = model.tasks([str(folder / "planted.yaml")], TaskOptions())
    grid, random = find_grid(kind, GRID), np.random.default_rng(0)
    masks = random.random((6, grid.size)) < 0.2
    with Store(tmp_path / "rows.sqlite") as store:
        engine = model.engine()
        parts, heads = (Meters(engine, store, components=each) for each in (kind, "heads"))
        assert parts.grid == grid and heads.grid == Meters(engine, store).grid == GRID
        once = parts.meter(task).measure(Plan.crossed(task.name, masks, range(5)), Silent(), "")
        cut = GRID.mask(())[None] | np.stack([GRID.mask(grid.named(mask)) for mask in masks])
        again = heads.meter(task)
        assert not again.planned(Plan.crossed(task.name, cut, range(5)))[1]
        assert again.measure(Plan.crossed(task.name, cut, range(5)), Silent(), "") == once


@pytest.mark.slow  # whole studies
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_run_takes_its_components(planted, found, tmp_path, kind):
    folder, truth = planted
    run, top = found[kind].folder, found[kind].result.top
    drawn = curve(run, most=2)
    assert drawn.heads == list(top)
    pair = interactions(run, examples=20)
    assert pair["heads"] == top and pair["interactions"][0]["kind"] in ("pair", "backup")
    edited = tmp_path / "edited"
    model = ModelOptions("")
    export = Export.find(str(run), model, 1, None, kind="checkpoint", target=edited)
    done = export.write()
    assert [str(each) for each in done.heads] == top[:1]
    card = (edited / "README.md").read_text()
    heads = [str(head) for head in GRID.named_in(top[:1])]
    assert json.loads((edited / "heads.json").read_text())["heads"] == heads
    assert heads[0] in card
    asked = Evaluation(ModelOptions(str(edited), device="cpu"), (), (str(folder / "planted.yaml"),))
    assert evaluate(asked, tmp_path / "evaluated").tasks[0].intact.score == pytest.approx(
        truth.accuracy(GRID.named_in(top[:1]))
    )


@pytest.mark.slow  # whole studies
def test_universal_components_are_tried_as_such(planted, found, tmp_path):
    folder, _ = planted
    other = replace(study_of(folder, "groups"), task=str(folder / "other.yaml"), other_tasks=())
    run_study(replace(other, quick=True), tmp_path / "other")
    runs = [FinishedRun.read(found["groups"].folder), FinishedRun.read(tmp_path / "other")]
    critical = runs[0].result.model_copy(
        update={"search": runs[0].result.search.model_copy(update={"critical": ["L0G1"]})}
    )
    trials = Trials([replace(runs[0], result=critical), runs[1]], {}, 20)
    told = find_universal(trials, tmp_path / "universal")
    assert [each["head"] for each in told["candidates"]] == ["L0G1"]
    layers = FinishedRun.read(found["layers"].folder)
    with pytest.raises(Exception, match="different kinds of components"):
        Trials([layers, runs[1]], {}).check()


def test_a_model_without_groups_is_refused_before_it_is_loaded(tmp_path):
    write_planted(tmp_path / "model", Planted(2, 4, needed=1, examples=100))
    for said, study in (
        ("no key-value groups", study_of(tmp_path / "model", "groups")),
        ("--top 3 is more than the 2 layers", study_of(tmp_path / "model", "layers", top=3)),
    ):
        with pytest.raises(BadOption, match=said):
            study.check(study.model.check())
