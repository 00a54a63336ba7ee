"""Every experiment of CNL: the preset, the checklist, and one small run of everything."""

import csv
import json
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from labs import Measured

import worlds.contrasts  # noqa: F401  (the preset names its sets)
from caploc.cache import ArrayCache, Cache
from caploc.errors import BadData, CaplocError, UnknownName, UserError
from caploc.neurons.erasure import ACTIVE, LAYERS, LOCATED, OWN
from caploc.neurons.study import NeuronStudy
from caploc.report.exhibits import NOTHING
from caploc.reproduce.cnl import check_cnl_options, reproduce_cnl
from caploc.reproduce.cnl_preset import CnlPreset, read_cnl_preset
from caploc.reproduce.verdicts import NOT_KNOWN, ROWS, checklist, ends
from caploc.workbench import ModelOptions
from worlds import DEMO

SMALL = Path(__file__).parent / "cnl_small.toml"
DOCS = Path(__file__).parents[2] / "docs" / "cnl.md"


@pytest.fixture
def no_model_is_loaded(monkeypatch):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("a model was loaded"))


def changed(tmp_path, *changes):
    """The small preset with some lines of text changed, as a file."""
    text = SMALL.read_text().replace("../worlds/demo", DEMO)
    text = text.replace('"statements.jsonl"', f'"{SMALL.parent}/statements.jsonl"')
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "changed.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.usefixtures("as_if_fetched")
def test_the_real_preset_plans_the_default_command_and_the_controls():
    preset = read_cnl_preset("real")
    check_cnl_options(preset)
    study, asked, start = preset.study(None), preset.cuts(), preset.start
    assert study == NeuronStudy(ModelOptions("smollm2"), preset.tasks, judged=0)
    assert preset.share is None and set(preset.kinds) == set(preset.tasks)
    assert len(asked.tasks) == len({preset.kinds[task] for task in asked.tasks}) == 7
    assert asked.draws == 19 and asked.arms == (LOCATED, OWN, LAYERS, ACTIVE)
    assert asked.beside == (LOCATED, OWN) and set(asked.tasks) < set(preset.tasks)
    assert start.tasks == preset.tuning.tasks and start.options.fewshot == 1
    assert asked.kinds == preset.kinds
    for seed in preset.tuning.seeds:
        enhancing = preset.enhancing(seed)
        assert enhancing.recipe.seed == seed
        assert enhancing.arms == ("located", "random", "lora")


def test_every_mistake_of_form_is_named_at_once(tmp_path):
    path = changed(
        tmp_path,
        ('about = "CNL, small"\n', ""),
        ("subsets = 2", 'subsets = "two"'),
        ("draws = 5\n\n[kinds]", "draws = 3\n\n[kinds]"),
        ("extensions = 0", "extensions = 0\nspeed = 3"),
        ("items = 4", "items = 1"),
    )
    with pytest.raises(BadData) as refused:
        read_cnl_preset(path)
    places = "about is", "subsets Input", "draws Input", "tuning: ", "'speed'", "decoupling: items"
    for said in places:
        assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_mistake_of_meaning_is_named_at_once(tmp_path, no_model_is_loaded):
    path = changed(
        tmp_path,
        ('generic = "demo/prose"', 'generic = "demo/pros"'),
        ("least = 0.5", "least = 2.0"),
        ("share = 0.01", "share = 3.0"),
        ('others = ["activation"]', 'others = ["activatoin"]'),
        ("rates = [1e-2]", "rates = []"),
        ('"demo/elements" = "facts"', '"demo/sorting" = "facts"'),
        ('sets = ["' + str(SMALL.parent / "statements.jsonl") + '"]', 'sets = ["nowhere.jsonl"]'),
        ('sets = ["demo/sums"]', 'sets = ["demo/sum"]'),
    )
    with pytest.raises(CaplocError) as refused:
        reproduce_cnl(read_cnl_preset(path), tmp_path / "out")
    for said in (
        "'demo/pros'", "--least must be", "--share must be", "'activatoin'", "rates must be",
        "--kind names demo/sorting", "nowhere.jsonl", "'demo/sum'",
    ):  # fmt: skip
        assert str(refused.value).count(said) >= 1, said
    assert not (tmp_path / "out").exists()


def test_a_task_that_is_not_located_is_told_before_hours_are_spent(tmp_path, no_model_is_loaded):
    path = changed(tmp_path, ('compared = ["demo/addition"]', 'compared = ["demo/code"]'))
    with pytest.raises(CaplocError, match="scores.compared names demo/code; of `tasks`, no other"):
        reproduce_cnl(read_cnl_preset(path), tmp_path / "out")


