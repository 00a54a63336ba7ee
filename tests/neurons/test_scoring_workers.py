"""Studies of neurons with workers: here they share one model of this process."""

import json
import sys
from dataclasses import dataclass, replace
from functools import cache

import pytest
from small_runs import MODEL, STUDY, lasting, quick

from caploc.errors import UserError
from caploc.models.loading import load_model
from caploc.neurons.locating import locate
from caploc.neurons.options import NeuronStudy
from caploc.neurons.scoring import ScoringRecipe, ScoringReplica, ScoringWorkers
from caploc.neurons.study import read_study
from caploc.progress import Silent
from caploc.workers import Workers, ray_backend
from caploc.workers.distributed import ModelIdentity
from worlds import DEMO


class Noting(Silent):
    """Notes what is expected and done; Ctrl-C after so many examples."""

    def __init__(self, after=None):
        self.expected, self.done, self.after = [], 0, after

    def start(self, what, rows):
        self.expected.append(rows)

    def advance(self, rows, tokens):
        self.done += rows
        if self.after is not None and self.done >= self.after:
            raise KeyboardInterrupt


@dataclass
class HerePool:
    """A pool whose one worker answers in this process, the last chunk first."""

    replica: ScoringReplica
    closed: bool = False

    def identify(self):
        loaded = demo()
        grid = self.replica.open(loaded, None)
        return ModelIdentity(loaded.name, loaded.fingerprint, loaded.dtype, "cpu", grid, "0")

    def map(self, method, chunks):
        for number, chunk in reversed(list(enumerate(chunks))):
            yield number, getattr(self.replica, method)(chunk)

    def close(self):
        self.closed = True


@cache
def demo():
    """The demo model, loaded once."""
    return load_model(DEMO, device="cpu")


@pytest.fixture
def by_workers(monkeypatch):
    """A study of the demo model whose workers are in this process; the pools that were made."""
    pools = []

    def scoring(options, prepare):
        recipe = ScoringRecipe(options.loading(), options.batch_size, prepare=prepare)
        pools.append(HerePool(ScoringReplica(recipe)))
        return ScoringWorkers(pools[-1])

    monkeypatch.setattr("caploc.neurons.study.start_workers", scoring)
    monkeypatch.setattr(ray_backend, "check_workers", lambda workers, device: None)
    with quick():
        yield replace(STUDY, model=replace(MODEL, workers=Workers(3))), pools


def refuse(*told, **options):
    raise AssertionError("weights were loaded by the command itself")


def files(folder):
    return {path.name: path.read_bytes() for path in (folder / "scores").iterdir()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same study without workers: its folder, and what it found."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    with quick():
        return folder, locate(STUDY, folder)[0]


def test_workers_find_the_neurons_of_one_process_which_loads_no_weights(
    by_workers, alone, tmp_path, monkeypatch
):
    study, pools = by_workers
    demo()
    monkeypatch.setattr("caploc.models.loading.load_model", refuse)
    progress = Noting()
    result, _ = locate(study, tmp_path / "run", progress)
    assert lasting(result) == lasting(alone[1])
    assert files(tmp_path / "run").keys() == files(alone[0]).keys()
    assert progress.expected == [24] and progress.done == 24
    assert [pool.closed for pool in pools] == [True]


def test_a_run_begun_here_is_finished_by_workers_and_the_other_way_round(
    by_workers, alone, tmp_path
):
    study, _ = by_workers
    with pytest.raises(KeyboardInterrupt):
        locate(STUDY, tmp_path / "here first", Noting(after=12))
    begun = len(files(tmp_path / "here first"))
    assert 0 < begun < len(files(alone[0]))
    progress = Noting()
    result, _ = locate(study, tmp_path / "here first", progress)
    assert lasting(result) == lasting(alone[1])
    assert progress.expected == [24 - 6 * begun]

    study = replace(study, model=replace(MODEL, workers=Workers(1)))
    with pytest.raises(KeyboardInterrupt):
        locate(study, tmp_path / "workers first", Noting(after=12))
    assert 0 < len(files(tmp_path / "workers first")) < len(files(alone[0]))
    result, _ = locate(STUDY, tmp_path / "workers first")
    assert lasting(result) == lasting(alone[1])
    assert files(tmp_path / "workers first").keys() == files(alone[0]).keys()


def test_a_finished_run_is_opened_without_its_workers(by_workers, tmp_path):
    study, _ = by_workers
    locate(study, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["study"]["model"]["workers"]
    assert read_study(tmp_path / "run")[0] == STUDY


def test_erasing_is_done_by_the_command_once_workers_are_gone(by_workers, tmp_path, monkeypatch):
    study, pools = by_workers
    loaded = []

    def load(**told):
        loaded.append(pools[0].closed)
        return demo()

    monkeypatch.setattr("caploc.models.loading.load_model", load)
    result, _ = locate(replace(study, judged=2), tmp_path / "run")
    assert loaded == [True]
    assert all(task.erased for task in result.tasks)


def test_workers_with_another_model_than_the_runs_are_refused(by_workers, tmp_path, monkeypatch):
    study, _ = by_workers
    locate(study, tmp_path / "run")
    other = replace(demo(), fingerprint="another")
    monkeypatch.setattr(sys.modules[__name__], "demo", lambda: other)
    with pytest.raises(UserError, match="has changed since neurons were located"):
        locate(study, tmp_path / "run")


def test_mistakes_are_refused_before_workers_are_started(monkeypatch):
    monkeypatch.setattr("caploc.neurons.study.start_workers", refuse)
    monkeypatch.setattr("caploc.workers.ray_backend.find_spec", lambda name: None)
    study = replace(STUDY, model=replace(MODEL, workers=Workers(2)))
    with pytest.raises(UserError, match=r"--workers needs Ray.*pip install 'caploc\[ray\]'"):
        study.check()


@pytest.mark.parametrize(
    ("model", "fields", "sentence"),
    [
        ({"device": "cuda"}, {"judged": 2}, "itself erases neurons; with --judged 0 none are"),
    ],
)
def test_what_workers_cannot_score_or_this_process_not_erase_is_refused(
    model, fields, sentence, monkeypatch
):
    monkeypatch.setattr(ray_backend, "check_workers", lambda workers, device: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    options = replace(MODEL, workers=Workers(2), **model)
    with pytest.raises(UserError, match=sentence):
        replace(STUDY, model=options, **fields).check()
    if "judged" in fields:
        assert isinstance(replace(STUDY, model=options, judged=0).check(), NeuronStudy)
