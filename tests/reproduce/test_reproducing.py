"""The command's whole work on the small preset: cold, warm, stopped in the middle, and refused."""

import json
import shutil
import sqlite3
import weakref
from pathlib import Path

import pytest
from labs import SMALL, Measured, written
from typer.testing import CliRunner

from caploc.cli import app
from caploc.errors import BadData, BadOption, FolderTaken, RunFailed, UnknownName, UserError
from caploc.progress import Silent
from caploc.reproduce import laboratory, reproduce
from caploc.reproduce.laboratory import open_laboratory
from caploc.reproduce.preset import Preset
from caploc.workbench import ModelOptions
from worlds import DEMO

pytestmark = pytest.mark.slow  # whole studies


def contents(folder: Path) -> dict[str, bytes]:
    """Every exhibit's file, and the index. A PDF lists its fonts in any order: its head must do."""
    kinds = {".md", ".csv", ".tex", ".pdf", ".png"}
    files = [path for path in folder.iterdir() if path.suffix in kinds]
    return {p.name: p.read_bytes()[: 4 if p.suffix == ".pdf" else None] for p in files}


def test_every_exhibit_is_there_with_real_numbers(ran):
    names = {path.split(".")[0] for path in contents(ran.folder)}
    assert names == {*ran.exhibits, "index"}
    index = (ran.folder / "index.md").read_text()
    assert "    caploc reproduce all\n" in index
    for exhibit in ran.exhibits.values():
        assert f"## {exhibit.title}" in index
        assert (exhibit.draw is not None) == (ran.folder / f"{exhibit.name}.png").exists()
    (grid,) = ran.exhibits["table1"].rows
    assert [str(cell) for cell in grid] == ["demo", "6", "16", "48", "96"]
    table = ran.exhibits["table4"]
    for row in table.rows:
        short = any(f"{row[1]} found 0 of 3 heads for {row[0]} " in note for note in table.notes)
        assert (row[2].number is None) == short and row[-1].number > 0


def test_figures_agree_with_tables(ran):
    """The same question has one answer, wherever it stands."""
    curve = ran.exhibits["fig2"]
    steps = [row for row in ran.exhibits["table6"].rows if row[0] == "Addition"]
    place = curve.columns.index("Addition")
    for before, after in zip(steps, curve.rows, strict=False):
        assert before[3].number == after[place].number
    (last,) = [r for r in ran.exhibits["table2"].rows if r[2] == "Addition"]
    assert last[3].number == steps[-1][4].number
    assert last[3].number == pytest.approx(steps[0][3].number - steps[-1][3].number)


def test_a_second_run_measures_nothing_and_writes_the_same(ran, tmp_path, few_fresh):
    before, progress = contents(ran.folder), Measured()
    folder = shutil.copytree(ran.folder, tmp_path / "copy")
    for name in before:
        (folder / name).unlink()
    reproduce(ran.preset, ["all"], folder, progress, command="caploc reproduce all")
    assert contents(folder) == before
    assert progress.rows == 0


def test_a_run_that_was_stopped_goes_on_where_it_was(ran, tmp_path, few_fresh, monkeypatch):
    """Nothing is asked twice, and the result is that of one run."""
    part = ran.preset.narrowed(["Addition", "Recall", "Sentences"], [], None)
    whole, progress = tmp_path / "stopped", Measured()
    score_both, calls = laboratory.score_both, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RunFailed("the machine gave up")
        return score_both(*arguments)

    monkeypatch.setattr(laboratory, "score_both", failing)
    with pytest.raises(RunFailed):
        reproduce(part, ["table6"], whole, progress)
    before = progress.rows
    assert before > 0 and not (whole / "table6.md").exists()
    (resumed,) = reproduce(part, ["table6"], whole, progress)
    with sqlite3.connect(whole / "rows.sqlite") as rows:
        assert rows.execute("SELECT count(*) FROM rows").fetchone() == (progress.rows,)
    assert before < progress.rows
    at_once = [row for row in ran.exhibits["table6"].rows if row[0] in ("Addition", "Recall")]
    assert resumed.rows == at_once


def test_the_first_table_needs_a_configuration_alone(tmp_path, no_model):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(Path(DEMO, "config.json"), bare)
    preset = Preset.model_validate(written(model=[{"label": "bare", "name": str(bare)}]))
    (table,) = reproduce(preset, ["table1"], tmp_path / "run")
    assert [str(cell) for cell in table.rows[0]] == ["bare", "6", "16", "48", "96"]
    with pytest.raises(UserError, match="has no weights"):
        reproduce(preset, ["table2"], tmp_path / "run")


def test_data_is_read_from_the_files_named(tmp_path, no_model):
    asked = ["reproduce", "table2", "--preset", str(SMALL), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*asked, "--data", "Addition:test=nowhere.jsonl"])
    assert isinstance(result.exception, BadData) and "nowhere.jsonl" in str(result.exception)


