"""Studies run together: rows shared, failures apart, resumed, stopped by a signal."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from caploc.declaration import ModelOptions
from caploc.errors import BadOption, FolderTaken, Stopped, StoreFailed
from caploc.folder import package_versions
from caploc.models import placement
from caploc.progress import Silent
from caploc.result import (
    GridShape,
    Result,
)
from caploc.store import folder_lock
from caploc.studies import run_studies
from caploc.studies.running import finished, located
from caploc.study import run_study
from doubles import QUICKEST as CSS
from doubles import Watcher, count_rows, least_result, steady


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


def test_a_failure_does_not_stop_the_others_and_a_full_disk_or_a_signal_does(tmp_path, monkeypatch):
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
    for last in (StoreFailed("the disk is full"), Stopped("Ctrl-C")):
        raised["b"], seen = last, []
        with pytest.raises(type(last)):
            for name, _ in located(studies, tmp_path, Silent()):
                seen.append(name)
        assert seen == ["a"]


def test_a_model_that_does_not_fit_fails_its_own_studies_only(tmp_path, monkeypatch):
    """A finished one stays finished, and takes no model."""
    written = {"study": asdict(CSS.check(CSS.model.check())), "command": ""}
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "run.json").write_text(json.dumps(written))
    grid = CSS.model.check()
    parts = {"versions": package_versions(), "grid": vars(GridShape.of(grid))}
    result = Result.model_validate(least_result(CSS.task, **parts))
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
    stored = count_rows(tmp_path / "many")
    used = [outcome.result.cost.rows for outcome in ran.outcomes if outcome.result]
    assert counter.measured == stored < sum(used)
    again = Watcher()
    ran = run_studies(studies, tmp_path / "many", again, command="caploc run many.toml")
    assert again.measured == 0 and [outcome.earlier for outcome in ran.outcomes[:2]] == [True] * 2
