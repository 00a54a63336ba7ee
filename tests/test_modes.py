"""Modes of knocking out, from what a study says to rows, results and sentences."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.contents import TaskScores, read_file
from caploc.declaration import Allowed, ModelOptions, Study
from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.folder import EVALUATION, RESULT
from caploc.measurement import Meters
from caploc.modes import AVERAGED, POOL, Intervention
from caploc.options import Mode, Settings, TaskOptions
from caploc.playground.board import lay_out_run
from caploc.playground.chat import Chat
from caploc.progress import Silent
from caploc.result import Result
from caploc.store import Store
from caploc.study import run_study
from caploc.tables import evaluation_table
from caploc.tasks.catalog import load_task
from doubles import write_task_file
from worlds import DEMO

TASK = "demo/addition"


@pytest.fixture(scope="module")
def addition():
    return load_task(TASK, TaskOptions())


def write_tasks(folder):
    """A task of ten sums and its corrupted counterpart: another first digit, as many characters."""
    sums = [(a, b) for a in range(11, 16) for b in (22, 31)]
    return [
        str(
            write_task_file(
                folder, [{"q": f"{a + shift}+{b}=", "a": str(a + shift + b)} for a, b in sums], name
            )
        )
        for name, shift in (("clean", 0), ("corrupted", 30), ("longer", 100))
    ]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("pair"))


def study(mode, task=TASK, **more):
    settings = Settings(budget=400, top=2)
    return Study(
        ModelOptions(DEMO, device="cpu"), task, settings=settings, mode=mode, controls=1,
        limit=20, quick=True, **more,
    )  # fmt: skip


def test_every_mode_asks_a_question_of_its_own(addition):
    asked = {
        mode: [Intervention(Mode(mode), seed).sources(addition) for seed in (0, 0, 1)]
        for mode in ("zero", "mean", "resample")
    }
    assert asked.pop("zero") == [None] * 3
    questions = {mode: [each.question for each in every] for mode, every in asked.items()}
    for mode, (first, again, another) in questions.items():
        assert first.startswith(mode)
        assert first == again
        assert first != another
    assert Intervention(Mode("mean")).sources(addition).question == questions["mean"][0]


def test_a_mean_is_over_examples_of_the_task(addition):
    of = Intervention(Mode("mean")).sources(addition).of
    (source,) = of(0, addition.requests(0))
    prompts = {addition.requests(example)[0] for example in range(addition.size)}
    assert source.mean
    assert len(source.texts) == min(AVERAGED, addition.size)
    assert set(source.texts) <= prompts
    assert of(5, addition.requests(5)) == [source]


def test_no_example_is_resampled_from_itself(addition):
    of = Intervention(Mode("resample")).sources(addition).of
    taken = [of(example, addition.requests(example))[0].texts for example in range(300)]
    for example, (text,) in enumerate(taken):
        assert text != addition.requests(example)[0]
    assert len(set(taken)) == POOL
    again = Intervention(Mode("resample")).sources(addition.with_outcome("logprob")).of
    assert [again(example, [None])[0].texts for example in range(300)] == taken


def test_a_patch_takes_the_counterpart(pair):
    clean, corrupted, _ = (load_task(name, TaskOptions()) for name in pair)
    sources = Intervention(Mode("patch", pair[1]), 0, corrupted).sources(clean)
    assert sources.question.startswith("patch of ")
    (source,) = sources.of(3, clean.requests(3))
    assert source.texts == tuple(corrupted.requests(3))


def rows_under(engine, store, task, mode, corrupted=None):
    bench = Meters(engine, store, intervention=Intervention(mode, 0, corrupted))
    mask = np.arange(engine.grid.size) % 4 == 0
    rows = bench.meter(task).under(mask, range(8), Silent(), "rows")
    return bench, [row.outcome for row in rows]


def test_rows_of_one_mode_are_never_those_of_another(tmp_path, pair):
    clean, corrupted, _ = (load_task(name, TaskOptions()) for name in pair)
    engine, likelihood = ModelOptions(DEMO, device="cpu").engine(), clean.with_outcome("logprob")
    modes = [Mode(), Mode("mean"), Mode("resample"), Mode("patch", pair[1])]
    with Store(tmp_path / "rows.sqlite") as store:
        found = [rows_under(engine, store, likelihood, mode, corrupted)[1] for mode in modes]
        assert len({tuple(each) for each in found}) == len(modes)
        for mode, before in zip(modes, found, strict=True):
            again = Meters(engine, store, intervention=Intervention(mode, 0, corrupted))
            meter = again.meter(likelihood)
            assert len(meter.known) == 8
            meter.ask = None  # nothing may be asked again
            mask = np.arange(engine.grid.size) % 4 == 0
            rows = meter.under(mask, range(8), Silent(), "rows")
            assert [row.outcome for row in rows] == before


@pytest.mark.parametrize(
    "mode",
    ["resample", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("mean", "patch"))],
)
def test_a_study_goes_through_in_every_mode_and_comes_out_of_its_rows_again(tmp_path, pair, mode):
    if mode == "patch":
        asked = study(Mode("patch", pair[1]), pair[0])
    else:
        asked = study(Mode(mode), pair[0], other_tasks=("demo/sentences",))
    found = run_study(asked, tmp_path / "run")
    result = read_file(tmp_path / "run" / RESULT, Result)
    assert result.method.mode == mode
    report = found.report.read_text()
    assert {"mean": "its mean over", "resample": "on another example", "patch": "corrupted prompt"}[
        mode
    ] in report
    run = FinishedRun.read(tmp_path / "run")
    assert run.study.mode == asked.mode
    talk = Chat.of(tmp_path / "run", "L0H5", 4, Allowed()).opening()
    assert "hand on zero" in talk and "hand on zero" in lay_out_run(run)["remarks"][-1]
    with pytest.raises(UserError):  # another mode is another study
        run_study(replace(asked, mode=Mode()), tmp_path / "run")


def test_other_tasks_have_no_corrupted_prompts(pair):
    asked = study(Mode("patch", pair[1]), pair[0], other_tasks=("demo/code",))
    with pytest.raises(BadOption, match="none for demo/code"):
        asked.check(asked.model.check())


def test_counterparts_are_counted_and_measured_before_the_model_is_loaded(tmp_path, pair):
    with pytest.raises(BadOption, match="of 10 of 10 examples the corrupted"):
        run_study(study(Mode("patch", pair[2]), pair[0]), tmp_path / "run")
    with pytest.raises(BadOption, match="must be the counterpart of example n"):
        run_study(study(Mode("patch", "demo/addition"), pair[0]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def told(*words):
    return CliRunner().invoke(app, [*words, "--device", "cpu"])


def test_the_command_line_takes_modes_and_weights_can_only_hand_on_zero(tmp_path, pair):
    run = str(tmp_path / "run")
    words = ("--method", "one-shot", "--examples", "2", "--limit", "4", "--controls", "0")
    asked = ("locate", DEMO, "--task", pair[0], "--mode", "mean", "--out", run)
    found = told(*asked, *words, "--quick", "--json")
    assert json.loads(found.stdout)["method"]["mode"] == "mean"
    for kind in ("checkpoint", "heads"):
        words = ("--as", kind, "--heads", "L0H5", "--to", str(tmp_path / kind))
        refused = str(told("export", run, *words).exception)
        assert ("made with --mode mean" in refused) == (kind == "checkpoint")
        assert (tmp_path / kind).exists() == (kind == "heads")
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    (tmp_path / "run" / RESULT).write_text(json.dumps(result | {"top": ["L0H5"]}))
    told("export", run, "--as", "heads", "--to", str(tmp_path / "named"))
    assert (
        "Nothing here was measured with the heads at zero"
        in (tmp_path / "named" / "README.md").read_text()
    )


def test_evaluate_takes_modes(tmp_path):
    scores, titles = {}, []
    for mode in ("zero", "mean"):
        words = ("--heads", "L0H5,L1H3,L0H14", "--task", TASK, "--limit", "4", "--json")
        out = str(tmp_path / mode)
        said = told("evaluate", DEMO, *words, "--mode", mode, "--out", out).stdout
        scores[mode] = json.loads(said)["tasks"][0]
        table = evaluation_table(read_file(tmp_path / mode / EVALUATION, TaskScores))
        titles.append(table[2])
    assert [f"(--mode {mode})" in titles[n] for n, mode in enumerate(scores)] == [False, True]
    assert scores["zero"]["intact"] == scores["mean"]["intact"]


def test_the_corrupted_tasks_examples_are_its_own_where_the_tasks_are_said(pair, tmp_path):
    lines = [{"q": f"{n}+{n}=", "a": str(2 * n)} for n in range(10, 20)]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = TaskOptions(data={"test": str(tmp_path / "other.jsonl")})
    asked = study(Mode("patch", pair[1]), pair[0], options=options)
    (clean, *_), corrupted = asked.tasks().values(), asked.intervention().corrupted
    assert clean.requests(0)[0].prompt == "10+10="
    assert corrupted.requests(0) == load_task(pair[1], TaskOptions()).requests(0)


def test_copies_have_no_counterpart_of_their_own(pair, tmp_path):
    lines = [{"q": "11+22=", "a": "33"}] * 2
    tasks = [load_task(str(write_task_file(tmp_path, lines, name))) for name in ("one", "other")]
    with pytest.raises(BadOption, match="example 1 of .* repeats an earlier one"):
        Intervention(Mode("patch", tasks[1].name), 0, tasks[1]).check_pairs(tasks[0], lambda: None)