@pytest.mark.parametrize("step", ["erased", "scored", "tuned"])
def test_steps_that_go_on_from_neurons_need_the_step_that_locates_them(tmp_path, step):
    path = changed(tmp_path, ("limit = 4", f'limit = 4\nsteps = ["{step}", "facts"]'))
    with pytest.raises(BadData, match=f'steps has {step} without "located"'):
        read_cnl_preset(path)


@pytest.mark.slow
def test_tuning_from_a_start_of_its_own_needs_no_other_step(tmp_path):
    path = changed(
        tmp_path,
        ("limit = 4", 'limit = 4\nsteps = ["tuned"]'),
        ("extensions = 0", "fewshot = 0\nextensions = 0\narms = ['located', 'random']"),
    )
    exhibits = reproduce_cnl(read_cnl_preset(path), tmp_path / "run", Measured())
    assert "verdict-tuning" in {each.name for each in exhibits}


def test_a_name_that_is_no_preset_and_text_that_is_no_toml(tmp_path):
    with pytest.raises(UnknownName, match="no preset 'papers'.*paper, real, or give the path"):
        read_cnl_preset("papers")
    (tmp_path / "bad.toml").write_text("about = ")
    with pytest.raises(UserError, match="bad.toml cannot be read as TOML"):
        read_cnl_preset(str(tmp_path / "bad.toml"))


def test_the_rows_of_the_checklist_are_numbered_in_order_and_say_what_to_type():
    assert [number for number, *_ in ROWS] == list(range(1, 23))
    for _, experiment, command, *_ in ROWS:
        assert command.startswith("neurons ") and experiment


