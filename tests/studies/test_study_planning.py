"""Plans: rows are counted as a run would ask for them, shared ones once."""

import json
import re
import sqlite3
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from caploc.contents import Curve, read_file
from caploc.cost import Cost
from caploc.errors import FolderTaken, StoreFailed
from caploc.folder import claim
from caploc.heads import HeadGrid
from caploc.models import loading
from caploc.progress import Silent
from caploc.search import Settings
from caploc.store import UNKNOWN, Question, Row, Store, stored_rows
from caploc.studies import dry_run, foresee, planning, run_studies
from caploc.studies.planning import DryRunMeter, KnownRows, Pace, measure_pace
from caploc.study import ELSEWHERE, Study, held_back, run_study
from caploc.validation import Check
from caploc.validation.frontier import OFFERED
from caploc.validation.members import drop_idle_members
from caploc.workbench import ModelOptions, Workbench

CSS = Study(
    model=ModelOptions("demo"),
    task="demo/recall",
    method="css",
    settings=Settings(masks=4, rate=0.05, top=2),
    examples=5,
    controls=0,
    limit=5,
)


def counted(plan, name):
    """Rows of a study: to be measured, stored, shared."""
    (study,) = [each for each in plan.studies if each.study == name]
    return study.rows, study.stored, study.shared


def test_rows_are_those_that_the_method_asks_for(tmp_path):
    """Masks on the examples, the whole task's first ones before and after, and the check's."""
    plan = dry_run({"a": CSS}, tmp_path, seconds=None)
    rows, stored, shared = counted(plan, "a")
    search, final, check = 5 + 4 * 5, 2 * 5, 5 * (2 + 2)
    assert search < rows <= search + final + check
    assert (stored, shared) == (0, 0)
    assert not list(tmp_path.iterdir())


QUESTIONS = [Question("print", "float32", task, "1", "metric") for task in ("a", "b")]


def stored(path):
    """A store of two rows of each question."""
    with Store(path) as store:
        for question in QUESTIONS:
            number = store.question_id(question)
            made = [Row(b"\x80", f"e{n}", n, 1.0, 1.0, "[]", 5.0, 6, 0.1) for n in (0, 1)]
            store.add(number, made)
    return path


def spoil(path, statement, *values):
    with sqlite3.connect(path) as database:
        database.execute(statement, values)
    database.close()


@pytest.mark.parametrize("text", [json.dumps("lost"), "{", "[" * 100_000, "null", b"\x00\x01"])
def test_a_question_whose_text_is_lost_stops_no_plan(tmp_path, text):
    path = stored(tmp_path / "rows.sqlite")
    spoil(path, "UPDATE questions SET question = ? WHERE id = 1", text)
    lost, sound = QUESTIONS
    assert len(stored_rows(path, lost)) == 2  # its digest is there
    assert len(stored_rows(path, sound)) == 2
    assert stored_rows(path, replace(lost, dtype=UNKNOWN)) == {}
    assert len(stored_rows(path, replace(sound, dtype=UNKNOWN))) == 2


@pytest.mark.parametrize("damage", ["outcome = 0.0", "item = '{'"])
def test_a_row_that_is_not_what_was_written_is_told_before_the_run(tmp_path, damage):
    path = stored(tmp_path / "rows.sqlite")
    spoil(path, f"UPDATE rows SET {damage} WHERE question = 1 AND number = 1")
    with pytest.raises(StoreFailed, match="a row is not what was written.*--repair"):
        stored_rows(path, QUESTIONS[0])
    assert len(stored_rows(path, QUESTIONS[1])) == 2


@pytest.mark.slow
def test_the_rows_of_the_curve_are_planned_as_they_are_asked(tmp_path):
    """Of the task itself the check has asked them; of the other one each further head is new."""
    settings = Settings(top=4, seed=1)  # of its four heads three are named
    study = replace(CSS, method="one-shot", settings=settings, other_tasks=("demo/code",))
    studies = {"whole": study, "quick": replace(study, quick=True)}
    planned = {
        name: dry_run({"a": each}, tmp_path / name, seconds=None).total()["rows"]
        for name, each in studies.items()
    }
    ran = {name: run_study(each, tmp_path / name).result for name, each in studies.items()}
    drawn = read_file(tmp_path / "whole" / "curve.json", Curve)
    more = (len(drawn.heads) - 1) * study.limit
    assert ran["whole"].cost.rows - ran["quick"].cost.rows == more > 0
    offered = 1 + OFFERED  # sets that may be scored on the other task
    assert planned["whole"] - planned["quick"] == (3 + offered) * study.limit >= more
    assert planned["whole"] >= ran["whole"].cost.rows


