import math
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import IDENTITY, HerePool, answered, crossed, truth

from caploc.errors import BadOption, ModelRefused, OutOfMemory, RunFailed
from caploc.workers.distributed import (
    DistributedEngine,
    GroupEnded,
    WorkerJoined,
    first_alone,
)
from caploc.workers.scheduling import Dispatcher, Patience, WorkerRates

FAULTS = ["dies", "dies later", "nan", "short", "hangs"]
PATIENCE = Patience(first=5.0, least=3.0, factor=10.0)


def engine_of(pool):
    return DistributedEngine(pool, PATIENCE, pool.clock)


def collected(engine, asks):
    """Every answer by key; none may come twice."""
    found = {}
    for batch in engine.answer(asks):
        for answer in batch:
            assert answer.key not in found
            found[answer.key] = answer.response.logprob
    return found


@settings(max_examples=40)
@given(
    st.integers(1, 5),
    st.integers(1, 25),
    st.integers(1, 3),
    st.lists(st.sampled_from(["answers", "answers", *FAULTS]), max_size=12),
)
def test_no_row_is_lost_or_doubled_whatever_befalls_the_workers(size, masks, parts, fates):
    asks = crossed(masks, ["1+1=", "2+2=", "12+12="], parts)
    told, failed = iter(fates), Counter()

    def fate(worker, asked):
        """What comes next, but no row fails as often as ends a run, and no worker wakes again."""
        if worker in hanging:
            return "hangs"
        rows = {ask.key[0] for ask in asked}
        now = next(told, "answers")
        if now == "answers" or max(failed[row] for row in rows) >= 2:
            return "answers"
        if now == "nan" and rows & doubted:
            return "answers"  # the second time it would be believed
        doubted.update(rows if now == "nan" else ())
        failed.update(rows)
        hanging.update({worker} if now == "hangs" else ())
        return now

    hanging, doubted = set(), set()
    with engine_of(HerePool(size, fate)) as engine:
        assert collected(engine, asks) == {ask.key: truth(ask) for ask in asks}
        assert collected(engine, asks) == {ask.key: truth(ask) for ask in asks}


def test_rows_of_a_worker_that_died_are_asked_of_another():
    first = []

    def fate(worker, asks):
        first.append(worker)
        return "dies" if worker == 1 else "answers"

    asks = crossed(20, ["a", "b"])
    pool = HerePool(2, fate)
    assert len(collected(DistributedEngine(pool), asks)) == 40
    assert 1 not in pool.present
    assert len(pool.present) == 2  # another has taken its place


def test_a_worker_that_hangs_is_killed_and_its_rows_asked_again():
    pool = HerePool(2, lambda worker, asks: "hangs" if worker == 2 else "answers")
    assert len(collected(engine_of(pool), crossed(20, ["a"]))) == 20
    assert 2 in pool.dismissed


def test_a_worker_caught_with_a_wrong_nan_is_replaced():
    pool = HerePool(2, lambda worker, asks: "nan" if worker == 1 else "answers")
    asks = crossed(20, ["a"], 2)
    assert collected(DistributedEngine(pool), asks) == {ask.key: truth(ask) for ask in asks}
    assert pool.dismissed == [1]


def test_who_fails_on_a_doubted_row_is_not_taken_for_who_said_nan():
    work = Dispatcher(WorkerRates(), PATIENCE)
    batch = work.add(crossed(1, ["a"], 2))
    for worker, said in ((1, math.nan), (2, None), (3, -1.0)):
        number, asks = work.give(worker, [1, 2, 3], 0.0)
        if said is None:
            work.lose(worker, "it was told to")
        else:
            work.take(worker, number, [answered(ask, said) for ask in asks], 0.0)
            work.end(worker, number, 0.0)
    assert work.suspects == {1}
    assert not batch.open


def test_workers_are_not_silent_while_nobody_listens():
    pool = HerePool(
        2, lambda worker, asks: "hangs" if worker == 2 and pool.now < 400 else "answers"
    )
    with engine_of(pool) as engine:
        for _ in engine.answer(crossed(2, ["a"])):
            pool.now += 400.0  # scoring, programs that are run
    assert pool.dismissed == []


def test_a_model_that_truly_says_nan_is_believed_the_second_time():
    pool = HerePool(2, lambda worker, asks: "nan")
    found = collected(DistributedEngine(pool), crossed(10, ["a"], 2))
    assert len(found) == 20
    assert all(value != value for value in found.values())
    assert pool.dismissed == []


@pytest.mark.parametrize("fate", ["dies", "hangs", "short"])
def test_rows_that_every_worker_fails_on_end_the_run_in_one_sentence(fate):
    pool = HerePool(2, lambda worker, asks: fate)
    with pytest.raises(RunFailed, match="3 workers in turn failed on the same .* rows"):
        collected(engine_of(pool), crossed(8, ["a"]))