def test_every_row_of_the_checklist_stands_in_the_docs():
    rows = [line.split(" | ") for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    told = {(row[0].removeprefix("| "), row[1], row[2]) for row in rows if len(row) > 3}
    assert {(str(number), *row[:2]) for number, *row in ROWS} <= told


def test_what_was_not_measured_is_a_dash():
    shown = checklist({"told": {}})
    assert len(shown.rows) == 22 and {row[3] for row in shown.rows} == {NOTHING}
    assert {len(row) for row in shown.rows} == {len(shown.columns)} == {5}


def test_only_figures_that_the_docs_list_are_called_published():
    docs = " ".join(DOCS.read_text().split())
    rows = {int(row[0]): row[4] for row in checklist({"told": {}}).rows}
    figures = {
        3: "2.6 %", 4: "1,000", 9: "1,000", 11: "S = 19", 12: "0.15 %", 13: "96.42 %",
    }  # fmt: skip
    words = {5, 10, 18}
    published = {row[0] for row in ROWS if len(row) > 4 and not row[4].startswith("none: ")}
    assert published == set(figures) | words
    for number, figure in figures.items():
        assert figure in rows[number] and figure in docs
    assert "sigma = 6" in rows[12] and "95.95 %" in rows[13] and "95.95 %" in docs
    for number in words:
        assert rows[number].endswith("(in words)") and not any(map(str.isdigit, rows[number]))
    for number in set(rows) - published:
        assert rows[number] == NOT_KNOWN or rows[number].startswith("none: ")


def test_an_end_that_is_not_known_is_no_end():
    assert ends([None, 2.0, float("nan"), 1.0]) == "1.00 to 2.00"
    assert ends([float("nan"), None]) == ends([]) == NOTHING


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The small preset, measured from nothing: its folder and exhibits."""
    folder = tmp_path_factory.mktemp("cnl") / "run"
    command = "caploc reproduce cnl --preset small"
    return folder, reproduce_cnl(read_cnl_preset(str(SMALL)), folder, Measured(), command=command)


@pytest.mark.slow
def test_every_row_of_the_checklist_is_filled(everything):
    _, (first, *_) = everything
    assert first.name == "checklist" and len(first.rows) == 22
    assert [row[0] for row in first.rows if row[3] == NOTHING] == []
    for row in first.rows:
        assert "nan" not in row[3].lower() and "None" not in row[3], row


@pytest.mark.slow
def test_every_exhibit_is_written_and_named_once(everything):
    folder, exhibits = everything
    names = Counter(exhibit.name for exhibit in exhibits)
    assert set(names.values()) == {1}
    for exhibit in exhibits:
        assert len(set(exhibit.columns)) == len(exhibit.columns), exhibit.name
        assert {len(row) for row in exhibit.rows} <= {len(exhibit.columns)}
        for ending in (".csv", ".md", ".tex", *([".pdf", ".png"] if exhibit.draw else [])):
            assert (folder / f"{exhibit.name}{ending}").stat().st_size > 0
        with (folder / f"{exhibit.name}.csv").open(newline="") as file:
            cells = list(csv.DictReader(file))
        assert len(cells) == len(exhibit.rows) * len(exhibit.columns)
        assert not {"nan", "None"} & {cell["value"] for cell in cells}
    index = (folder / "index.md").read_text()
    page = (folder / "report.html").read_text()
    places = [index.index(f"{exhibit.title}\n") for exhibit in exhibits if "_" not in exhibit.title]
    assert all(one < other for one, other in pairwise(places))
    assert page.count("<h2>") == len(exhibits) + 1
    for text in (index, page):
        assert "caploc reproduce cnl --preset small" in text
        assert "none of its tables" in " ".join(text.split())
    assert 'src="http' not in page and 'href="http' not in page


@pytest.mark.slow
def test_the_checklist_says_what_the_files_say(everything):
    folder, (first, *_) = everything
    rows = {int(row[0]): row[3] for row in first.rows}
    located = json.loads((folder / "neurons" / "neurons.json").read_text())
    layers = np.array([task["layers"] for task in located["tasks"]]).sum(axis=0)
    assert rows[21] == ", ".join(f"L{n} {count}" for n, count in enumerate(layers))
    assert f"cohesion {located['cohesion']['cohesion']:.3f}" in rows[15]
    erased = json.loads((folder / "neurons" / "erasure.json").read_text())["tasks"]
    beaten = sum(task["own"]["beats_every_layer_matched_draw"] for task in erased)
    assert rows[17].startswith(f"located cost more than every layer-matched draw for {beaten} of 2")


def stored(folder):
    """How many rows each store of a reproduction holds."""
    found = {}
    for path in sorted(folder.rglob("rows.sqlite")):
        with closing(sqlite3.connect(path)) as store:
            tables = store.execute("select name from sqlite_master where type = 'table'").fetchall()
            counts = [store.execute(f"select count(*) from {name}").fetchone()[0]
                      for (name,) in tables]  # fmt: skip
            found[str(path.relative_to(folder))] = sum(counts)
    return found


@pytest.mark.slow
def test_a_moved_folder_goes_on_and_nothing_is_measured_again(everything, monkeypatch):
    folder, exhibits = everything
    moved = folder.rename(folder.with_name("moved"))
    monkeypatch.setattr(Cache, "write", lambda *told: pytest.fail("measured again"))
    monkeypatch.setattr(ArrayCache, "keep", lambda *told: pytest.fail("scored again"))
    before, command = stored(moved), "caploc reproduce cnl --preset small"
    again = reproduce_cnl(read_cnl_preset(str(SMALL)), moved, Measured(), command=command)
    assert stored(moved) == before and sum(before.values()) > 0
    moved.rename(folder)
    assert [each.as_dict() for each in again] == [each.as_dict() for each in exhibits]


def test_the_papers_preset_names_the_kind_of_each_task():
    preset = read_cnl_preset("paper")
    assert set(preset.kinds) == set(preset.tasks)


class Killed(Measured):
    """Stops after some rows, as Ctrl-C would."""

    def advance(self, rows, tokens):
        super().advance(rows, tokens)
        if self.rows >= 60:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_reproduction_killed_while_it_erases_goes_on_and_repeats_nothing(tmp_path, monkeypatch):
    path = changed(
        tmp_path,
        ("share = 0.01\nlimit = 4", 'limit = 4\nsteps = ["located", "erased"]'),
        ("[tuning]", f"[erasing]\narms = {json.dumps([LOCATED, ACTIVE])}\n"
                     f"beside = {json.dumps([LOCATED])}\n\n[tuning]"),
    )  # fmt: skip
    preset, folder = read_cnl_preset(path), tmp_path / "run"
    killed, rest, again, whole = Killed(), Measured(), Measured(), Measured()
    with pytest.raises(KeyboardInterrupt):
        reproduce_cnl(preset, folder, killed)
    verdicts = json.loads((folder / "verdicts.json").read_text())
    assert "main" in verdicts and "erasure" not in verdicts
    scores = {each: each.stat().st_mtime_ns for each in folder.rglob("scores/*.npz")}
    exhibits = reproduce_cnl(preset, folder, rest)
    assert {each: each.stat().st_mtime_ns for each in scores} == scores and len(scores) > 2
    assert reproduce_cnl(preset, folder, again) and again.rows == 0
    unbroken = reproduce_cnl(preset, tmp_path / "whole", whole)
    assert killed.rows + rest.rows == whole.rows and rest.rows > 0
    assert [each.as_dict() for each in exhibits] == [each.as_dict() for each in unbroken]
    assert {each.name for each in exhibits} >= {"verdicts", "verdict-sets", "verdict-erasure"}


def test_the_small_preset_is_one(no_model_is_loaded):
    preset = read_cnl_preset(str(SMALL))
    check_cnl_options(preset)
    assert isinstance(preset, CnlPreset) and preset.draws == 5