@pytest.mark.slow
def test_what_two_studies_need_is_counted_once(tmp_path):
    twin = replace(CSS, method="one-shot")
    alone = dry_run({"b": twin}, tmp_path, seconds=None)
    both = dry_run({"a": CSS, "b": twin}, tmp_path, seconds=None)
    rows, _, shared = counted(both, "b")
    assert rows + shared == counted(alone, "b")[0]
    assert shared >= 10  # the intact rows of search and check
    same = dry_run({"a": CSS, "b": CSS}, tmp_path, seconds=None)
    assert counted(same, "b")[0] == 0 and counted(same, "b")[2] == counted(same, "a")[0]
    assert both.total()["rows"] == counted(both, "a")[0] + rows


@pytest.mark.slow
def test_an_adaptive_search_is_reckoned_to_the_end_of_its_budget(tmp_path):
    study = replace(CSS, method="adaptive", settings=Settings(budget=400), examples=60)
    rows, _, _ = counted(dry_run({"a": study}, tmp_path, seconds=None), "a")
    # the budget, the intact rows, and the checks on examples of which 5 heads are named
    assert 400 + 60 <= rows <= 400 + 60 + 5 * (2 + 5) + 600


@pytest.mark.slow
def test_a_study_that_cannot_be_is_told_with_its_reason_and_the_others_are_planned(tmp_path):
    plan = dry_run({"a": replace(CSS, examples=9999), "b": CSS}, tmp_path, seconds=None)
    assert "between 1 and" in plan.studies[0].failure
    assert plan.studies[1].failure is None and plan.studies[1].rows > 0


def test_tasks_that_studies_only_check_are_timed_once(tmp_path, monkeypatch):
    timed = []

    def pace(meter, wanted, seconds, progress):
        timed.append(meter.task.name)
        return Pace(1.0, 1.0, 2.0, 2.0, len(wanted))

    monkeypatch.setattr(planning, "measure_pace", pace)
    one = replace(CSS, other_tasks=("demo/code", "demo/prose"))
    studies = {
        "a": one,
        "b": replace(one, method="one-shot"),
        "c": replace(one, settings=replace(one.settings, seed=1)),
    }
    plan = dry_run(studies, tmp_path)
    # the searches of a and b ask in their own ways; c searches as a does
    assert sorted(timed) == ["demo/code", "demo/prose", "demo/recall", "demo/recall"]
    assert all(study.seconds >= study.rows for study in plan.studies)


@pytest.mark.slow
def test_a_plan_is_kept_by_the_run_and_a_finished_run_leaves_nothing_to_plan(tmp_path):
    studies = {"a": CSS, "b": replace(CSS, method="one-shot"), "c": replace(CSS, task="demo/code")}
    studies["d"] = replace(CSS, method="adaptive", settings=Settings(budget=400), examples=60)
    plan = dry_run(studies, tmp_path, seconds=0.5)
    assert not list(tmp_path.iterdir())
    ran = run_studies(studies, tmp_path, command="caploc run many.toml")
    assert not ran.failed
    with sqlite3.connect(tmp_path / "rows.sqlite") as database:
        (stored,) = database.execute("SELECT count(*) FROM rows").fetchone()
    expected = plan.total()
    assert 0.5 * expected["rows"] < stored <= expected["rows"]
    used = sum(outcome.result.cost.rows for outcome in ran.outcomes)
    assert used > stored  # rows that several studies need
    assert expected["tokens"] > 0 and expected["seconds"] > 0 and expected["memory"] > 2**27
    again = dry_run(studies, tmp_path, seconds=0.5)
    assert all(study.finished for study in again.studies)
    assert again.total()["rows"] == 0


@pytest.mark.slow
def test_rows_that_lie_there_are_not_planned_again(tmp_path):
    run_studies({"a": CSS}, tmp_path, command="caploc run many.toml")
    (tmp_path / "a" / "result.json").unlink()
    rows, stored, _ = counted(dry_run({"a": CSS}, tmp_path, seconds=None), "a")
    assert rows == 0 and stored > 25


def test_rows_of_a_calibration_are_counted_once_where_only_intact_ones_are_open(tmp_path):
    engine = ModelOptions("demo", device="cpu").engine()
    (task,) = CSS.model.tasks([CSS.task], CSS.options)
    known = KnownRows(tmp_path / "rows.sqlite", 2)
    wanted = DryRunMeter(known, 96, task, QUESTIONS[0], Cost())
    wanted.fresh = [(np.zeros(96, dtype=bool), example) for example in range(4)]

    def paced(name):
        with Store(tmp_path / f"{name}.sqlite") as store:
            meter = Workbench(engine, store).meter(task)
            return measure_pace(meter, wanted.fresh, 60.0, Silent())

    pace = paced("intact")
    assert pace.rows == 4
    assert pace.knocked_out == pace.intact > 0
    wanted.fresh.append((np.eye(96, dtype=bool)[0], 2))
    assert paced("cut").rows == 5


class Watched(Silent):
    """What a run says of the whole, and of the heads found so far."""

    def __init__(self):
        self.expected, self.told, self.measured = [], [], 0

    def expect(self, rows, work):
        self.expected.append((self.measured, rows))

    def weigh(self, weight): ...

    def tell(self, text):
        self.told.append(text)

    def advance(self, rows, tokens):
        self.measured += rows if tokens else 0