def test_a_folder_of_another_preset_is_refused(ran, no_model):
    other = Preset.model_validate(written())
    with pytest.raises(FolderTaken) as error:
        reproduce(other, ["table1"], ran.folder)
    assert "reproduce 'small', not 'planted'" in str(error.value)


YAML = """
task: mine
dataset_path: json
test_split: test
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: ["a", "b"]
doc_to_target: "{{a}}"
metric_list:
  - metric: acc
"""


def test_a_metric_that_is_better_when_lower_is_refused(tmp_path):
    (tmp_path / "own.yaml").write_text(YAML + "    higher_is_better: false\n")
    (tmp_path / "test.jsonl").write_text('{"q": "x", "a": 0}\n' * 3)
    content = written()
    data = {"test": str(tmp_path / "test.jsonl")}
    content["benchmark"][0] |= {"task": str(tmp_path / "own.yaml"), "data": data}
    preset = Preset.model_validate(content)
    with (
        open_laboratory(preset, tmp_path / "run", Silent(), "") as lab,
        pytest.raises(BadOption, match="Benchmark Add: acc of .* is better when lower"),
    ):
        lab.task(preset.models[0], preset.benchmarks[0], preset.benchmarks[0].task)


@pytest.mark.parametrize(("chatting", "times"), [(False, 1), (True, 2)])
def test_a_prompt_in_a_models_own_format_is_no_other_models(tmp_path, monkeypatch, chatting, times):
    models = [{"label": label, "name": DEMO} for label in "ab"]
    preset = Preset.model_validate(written(model=models))
    monkeypatch.setattr(laboratory, "wants_chat_template", lambda name: chatting)
    with open_laboratory(preset, tmp_path / "run", Silent(), "") as lab:
        tasks = {id(lab.task(m, preset.benchmarks[0], "demo/addition")) for m in preset.models}
    assert len(tasks) == times


def stop(found: object) -> None:
    raise RunFailed(str(found))


def test_the_model_before_makes_room_before_the_next_is_read(tmp_path, monkeypatch):
    models = [{"label": label, "name": DEMO, "device": "cpu"} for label in "ab"]
    preset = Preset.model_validate(written(model=models))
    with open_laboratory(preset, tmp_path / "run", Silent(), "") as lab:
        first, second = preset.models
        add = preset.benchmarks[0]
        lab.score(first, add, first.grid.components[:1], limit=2)
        before = weakref.ref(lab.bench(first).engine.loaded.model)
        monkeypatch.setattr(ModelOptions, "engine", lambda self: stop(before() is None))
        with pytest.raises(RunFailed, match="True"):
            lab.bench(second)


@pytest.mark.parametrize(
    ("changes", "names", "said"),
    [
        ({}, ["table2", "fig9"], ["There is no table or figure 'fig9'."]),
        ({"model": [{"label": "x", "name": "/no/where"}]}, ["all"], ["no folder '/no/where'"]),
        (
            {
                "model": [{"label": "x", "name": DEMO, "dtype": "float3"}],
                "search": [
                    {"label": "CSS", "method": "css", "rate": 0.001},
                    {"label": "S", "method": "css-search", "rates": [0.002]},
                ],
            },
            ["all"],
            ["no dtype 'float3'"],
        ),
        (
            {
                "search": [
                    {"label": "CSS", "method": "css", "rate": 0.001},
                    {"label": "S", "method": "css-search", "rates": [0.002]},
                ]
            },
            ["all"],
            ["--rate 0.001 of 96 heads is less than one", "--rates 0.002 of 96 heads is less"],
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(tmp_path, no_model, changes, names, said):
    preset = Preset.model_validate(written(**changes))
    with pytest.raises(UserError) as error:
        reproduce(preset, names, tmp_path / "run")
    assert all(part in str(error.value) for part in said)
    assert not (tmp_path / "run").exists()


def test_unknown_tasks_are_told_all_at_once(tmp_path, no_model):
    content = written()
    for benchmark in content["benchmark"][:2]:
        benchmark["task"] += "s"
    with pytest.raises(UnknownName) as error:
        reproduce(Preset.model_validate(content), ["all"], tmp_path / "run")
    assert "'demo/additions'" in str(error.value) and "'demo/sortings'" in str(error.value)


def test_the_command_prints_the_tables_and_the_page(tmp_path, no_model):
    arguments = ["reproduce", "table1", "--preset", str(SMALL), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "key-value heads" in done.output
    assert done.output.strip().endswith(f"Written: {tmp_path / 'run' / 'index.md'}")
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [exhibit["name"] for exhibit in told] == ["table1"]


def test_a_preset_of_ones_own_names_its_folder(tmp_path, monkeypatch, no_model):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["reproduce", "table1", "--preset", str(SMALL)]).exit_code == 0
    assert (tmp_path / "runs" / "reproduce-small" / "table1.tex").exists()
