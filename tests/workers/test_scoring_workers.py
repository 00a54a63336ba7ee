"""Neurons scored by workers: what becomes of pieces, and studies with a pool without processes."""

import json
import sys
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import HerePool

from worlds import DEMO

sys.path.append(str(Path(__file__).parents[1] / "neurons"))  # for `import small_runs`
from small_runs import MODEL, STUDY, lasting, quick

from caploc.engine.encoding import Span
from caploc.errors import BadData, ModelRefused, OutOfMemory, RunFailed, UserError
from caploc.models.loading import load_model
from caploc.models.neurons import NeuronGrid
from caploc.neurons.attribution import Attribution
from caploc.neurons.finding import Finder, score_cache
from caploc.neurons.locating import locate
from caploc.neurons.study import NeuronStudy, read_study
from caploc.progress import Silent
from caploc.stats.threshold import Moments, Rule
from caploc.workbench import ModelOptions
from caploc.workers import Workers
from caploc.workers.distributed import (
    AnswersCame,
    GroupEnded,
    ModelIdentity,
    WorkerJoined,
    WorkerLost,
)
from caploc.workers.scheduling import Patience
from caploc.workers.scoring import (
    PIECE,
    PieceQueue,
    ScoringPiece,
    ScoringRecipe,
    ScoringReplica,
    ScoringWorkers,
    divide_stretch,
)

NEURONS = 7
IDENTITY = ModelIdentity("made up", "f", "float32", "cpu", NeuronGrid((NEURONS,)), "0")
EMPTY = Moments.empty(NEURONS, normalised=True)
PATIENCE = Patience(first=5.0, least=3.0, factor=10.0)
ENDS = {"refuses": BadData("A score is no number."), "lacks room": OutOfMemory("Not one fits.")}


def span(number):
    """An example of its own length and tokens."""
    return Span(tuple(range(number, number + 3 + number % 5)), (number,))


def row(one):
    """Scores that hardly any other example has."""
    return np.random.default_rng(one.inputs).standard_normal(NEURONS)


def figures_of(spans):
    return EMPTY.added(np.stack([row(each) for each in spans]))


@dataclass
class ScoringPool(HerePool):
    """Workers that score when they are looked at; `fate` says what becomes of each piece."""

    def refresh(self):
        while len(self.present) < self.expected:
            worker = next(self.numbers)
            self.present[worker] = None
            self.news.append(WorkerJoined(worker, f"node {worker}", self.identity(worker)))

    def identity(self, worker):
        return IDENTITY

    def scores(self, worker, spans):
        return figures_of(spans)

    def outcome(self, worker, group, spans):
        fate = self.fate(worker, spans)
        if fate == "hangs":
            return []
        self.present[worker] = None
        if fate.startswith("dies"):
            del self.present[worker]
        came = [AnswersCame(worker, group, [self.scores(worker, spans)])]
        if fate in ("dies", "dies later"):
            return (came if fate == "dies later" else []) + [WorkerLost(worker, "it was told to")]
        if fate in ("short", *ENDS):
            return [GroupEnded(worker, group, ENDS.get(fate))]
        return [*came, GroupEnded(worker, group)]


class Noting(Silent):
    """Notes what is told; stops, as Ctrl-C would, once so many examples are done."""

    def __init__(self, after=None):
        self.after, self.expected, self.done, self.tokens = after, [], 0, 0

    def start(self, what, rows):
        self.expected.append(rows)

    def advance(self, rows, tokens):
        self.done += rows
        self.tokens += tokens
        if self.after is not None and self.done >= self.after:
            raise KeyboardInterrupt


def scored(pool, stretches, passes=2, progress=None):
    """The figures of each stretch."""
    with ScoringWorkers(pool, PATIENCE, pool.clock) as workers:
        found = dict(workers.score(stretches, passes, progress or Silent()))
    assert pool.closed
    return [found[number] for number in range(len(stretches))]


def same(one, other):
    """Ask whether figures are the same to the last bit."""
    return all(
        np.array_equal(value, other.as_arrays()[name]) for name, value in one.as_arrays().items()
    )


STRETCHES = [
    [span(number) for number in part] for part in (range(10), range(10, 60), range(60, 83))
]