def test_a_run_says_beforehand_what_it_will_measure_and_again_when_its_search_ends(tmp_path):
    watched = Watched()
    found = run_study(CSS, tmp_path, watched, foresee=foresee)
    (before, whole), (searched, checks) = watched.expected
    foretold = whole - 5 - 4 * 5
    assert watched.told[0] == (
        "demo/recall in demo: a search among 96 heads with up to 20 rows (as its budget "
        f"counts them) and 5 of the intact model, then up to {foretold:,} rows of checks."
    )
    assert f"the search has ended: its checks take up to {checks:,} rows." in watched.told
    assert before == 0 and searched == 5 + 4 * 5 and 0 < checks <= foretold
    assert watched.measured <= searched + checks and found.result.cost.rows == watched.measured
    again = Watched()
    run_study(CSS, tmp_path, again, foresee=foresee)
    assert again.measured == 0 and again.expected[0] == (0, 0)


def test_a_quicker_dtype_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "FEW", 0)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    first, again = Watched(), Watched()
    for watched in (first, again):
        run_study(CSS, tmp_path, watched, foresee=foresee)
    assert "--dtype bfloat16" in first.told[1]
    assert not any("--dtype" in text for text in again.told)  # these rows are float32's


@pytest.mark.parametrize("heads", [(3, 40), (1, 50, 95), (1, 2, 3, 4, 90)])
def test_pretended_checks_drop_no_head_of_a_set_whatever_their_luck(tmp_path, heads):
    """A set with fewer heads would be checked with fewer rows."""
    (task,) = CSS.model.tasks([CSS.task], CSS.options)
    known = KnownRows(tmp_path / "rows.sqlite", 2)
    for luck in range(100):
        question = replace(QUESTIONS[0], model=f"print {luck}")
        meter = DryRunMeter(known, 96, task, question, Cost())
        meter.need(heads)
        check = Check(meter, HeadGrid((16,) * 6), range(20), True, 0, 0, Silent())
        assert drop_idle_members(check, heads) == list(heads)


@pytest.mark.slow
def test_checks_of_a_set_are_no_more_than_foreseen(tmp_path):
    """Three heads of a layer are named, of which a random draw has many more than of one."""
    watched = Watched()
    settings = Settings(top=5, budget=2000, goal="set")
    study = replace(CSS, task="demo/capitals", method="adaptive", settings=settings, limit=None)
    study = replace(study, examples=None, controls=20, quick=True).check()
    found = run_study(study, tmp_path, watched, foresee=foresee)
    (_, _), (searched, checks) = watched.expected
    assert watched.measured <= searched + checks
    cost = found.result.cost
    (intact,) = re.findall(r"and ([\d,]+) of the intact model", watched.told[0])
    assert cost.intact_rows <= int(intact.replace(",", ""))
    assert cost.rows - cost.search_rows <= checks


def test_checks_are_foreseen_also_where_few_rows_confirm_no_head(tmp_path):
    settings = Settings(top=2, budget=200)
    study = replace(CSS, method="adaptive", settings=settings, controls=20, quick=True).check()
    masks, controls, examples = 30, 20, 5
    rows = foresee(study, study.tasks(), tmp_path)
    assert rows.checks >= masks * examples + controls * examples
    assert (rows.search, rows.work > 0) == (200, True)


def test_every_example_that_a_search_may_ask_the_intact_model_is_foreseen(tmp_path):
    """Those that it finds heads on, those that check its first heads, and some of other tasks."""
    settings = Settings(top=2, budget=200, opening="masks")
    study = replace(CSS, method="adaptive", settings=settings, examples=40, limit=None)
    study = replace(study, other_tasks=("demo/sentences", "demo/code"), twins=("none",)).check()
    tasks = study.tasks()
    examples, kept = study.drawn(tasks[0].size)
    fresh = kept[len(held_back(kept)) :]
    assert len(fresh) > 0
    intact = len(examples) + len(fresh) + 2 * ELSEWHERE
    assert foresee(study, tasks, tmp_path).intact == intact


def test_a_folder_of_another_study_is_refused_before_anything_is_promised(tmp_path):
    claim(tmp_path, asdict(replace(CSS, method="csb")), "").close()
    watched = Watched()
    with pytest.raises(FolderTaken, match="belongs to another run"):
        run_study(CSS, tmp_path, watched, foresee=foresee)
    assert not watched.told


def test_a_search_tells_its_first_heads_whenever_they_change(tmp_path):
    watched = Watched()
    study = replace(CSS, method="adaptive", settings=Settings(top=2, budget=400), quick=True)
    run_study(study, tmp_path, watched, foresee=foresee)
    best = [text for text in watched.told if text.startswith("so far: L")]
    assert best and len(set(best)) == len(best)
    assert all(text.count(" to ") == 2 and text.endswith(" points") for text in best)
