"""Studies run together: rows shared, failures apart, resumed, stopped by a signal."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from caploc.components import AMONG
from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption, FolderTaken, StoreFailed
from caploc.folder import package_versions
from caploc.models import placement
from caploc.options import Settings
from caploc.progress import Silent
from caploc.result import (
    Estimand,
    GridShape,
    LocatedTask,
    MethodSettings,
    Model,
    Result,
    TaskComparison,
    Validation,
)
from caploc.store import folder_lock
from caploc.studies import run_studies
from caploc.studies.running import finished, located
from caploc.study import run_study
from doubles import Watcher
from worlds import DEMO

CSS = Study(
    model=ModelOptions(DEMO),
    task="demo/recall",
    method="css",
    settings=Settings(masks=4, rate=0.05, top=2),
    examples=5,
    controls=0,
    limit=5,
)
FILE = f"""
models = [{{name = "{DEMO}", label = "demo"}}]
tasks = ["demo/recall", "demo/addition"]
methods = [{{name = "css", masks = 40, rate = 0.05}}, "one-shot"]
settings = {{examples = 12, controls = 2, limit = 20}}
"""
UNSTEADY = {"seconds", "forward_tokens"}


def steady(result):
    """A result without what hangs on which rows ran together, and on the command."""
    content = result if isinstance(result, dict) else result.as_dict()
    kept = {k: v for k, v in content.items() if k != "command"}
    return kept | {"cost": {k: v for k, v in kept["cost"].items() if k not in UNSTEADY}}


def test_a_folder_of_another_process_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))
    code = (
        "import sys; from pathlib import Path; from caploc.store import folder_lock\n"
        "lock = folder_lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(FolderTaken, match="Another caploc process is running"):
        run_studies({"a": CSS}, tmp_path)
    holder.communicate(b"")
    folder_lock(tmp_path).release()


def test_one_failure_does_not_stop_the_others_and_a_full_disk_does(tmp_path, monkeypatch):
    """What a study raises is kept apart, unless no other could do better."""
    raised = {"a": BadOption("no"), "b": RuntimeError("CUDA error\nmore"), "c": BadOption("nor")}

    def raising(study, folder, *_, **__):
        raise raised[folder.name]

    monkeypatch.setattr("caploc.studies.running.run_study", raising)
    studies = dict.fromkeys("abc", CSS)
    found = dict(located(studies, tmp_path, Silent()))
    assert found == raised
    ran = run_studies(studies, tmp_path)
    said = [outcome.failure for outcome in ran.outcomes]
    assert said[0] == "no" and said[1].startswith("RuntimeError: CUDA error (a mistake of caploc's")
    assert "CUDA error\nmore" in (tmp_path / "b" / "failure.txt").read_text()
    assert len(ran.failed) == 3 and ran.report is None
    raised["b"] = StoreFailed("the disk is full")
    seen = []
    with pytest.raises(StoreFailed):
        for name, _ in located(studies, tmp_path, Silent()):
            seen.append(name)
    assert seen == ["a"]


def test_a_model_that_does_not_fit_fails_its_own_studies_only(tmp_path, monkeypatch):
    """A finished one stays finished, and takes no model."""
    written = {"study": asdict(CSS.check(CSS.model.check())), "command": ""}
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "run.json").write_text(json.dumps(written))
    result = Result(
        model=Model(name=DEMO),
        task=LocatedTask(name=CSS.task),
        method=MethodSettings(name="css"),
        grid=GridShape.of(CSS.model.check()),
        estimand=Estimand(heads=AMONG, top=AMONG),
        heads=[],
        top=[],
        validation=Validation(task=TaskComparison(name=CSS.task)),
        versions=package_versions(),
    )
    (tmp_path / "done" / "result.json").write_text(json.dumps(result.as_dict()))
    assert finished(tmp_path / "done", CSS) == result
    monkeypatch.setattr(placement, "free_memory", lambda device: 0)
    assert finished(tmp_path / "done", CSS) == result
    (outcome,) = run_studies({"open": CSS}, tmp_path / "more").outcomes
    assert "/demo take" in outcome.failure


@pytest.mark.slow
def test_each_study_finds_what_it_would_alone_and_shared_rows_are_measured_once(tmp_path):
    studies = {"a": CSS, "b": replace(CSS, method="one-shot"), "c": replace(CSS, examples=9999)}
    counter = Watcher()
    ran = run_studies(studies, tmp_path / "many", counter, command="caploc run many.toml")
    assert [outcome.failure is None for outcome in ran.outcomes] == [True, True, False]
    assert "between 1 and" in ran.outcomes[2].failure
    assert ran.report == tmp_path / "many" / "compare.html" and ran.report.is_file()
    for name in "ab":
        alone = run_study(studies[name], tmp_path / name, command="caploc locate demo")
        (there,) = [outcome for outcome in ran.outcomes if outcome.name == name]
        assert steady(there.result) == steady(alone.result)
        assert (tmp_path / "many" / name / "report.html").is_file()
    with sqlite3.connect(tmp_path / "many" / "rows.sqlite") as database:
        (stored,) = database.execute("SELECT count(*) FROM rows").fetchone()
    used = [outcome.result.cost.rows for outcome in ran.outcomes if outcome.result]
    assert counter.measured == stored < sum(used)
    again = Watcher()
    ran = run_studies(studies, tmp_path / "many", again, command="caploc run many.toml")
    assert again.measured == 0 and [outcome.earlier for outcome in ran.outcomes[:2]] == [True] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_with_its_code_and_the_same_command_finishes_it(
    tmp_path, number, code
):
    (tmp_path / "many.toml").write_text(FILE)
    arguments = [sys.executable, "-m", "caploc", "run", str(tmp_path / "many.toml"), "--out"]
    process = subprocess.Popen(
        [*arguments, str(tmp_path / "stopped"), "-q"], stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "stopped" / "rows.sqlite-wal"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 40_000):
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == code
    assert "What was measured is kept; the same command continues." in " ".join(said.split())
    for folder in ("stopped", "whole"):
        whole = [*arguments, str(tmp_path / folder), "-q"]
        done = subprocess.run(whole, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    names = sorted(path.parent.name for path in (tmp_path / "whole").glob("*/result.json"))
    assert len(names) == 4
    for name in names:
        results = [
            steady(json.loads((tmp_path / folder / name / "result.json").read_text()))
            for folder in ("stopped", "whole")
        ]
        assert results[0] == results[1]
    rows = []
    for folder in ("stopped", "whole"):
        with sqlite3.connect(tmp_path / folder / "rows.sqlite") as database:
            rows.append(
                database.execute(
                    "SELECT digest, mask, example, outcome, item, responses FROM rows "
                    "JOIN questions ON rows.question = questions.id ORDER BY 1, 2, 3"
                ).fetchall()
            )
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_run_on_a_disk_that_fills_up_is_finished_by_the_same_command(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=260k", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    arguments = [
        sys.executable, "-m", "caploc", "locate", DEMO, "--task", "demo/recall", "--method",
        "one-shot", "--examples", "12", "--controls", "2", "--limit", "20", "-q", "--out",
    ]  # fmt: skip
    try:
        stopped = subprocess.run(
            [*arguments, str(place / "run")], capture_output=True, text=True, check=False
        )
        assert stopped.returncode == 1
        said = " ".join(stopped.stderr.split())
        assert "ree disk space" in said and "same command again" in said, said
        assert not list(place.rglob("*.part"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        with sqlite3.connect(place / "run" / "rows.sqlite") as database:
            (kept,) = database.execute("SELECT count(*) FROM rows").fetchone()
        assert kept > 50
        for folder in (place / "run", tmp_path / "whole"):
            done = subprocess.run(
                [*arguments, str(folder)], check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        results, rows = [], []
        for folder in (place / "run", tmp_path / "whole"):
            results.append(steady(json.loads((folder / "result.json").read_text())))
            with sqlite3.connect(folder / "rows.sqlite") as database:
                rows.append(
                    database.execute(
                        "SELECT mask, example, outcome, item, responses FROM rows ORDER BY 1, 2"
                    ).fetchall()
                )
        assert results[0] == results[1] and rows[0] == rows[1]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
