from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from made_up import HerePool, crossed, truth

import fleet
from caploc.errors import BadOption, CaplocError
from caploc.workers.concurrency import ConcurrentJobs
from caploc.workers.distributed import DistributedEngine, GroupEnded, WorkerLost
from worlds.simulate import World


def study(prompts, seed, rounds=4):
    """A job whose every round depends on the answers to the one before."""

    def job(engine):
        told, draw = [], seed
        for _ in range(rounds):
            asks = crossed(2 + draw % 5, prompts)
            found = {a.key: a.response.logprob for b in engine.answer(asks) for a in b}
            assert found == {ask.key: truth(ask) for ask in asks}
            draw = int(-sum(found.values())) % 997
            told.append(draw)
        return told

    return job


def run(engine, jobs, most=8):
    return dict(ConcurrentJobs(engine, jobs, most).run())


@pytest.mark.parametrize("most", [1, 3, 20])
def test_jobs_side_by_side_are_told_what_each_would_be_told_alone(most):
    jobs = {f"{n}": study([f"{n}+1=", "2+2="], n) for n in range(12)}
    with DistributedEngine(HerePool(3)) as engine:
        alone = {name: job(engine) for name, job in jobs.items()}
    pool = HerePool(3, row_seconds=0.1)
    with DistributedEngine(pool, clock=pool.clock) as engine:
        assert run(engine, jobs, most) == alone
        assert not engine.work.rows and not engine.work.known


def test_a_row_that_several_jobs_ask_at_once_is_answered_once():
    pool = fleet.VirtualPool(2, fleet.Law(1000.0, 0.01, 10), 8)  # time stands while jobs compute
    asks = [crossed(6, ["a", "b"]), crossed(6, ["b", "c"]), crossed(3, ["c", "a"])]

    def job(asks, engine):
        return [answer.key for batch in engine.answer(asks) for answer in batch]

    jobs = {f"{n}": partial(job, each) for n, each in enumerate(asks)}
    with DistributedEngine(pool, clock=pool.clock) as engine:
        found = run(engine, jobs)
    assert [sorted(found[f"{n}"]) for n in range(3)] == [[ask.key for ask in each] for each in asks]
    assert pool.rows == 6 * 3


def test_a_job_that_fails_and_one_whose_row_is_refused_leave_the_others_alone():
    class Refusing(HerePool):
        """Refuses rows of one prompt."""

        def outcome(self, worker, group, asks):
            if any(ask.request.prompt == "refused" for ask in asks):
                self.present[worker] = None
                return [GroupEnded(worker, group, BadOption("No such row."))]
            return super().outcome(worker, group, asks)

    def failing(engine):
        for _ in engine.answer(crossed(3, ["c"])):
            raise RuntimeError("a mistake")

    jobs = {"good": study(["a"], 3), "refused": study(["refused", "b"], 1), "failing": failing}
    with DistributedEngine(Refusing(2)) as engine:
        found = run(engine, jobs)
        assert found["good"] == study(["a"], 3)(engine)
    assert str(found["refused"]) == "No such row."
    assert isinstance(found["failing"], RuntimeError)


def test_jobs_under_way_are_interrupted_when_nobody_listens_any_more():
    ended = []

    def endless(engine):
        try:
            while True:
                study(["a"], 1)(engine)
        finally:
            ended.append(engine.name)

    with DistributedEngine(HerePool(2)) as engine:
        running = ConcurrentJobs(engine, {"quick": study(["b"], 1), "x": endless, "y": endless}, 3)
        outcomes = running.run()
        assert next(outcomes)[0] == "quick"
        outcomes.close()
    assert sorted(ended) == ["x", "y"]


@pytest.mark.parametrize("fate", ["answers", "refuses a guess", "dies"])
def test_what_is_asked_beforehand_changes_no_answer_and_leaves_nothing_behind(fate):
    """Of six rows that are expected three are asked later; one more is refused or kills workers."""

    class Moody(HerePool):
        def outcome(self, worker, group, asks):
            if fate != "answers" and any(ask.request.prompt == "bad" for ask in asks):
                if fate == "dies":
                    del self.present[worker]
                    return [WorkerLost(worker, "it was told to")]
                self.present[worker] = None
                return [GroupEnded(worker, group, BadOption("No such row."))]
            return super().outcome(worker, group, asks)

    def job(engine):
        told = []
        for prompts, ahead in [("a", "bcdefg"), ("bc", ["bad"]), ("bch", []), ("d", [])]:
            engine.expect(crossed(2, ahead))
            asks = crossed(2, prompts)
            found = {a.key: a.response.logprob for b in engine.answer(asks) for a in b}
            assert found == {ask.key: truth(ask) for ask in asks}
            told.append(found)
        return told

    def asking_in_earnest(engine):
        engine.expect(crossed(1, ["bad"]))
        list(engine.answer(crossed(1, ["a"])))
        return [answer.key for batch in engine.answer(crossed(1, ["bad"])) for answer in batch]

    with DistributedEngine(HerePool(2)) as engine:
        alone = job(engine)
    pool = Moody(2)
    with DistributedEngine(pool, clock=pool.clock) as engine:
        found = run(engine, {"job": job, "earnest": asking_in_earnest})
        assert found["job"] == alone
        if fate == "answers":
            assert found["earnest"] == [(0, 0)]
        else:
            assert isinstance(found["earnest"], CaplocError)
        assert not engine.work.known and not engine.work.later.left
        assert not engine.work.rows


@pytest.mark.slow
def test_a_single_study_takes_less_time_when_rows_are_asked_beforehand():
    plans = fleet.recorded(World.of_kind("real", seed=0, layers=24, width=8), 0)
    usual = fleet.simulate([[replace(p, ahead=()) for p in plans]], 8, fleet.SEVENTY, abreast=1)
    ahead = fleet.simulate([plans], 8, fleet.SEVENTY, abreast=1)
    assert ahead["rows"] == usual["rows"] == usual["asked"] < ahead["asked"] < 1.5 * usual["rows"]
    assert ahead["seconds"] < 0.75 * usual["seconds"]
    assert ahead["busy"] > usual["busy"]


def test_a_question_of_a_busy_pool_is_answered_between_two_groups():
    def asking(engine):
        return engine.shared_tokens([ask.request for ask in crossed(1, ["a", "b"])])

    jobs = {"busy": study([f"{n}" for n in range(40)], 3), "asking": asking}
    pool = HerePool(1, row_seconds=0.1)
    with DistributedEngine(pool, clock=pool.clock) as engine:
        assert run(engine, jobs)["asking"] == 2.0


def test_many_small_studies_keep_made_up_gpus_busy():
    """As many rows in as many rounds as an adaptive search asks, one after another and abreast."""
    draw = np.random.default_rng(0)
    rounds = [60, 90, 3, 60, *[10, 30] * 5]
    studies = [
        [fleet.Plan.scattered(draw.random((max(1, n // 3), 16)) < 0.1, np.arange(n), "masks")
         for n in rounds]
        for _ in range(24)
    ]  # fmt: skip
    law = fleet.Law(reading=28_000.0, step=0.02, slots=50)
    alone = fleet.simulate(studies, 8, law, abreast=1)
    abreast = fleet.simulate(studies, 8, law, abreast=24)
    assert 0.8 * 24 * sum(rounds) < abreast["rows"] == alone["rows"] <= 24 * sum(rounds)
    assert abreast["busy"] >= 0.9
    assert abreast["seconds"] < alone["seconds"] / 2
