"""Options: what each takes, what is said of a wrong one, and how records are built from names."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from caploc import options
from caploc.declaration import ModelOptions, Study, check_read, with_general_task
from caploc.errors import BadOption, UnknownName, UserError
from caploc.options import Mode, Settings, TaskOptions, Workers, build, flags

WRONG = [
    (Settings, {"rate": 0.0}, "--rate must be greater than 0; got 0.0."),
    (Settings, {"rate": 2}, "--rate must be less than 1; got 2."),
    (Settings, {"rate": "some"}, "--rate must be a valid number, unable"),
    (Settings, {"masks": 0}, "--masks must be greater than or equal to 1; got 0."),
    (Settings, {"top": -2}, "--top must be greater than or equal to 1; got -2."),
    (Settings, {"seed": -1}, "--seed must be greater than or equal to 0; got -1."),
    (Settings, {"price": 0.0}, "--price must be greater than 0; got 0.0."),
    (Settings, {"goal": "all"}, "There is no --goal 'all'. Known: heads, set, specific."),
    (Settings, {"estimator": "laso"}, "There is no estimator 'laso'. Did you mean 'lasso'?"),
    (Settings, {"masks": 10**12}, "--masks must be less than or equal to 100000"),
    (Settings, {"budget": 10**30}, "--budget must be less than or equal to 10"),
    (Settings, {"mask_counts": (1, 10**12)}, "--mask-counts must be less than or equal to 100000"),
    (Settings, {"seed": 10**30}, "--seed must be less than or equal to 92"),
    (Settings, {"mask_counts": ()}, "--mask-counts must have at least 1 item"),
    (
        Settings,
        {"mask_counts": (0, 10)},
        "--mask-counts must be greater than or equal to 1; got 0.",
    ),
    (Settings, {"mask_counts": (20, 10)}, "--mask-counts must be numbers that rise"),
    (Settings, {"rates": (0.1, 0.1)}, "--rates must be numbers that rise"),
    (Settings, {"rates": (0.0, 0.1)}, "--rates must be greater than 0; got 0.0."),
    (Settings, {"tap": 1}, "There is no option 'tap'. Did you mean 'top'?"),
    (
        ModelOptions,
        {"name": "m", "batch_size": 0},
        "--batch-size must be greater than or equal to 1; got 0.",
    ),
    (ModelOptions, {"name": "m", "device": "gpu"}, "There is no device 'gpu'; choose auto, cpu,"),
    (ModelOptions, {"name": "m", "backend": "page"}, "There is no engine 'page'."),
    (TaskOptions, {"fewshot": -1}, "--fewshot must be greater than or equal to 0; got -1."),
    (TaskOptions, {"outcome": "loss"}, "There is no --outcome 'loss'. Known: logprob, metric."),
    (Mode, {"name": "median"}, "There is no mode 'median'. Did you mean 'mean'?"),
    (Mode, {"corrupted": "demo/code"}, "--corrupted is for --mode patch; got --mode zero."),
    (Mode, {"name": "patch"}, "--mode patch needs --corrupted TASK"),
    (Study, {"model": ModelOptions("m"), "task": "t", "limit": 0}, "--limit must be greater"),
    (Study, {"model": ModelOptions("m"), "task": "t", "controls": -1}, "--controls must be"),
    (Study, {"model": ModelOptions("m"), "task": "t", "examples": 0}, "--examples must be"),
    (
        Study,
        {"model": ModelOptions("m"), "task": "t", "leave_out": 1},
        "--leave-out must be less than 1; got 1.",
    ),
    (Study, {"model": ModelOptions("m"), "task": "t", "method": "csss"}, "Did you mean 'css'"),
    (Study, {"model": ModelOptions("m")}, "--task is missing."),
]


def test_a_record_of_an_option_goes_where_the_option_belongs():
    made = build(Study, {"model": "smollm2", "task": "words/past", "workers": Workers(2)})
    assert made.model.workers == Workers(2) and made.model.name == "smollm2"


@pytest.mark.parametrize(("kind", "given", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_means_nothing_is_refused_with_the_value_and_what_is_allowed(kind, given, said):
    with pytest.raises(UserError) as refused:
        kind(**given)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(BadOption) as refused:
        build(Study, {"model": "m", "task": "t", "top": 0, "fewshot": "few"})
    assert "--top must be" in str(refused.value) and "--fewshot must be" in str(refused.value)


def test_a_change_is_checked_too():
    with pytest.raises(BadOption, match="--top must be greater than or equal to 1; got 0"):
        replace(Settings(), top=0)


def test_a_study_is_built_from_names_as_they_are_typed():
    said = {"model": "m", "task": "t", "top": "3", "also": ["a"], "engine": "plain"}
    said |= {"rates": ["0.1", "0.2"], "mode": "mean", "fewshot": "2", "quick": True}
    study = build(Study, said)
    assert study.model == ModelOptions("m", backend="plain") and study.mode == Mode("mean")
    assert study.settings == Settings(top=3, rates=(0.1, 0.2))
    assert study.options.fewshot == 2 and study.other_tasks == ("a",) and study.quick


def test_every_name_leads_to_a_field_and_back():
    study = Study(ModelOptions("m"), "t")
    for name, flag in flags(Study).items():
        value = asdict(study)
        for part in flag.place:
            value = value[part]
        assert name == flag.name and (flag.option.help or name in ("training", "workers"))


def test_paths_are_seen_from_where_they_are_named(tmp_path):
    (tmp_path / "own.yaml").touch()
    said = {"model": "m", "task": "own.yaml", "also": ("own.yaml", "b"), "data": {"test": "x.csv"}}
    study = build(Study, said, tmp_path)
    own = str(tmp_path / "own.yaml")
    assert (study.task, study.other_tasks) == (own, (own, "b"))
    assert study.options.data == {"test": str(tmp_path / "x.csv")}


@pytest.mark.parametrize("text", ["test", "=x.jsonl", "test="])
def test_data_are_split_and_file(text):
    with pytest.raises(BadOption, match="SPLIT=FILE"):
        options.parse_data([text], Path())


def test_an_option_that_nobody_reads_is_refused():
    for said, method, goal, read in (
        ({"rate": 0.1}, "scan", "heads", "--rate is for --method css, csb; got --method scan,"),
        ({"rates": "1"}, "css", "heads", "for --method css-search, csb-search"),
        ({"goal": "set"}, "css", "set", "--goal is for --method scan; got --method css"),
        ({"price": 0.1}, "scan", "heads", "--price is for --goal specific; got --goal heads."),
    ):
        with pytest.raises(BadOption, match=read):
            check_read(said, method, goal)
    check_read({"goal": "set"}, "scan", "set")


def test_a_general_task_goes_with_every_other_unless_none_is_asked_for():
    assert with_general_task({"task": "words/past"})["also"] == ("words/copy",)
    assert with_general_task({"task": "words/past", "also": ()})["also"] == ()
    assert with_general_task({"task": "gsm8k"})["also"] == ("words/copy",)
    more = with_general_task({"task": "words/past", "also": ("words/plural",)})
    assert more["also"] == ("words/plural", "words/copy")
    assert with_general_task({"task": "gsm8k", "also": more["also"]})["also"] == more["also"]
    assert with_general_task({"task": "words/copy"})["also"] == ()
    assert "also" not in with_general_task({"task": "words/past", "mode": "patch"})


def test_an_unknown_name_of_many_is_told_with_the_nearest():
    with pytest.raises(UnknownName, match="no option 'spar'. Did you mean 'spare'"):
        build(Study, {"model": "m", "task": "t", "spar": ("a",)})