def test_a_worker_that_joins_gets_rows():
    asked = set()

    def fate(worker, asks):
        asked.add(worker)
        return "answers"

    pool = HerePool(1, fate, row_seconds=1.0)
    engine = DistributedEngine(pool, clock=pool.clock)
    batches = engine.answer(crossed(200, ["a", "b"]))
    next(batches)
    pool.size, engine.refreshed = 3, float("-inf")
    assert sum(len(batch) for batch in batches) > 0
    assert asked == {1, 2, 3}


class Refusing(HerePool):
    """Answers nothing but a refusal."""

    error = BadOption("The task scores a continuation of 0 tokens.")

    def outcome(self, worker, group, asks):
        self.present[worker] = None
        return [GroupEnded(worker, group, self.error)]


def test_what_a_worker_refuses_is_refused_with_the_same_sentence():
    with pytest.raises(BadOption, match="The task scores a continuation of 0 tokens."):
        collected(DistributedEngine(Refusing(2)), crossed(3, ["a"]))


def test_a_row_too_large_for_one_worker_is_asked_of_others_before_the_run_ends():
    pool = Refusing(3)
    pool.error = OutOfMemory("Not even one row fits into the memory of cuda:0.")
    with pytest.raises(RunFailed, match="3 workers .* because not even one row fits into"):
        collected(DistributedEngine(pool), crossed(1, ["a"]))
    assert pool.dismissed == []


class Joining(HerePool):
    """Whose workers join with these identities, in turn."""

    identities = ()

    def refresh(self):
        super().refresh()
        self.news = [
            WorkerJoined(event.worker, event.node, self.identities[event.worker - 1])
            for event in self.news
        ]


def test_a_model_that_is_refused_by_the_first_workers_is_refused():
    pool = Joining(2)
    pool.identities = [ModelRefused("No heads.")] * 2
    with pytest.raises(ModelRefused, match=r"No heads\."):
        DistributedEngine(pool)
    assert pool.closed


def test_a_worker_with_other_weights_is_refused():
    pool = Joining(2)
    other = type(IDENTITY)("made up", "g", "float32", "cpu", IDENTITY.grid, "0")
    pool.identities = [IDENTITY, other]
    with pytest.raises(ModelRefused, match="on node 2 has another fingerprint .*: g, not f"):
        DistributedEngine(pool)


def test_a_late_comer_that_cannot_work_is_left_out(caplog):
    pool = Joining(1)
    pool.identities = [IDENTITY, ModelRefused("No such folder.")]
    engine = DistributedEngine(pool)
    pool.size, engine.refreshed = 2, float("-inf")
    assert len(collected(engine, crossed(50, ["a"]))) == 50
    assert "node 2 is left out: No such folder." in caplog.text
    assert pool.expected == 1


def test_shared_tokens_are_asked_of_a_worker():
    assert (
        DistributedEngine(HerePool(2)).shared_tokens(
            [ask.request for ask in crossed(1, ["a", "b"])]
        )
        == 2
    )


def test_answers_of_a_batch_that_was_given_up_are_dropped():
    engine = DistributedEngine(HerePool(2))
    interrupted = engine.answer(crossed(200, ["a"]))
    next(interrupted)
    interrupted.close()
    asks = crossed(30, ["b"])
    assert collected(engine, asks) == {ask.key: truth(ask) for ask in asks}


def test_the_first_loads_alone_and_the_others_together(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    began, ended, lock = [], [], threading.Lock()
    together = threading.Barrier(3, timeout=20)

    def load(number):
        with first_alone("model on node"):
            with lock:
                began.append((number, len(ended)))
            if len(began) > 1:
                together.wait()  # passed only if all three of the others are in here
            else:
                for thread in threads[1:]:
                    thread.start()
                time.sleep(0.2)
            with lock:
                ended.append(number)

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    threads[0].start()
    threads[0].join()
    for thread in threads[1:]:
        thread.join()
    assert began[0] == (0, 0)
    assert all(done >= 1 for _, done in began[1:])


def test_where_no_lock_can_be_kept_nobody_waits(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "file")
    with first_alone("model"), first_alone("model"):
        pass


def test_an_answered_row_is_known_until_it_is_stored():
    """Another batch that looked for it before then gets its answer, and nobody is asked again."""
    work, asks = Dispatcher(WorkerRates(), PATIENCE), crossed(1, ["a", "b"])
    first = work.add(asks)
    number, asked = work.give(1, [1], 0.0)
    work.take(1, number, [answered(asked[0])], 1.0)
    assert [answer.key for answer in work.collect(first)] == [asks[0].key]
    work.take(1, number, [answered(asked[1])], 2.0)  # while what was collected is being stored
    second = work.add(asks)
    assert len(work.collect(second)) == 2 and not work.waiting
    assert len(work.collect(first)) == 1  # and so is what was collected before
    assert work.add(asks[:1]).open == 1  # the store has it: whoever asks anew means it
    work.cancel(first)
    assert work.add(asks[1:]).open == 1
