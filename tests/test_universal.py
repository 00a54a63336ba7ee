"""Universal heads, on a model where they are known."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from caploc.cli.options import parse_families
from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.options import Settings
from caploc.pairs import name_task
from caploc.result import Model, Search
from caploc.study import run_study
from caploc.tasks.task import Metric
from caploc.universal import Trials, check_direction, find_universal, leave_out_universal
from doubles import planted_study, write_lines
from worlds.planted import Planted, write_planted


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is kept with a model is kept here."""
    monkeypatch.setenv("CAPLOC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Runs on both tasks of a model with two needed heads and a universal one."""
    folder = tmp_path_factory.mktemp("planted")
    truth = write_planted(
        folder / "model", Planted(4, 8, needed=2, strengths=(0.4, 0.3), universal=1, seed=5)
    )
    for name in ("planted", "other"):
        study = planted_study(
            folder / "model",
            task=name,
            method="one-shot",
            settings=Settings(top=4),
            examples=20,
            controls=0,
            limit=20,
        )
        run_study(study, folder / name)
    return truth, [FinishedRun.read(folder / name) for name in ("planted", "other")]


def test_the_universal_head_is_named_and_taken_out(planted, tmp_path):
    truth, runs = planted
    told = find_universal(Trials(runs, {}, examples=40), tmp_path)
    (head,) = map(str, truth.universal)
    assert told["universal"] == [head]
    first, _ = told["tasks"]
    assert (first["examples"], first["intact"]) == (40, pytest.approx(1.0, abs=0.1))
    assert head in first["top"] and head not in first["own"]
    assert {str(needed) for needed in truth.needed} <= set(first["own"])
    trials = {
        t["task"]: t for t in next(c for c in told["candidates"] if c["head"] == head)["trials"]
    }
    assert all(trial["share"] > 0.9 and trial["needed"] for trial in trials.values())
    assert json.loads((tmp_path / "universal.json").read_text()) == told
    study = replace(runs[0].study, exclude=(str(tmp_path / "heads.json"),))
    again = study.check(study.model.check())
    assert again.exclude == (head,)


def test_two_answers_lost_of_two_make_no_head_universal(planted, tmp_path):
    """They all change alike, which leaves no spread to judge by."""
    truth, runs = planted
    told = find_universal(Trials(runs, {}, examples=2), tmp_path)
    (head,) = map(str, truth.universal)
    trials = next(c for c in told["candidates"] if c["head"] == head)["trials"]
    assert trials and all(t["effect"] == -1 and not t["needed"] for t in trials)


def test_a_family_speaks_once(planted, tmp_path):
    _, runs = planted
    twins = {run.study.task: "both" for run in runs}
    told = find_universal(Trials(runs, twins, examples=40), tmp_path)
    assert told["universal"] == []


def test_one_task_or_an_unknown_family_is_refused(planted, tmp_path):
    _, runs = planted
    with pytest.raises(UserError, match="two or more runs, each of another task"):
        find_universal(Trials(runs[:1], {}), tmp_path)
    with pytest.raises(UserError, match="each of another task"):
        find_universal(Trials([runs[0], runs[0]], {}), tmp_path)
    with pytest.raises(BadOption, match="--family names gsm8k, which is no run's task"):
        find_universal(Trials(runs, {"gsm8k": "math"}), tmp_path)
    with pytest.raises(BadOption, match="--examples must be 2 or more; got 1"):
        find_universal(Trials(runs, {}, examples=1), tmp_path)


def test_pairs_are_one_task_in_every_run_and_go_by_their_file(planted, tmp_path):
    _, runs = planted
    file = write_lines(tmp_path / "sums.jsonl", [
        {"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(12)
    ])  # fmt: skip
    made = [name_task(str(file), tmp_path / name) for name in ("first", "second")]
    both = [
        replace(run, study=replace(run.study, task=task))
        for run, task in zip(runs, made, strict=False)
    ]
    for name in (str(file), "sums", made[1]):
        trials = Trials([both[0], runs[1]], {name: "sums"})
        trials.check()
        assert trials.kinds == {made[0]: "sums"}
    with pytest.raises(UserError, match="each of another task"):
        Trials(both[:2], {}).check()


def test_runs_without_a_head_in_common_have_nothing_to_try(planted, tmp_path):
    _, runs = planted
    tops = (["L0H0"], ["L0H1"])
    apart = [
        replace(run, result=run.result.model_copy(update={"top": top, "search": Search()}))
        for run, top in zip(runs, tops, strict=True)
    ]
    told = find_universal(Trials(apart, {}, examples=10), tmp_path)
    assert told["candidates"] == told["universal"] == []
    assert [task["own"][0] for task in told["tasks"]] == ["L0H0", "L0H1"]


def test_a_metric_that_is_better_when_lower_is_refused():
    task = SimpleNamespace(name="wiki", metric=Metric("perplexity", higher_is_better=False))
    with pytest.raises(BadOption, match="perplexity of wiki is better when lower"):
        check_direction([task])


def test_a_model_that_changed_is_refused(planted, tmp_path):
    _, runs = planted
    other = [
        replace(r, result=r.result.model_copy(update={"model": Model(name="other")})) for r in runs
    ]
    with pytest.raises(UserError, match="has changed since the run in"):
        find_universal(Trials(other, {}, examples=10), tmp_path)


def test_heads_that_follow_take_the_place_of_universal_ones(planted):
    _, (first, _) = planted
    top = first.result.top
    kept = leave_out_universal(first, [top[0]])
    assert kept["own"][: len(top) - 1] == top[1:]
    assert len(kept["own"]) <= len(top)


def test_families_are_read_from_options():
    assert parse_families(["math=gsm8k, arithmetic", "code=mbpp"]) == {
        "gsm8k": "math",
        "arithmetic": "math",
        "mbpp": "code",
    }
    with pytest.raises(BadOption, match="NAME=TASK,TASK; got 'math'"):
        parse_families(["math"])