def test_pieces_are_all_examples_once_the_longest_first_about_equally_many():
    for count in (1, 5, PIECE, PIECE + 1, 50, 500):
        spans = [span(number) for number in range(count)]
        pieces = divide_stretch(spans, 2)
        told = [each for piece in pieces for each in piece]
        assert sorted(told, key=spans.index) == spans
        lengths = [len(each.inputs) for each in told]
        assert lengths == sorted(lengths, reverse=True)
        sizes = {len(piece) for piece in pieces}
        assert max(sizes) <= PIECE and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("passes", "most"), [(1, 16), (38, 13), (100, 5), (533, 1), (9999, 1)])
def test_examples_that_cost_many_passes_come_in_smaller_pieces(passes, most):
    assert max(map(len, divide_stretch([span(n) for n in range(200)], passes))) == most


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.sampled_from([2, 100, 600]),
    st.lists(
        st.sampled_from(["scores", "dies", "dies later", "short", "hangs", "lacks room"]),
        max_size=12,
    ),
)
def test_figures_depend_neither_on_the_workers_nor_on_what_befalls_them(size, passes, fates):
    told, failed, hanging = iter(fates), {}, set()

    def fate(worker, spans):
        if worker in hanging:
            return "hangs"
        now, what = next(told, "scores"), tuple(spans)
        if now != "scores" and failed.get(what, 0) < 2:
            failed[what] = failed.get(what, 0) + 1
            hanging.update({worker} if now == "hangs" else ())
            return now
        return "scores"

    alone = scored(ScoringPool(1), STRETCHES, passes)
    progress = Noting()
    found = scored(ScoringPool(size, fate), STRETCHES, passes, progress)
    assert all(map(same, found, alone))
    assert progress.done == 83
    assert progress.tokens == sum(len(each.inputs) for part in STRETCHES for each in part)
    for figures, spans in zip(found, STRETCHES, strict=True):
        whole = figures_of(spans)
        np.testing.assert_allclose(figures.mean, whole.mean, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(figures.squares, whole.squares, rtol=1e-12)
        assert np.array_equal(figures.votes, whole.votes) and figures.items == len(spans)


def test_a_stretch_is_its_pieces_merged_in_their_order():
    (found,) = scored(ScoringPool(3), [STRETCHES[1]])
    pieces = [figures_of(piece) for piece in divide_stretch(STRETCHES[1], 2)]
    assert len(pieces) == 4
    assert same(found, reduce(Moments.merged, pieces))


def test_a_lost_workers_piece_is_the_next_to_be_given_to_another():
    pieces = [ScoringPiece([span(n)]) for n in range(3)]
    queue = PieceQueue(pieces)
    assert queue.give(1, [1, 2], 0.0) == (1, pieces[0].spans)
    queue.lose(1, "it died")
    assert queue.give(2, [2, 3], 0.0) == (2, pieces[0].spans)
    assert queue.give(1, [1, 2], 0.0) == (3, pieces[1].spans)
    queue.take(1, 1, [figures_of([span(0)])], 1.0)  # of the piece that was lost with it
    queue.end(1, 1, 1.0)
    assert pieces[0].figures is None and pieces[1].figures is None
    queue.lose(2, "it died")
    # it has failed here, and there is somebody else
    assert queue.give(2, [2, 3], 1.0) == (4, pieces[2].spans)
    assert queue.give(4, [4], 1.0) == (5, pieces[0].spans)
    assert not queue.waiting and queue.give(5, [5], 1.0) is None


def test_a_worker_that_hangs_is_killed():
    pool = ScoringPool(2, lambda worker, spans: "hangs" if worker == 2 else "scores")
    assert all(map(same, scored(pool, STRETCHES), scored(ScoringPool(1), STRETCHES)))
    assert pool.dismissed == [2]


def test_while_nobody_listens_no_worker_is_late():
    queue = PieceQueue([ScoringPiece([span(1)])], PATIENCE)
    queue.give(1, [1], 0.0)
    assert queue.late(4.0) == [] and queue.late(6.0) == [(1, 6.0)]
    queue.excuse(2.0)
    assert queue.late(6.0) == [] and queue.late(8.0) == [(1, 6.0)]


@pytest.mark.parametrize(
    ("fate", "error", "sentence"),
    [
        ("dies", RunFailed, "3 workers in turn failed on the same 1. examples, the last one becau"),
        ("lacks room", RunFailed, "because not one fits; what was scored is kept"),
        ("short", RunFailed, "because figures were missing; what was scored is kept"),
        ("refuses", BadData, "A score is no number"),
    ],
)
def test_examples_that_nobody_can_score_end_the_run_in_a_sentence(fate, error, sentence):
    with pytest.raises(error, match=sentence):
        scored(ScoringPool(3, lambda worker, spans: fate), STRETCHES)


def test_what_a_cache_has_is_not_scored_and_what_is_scored_is_kept_at_once(tmp_path):
    def finder(progress):
        return Finder(IDENTITY, Attribution(), Rule(), score_cache(tmp_path), progress)

    def fill(progress):
        pool = ScoringPool(1)
        with ScoringWorkers(pool, clock=pool.clock) as workers:
            finder(progress).fill(workers, STRETCHES)
        return progress

    asked = finder(Silent()).question
    kept = score_cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fill(Noting(after=70))
    assert [kept.find(asked(each)) is not None for each in STRETCHES] == [True, True, False]
    assert fill(Noting()).expected == [23]
    alone = scored(ScoringPool(1), STRETCHES)
    assert all(same(kept.find(asked(s)), a) for s, a in zip(STRETCHES, alone, strict=True))
    assert fill(Noting()).expected == [0]


# Whole studies, by replicas of the demo model in this process.


@dataclass
class ReplicaPool(ScoringPool):
    """Workers with a model, all of them the same one."""

    replica: ScoringReplica = None

    def identity(self, worker):
        loaded = demo()
        try:
            grid = self.replica.open(loaded, None)
        except UserError as error:
            return error
        return ModelIdentity(loaded.name, loaded.fingerprint, loaded.dtype, "cpu", grid, "0")

    def scores(self, worker, spans):
        ((figures,),) = self.replica.answer(self.replica.pack(spans), 1.0)
        return figures


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
        pools.append(ReplicaPool(options.workers.count, replica=ScoringReplica(recipe)))
        return ScoringWorkers(pools[-1], clock=pools[-1].clock)

    monkeypatch.setattr(ModelOptions, "scoring", scoring)
    monkeypatch.setattr(Workers, "check", lambda workers, device: None)
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
    monkeypatch.setattr("caploc.workbench.load_model", refuse)
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

    monkeypatch.setattr("caploc.workbench.load_model", load)
    result, _ = locate(replace(study, judged=2), tmp_path / "run")
    assert loaded == [True]
    assert all(task["erased"] for task in result["tasks"])


def test_workers_with_another_model_than_the_runs_are_refused(by_workers, tmp_path, monkeypatch):
    study, _ = by_workers
    locate(study, tmp_path / "run")
    other = replace(demo(), fingerprint="another")
    monkeypatch.setattr(sys.modules[__name__], "demo", lambda: other)
    with pytest.raises(UserError, match="has changed since neurons were located"):
        locate(study, tmp_path / "run")


def test_a_model_that_workers_refuse_ends_the_run_before_anything_is_scored(
    by_workers, tmp_path, monkeypatch
):
    def refused(loaded, *, whole):
        raise ModelRefused("demo: no feed-forward outputs were found.")

    monkeypatch.setattr("caploc.workers.scoring.as_neurons", refused)
    with pytest.raises(ModelRefused, match="no feed-forward outputs"):
        locate(by_workers[0], tmp_path / "run")
    assert not (tmp_path / "run" / "scores").exists()


def test_mistakes_are_refused_before_workers_are_started(monkeypatch):
    monkeypatch.setattr(ModelOptions, "scoring", refuse)
    monkeypatch.setattr("caploc.workers.ray_backend.find_spec", lambda name: None)
    study = replace(STUDY, model=replace(MODEL, workers=Workers(2)))
    with pytest.raises(UserError, match=r"--workers needs Ray.*pip install 'caploc\[ray\]'"):
        study.check()


@pytest.mark.parametrize(
    ("model", "fields", "sentence"),
    [
        ({"device": "cuda"}, {"judged": 2}, "itself erases neurons; with --judged 0 none are"),
        ({"device": "spread"}, {"attribution": "logit"}, "which are spread over devices"),
        ({"quantize": "8bit"}, {"attribution": "logit"}, "which are quantized"),
    ],
)
def test_what_workers_cannot_score_or_this_process_not_erase_is_refused(
    model, fields, sentence, monkeypatch
):
    monkeypatch.setattr(Workers, "check", lambda workers, device: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    if "attribution" in fields:
        fields = {"attribution": replace(STUDY.attribution, method=fields["attribution"])}
    options = replace(MODEL, workers=Workers(2), **model)
    with pytest.raises(UserError, match=sentence):
        replace(STUDY, model=options, **fields).check()
    if "judged" in fields:
        assert isinstance(replace(STUDY, model=options, judged=0).check(), NeuronStudy)
