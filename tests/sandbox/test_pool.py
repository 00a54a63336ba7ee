"""The pool: order, sharing, and what happens when somebody dies."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import TIGHT, forced, processes_of

from caploc.errors import RunFailed
from caploc.sandbox import REASONS, Limits, Program, Sandbox, pool

RIGHT = Program("def f(x): return x + 1", "assert f(1) == 2")
SLEEPER = Program("import time\ntime.sleep(600)", "")


def right(number):
    return Program(f"def f(x): return x + {number}", f"assert f(1) == {number + 1}")


def wrong(number):
    return Program(f"def f(x): return x - {number}", f"assert f(1) == {number + 1}")


def soon(condition, seconds=10):
    """Whether it comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


def new_ones(before):
    """Workers' processes that were not there before."""
    return [each for each in processes_of() if each.pid not in before]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=8))
def test_verdicts_come_in_the_order_of_the_programs(default, asked):
    programs = [right(number) if good else wrong(number) for good, number in asked]
    verdicts = default.sandbox.judge(programs)
    assert [verdict.passed for verdict in verdicts] == [good for good, _ in asked]
    assert all(verdict.reason in REASONS for verdict in verdicts)


# Whether it passes is chance: sixteen in a row agree only if it is judged once.
COIN = Program("import os\ndef f(): return os.urandom(1)[0] % 2", "assert f() == 1")


def test_the_same_program_is_judged_once(default):
    verdicts = default.sandbox.judge([COIN] * 8)
    verdicts += [default.sandbox.judge([COIN])[0] for _ in range(8)]
    assert len(set(verdicts)) == 1
    others = [Program(COIN.text, f"{COIN.tests}#{n}") for n in range(16)]
    others += [Program(f"{COIN.text}#{n}", COIN.tests) for n in range(16)]
    assert {verdict.passed for verdict in default.sandbox.judge(others)} == {True, False}


def test_threads_that_ask_the_same_share_the_answer(default):
    coins = [Program(COIN.text, f"{COIN.tests} # {n}") for n in range(20)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: default.sandbox.judge(coins), range(4)))
    assert all(answer == answers[0] for answer in answers)


def test_memory_of_verdicts_is_bounded(monkeypatch):
    monkeypatch.setattr(pool, "REMEMBERED", 5)
    with Sandbox(TIGHT, workers=1) as sandbox:
        assert all(verdict.passed for verdict in sandbox.judge([right(n) for n in range(12)]))
        assert len(sandbox._known) == 5
        assert sandbox.judge([right(0)])[0].passed


def test_text_and_tests_do_not_run_into_each_other():
    pairs = [("ab", "c"), ("a", "bc"), ("", "abc"), ("\ud800", "\udfff")]
    with Sandbox(TIGHT, workers=1) as sandbox:
        sandbox.judge([Program(*pair) for pair in pairs])
        assert len(sandbox._known) == 4


def test_workers_run_beside_each_other():
    nap = [Program(f"import time\ntime.sleep(0.4 + {n} / 1000)", "") for n in range(4)]
    with Sandbox(TIGHT, workers=4) as sandbox:
        sandbox.judge([right(n) for n in range(4)])
        started = time.monotonic()
        assert all(verdict.passed for verdict in sandbox.judge(nap))
    assert time.monotonic() - started < 4 * 0.4


def test_an_unused_sandbox_starts_nothing_and_a_closed_one_leaves_nothing():
    before = {each.pid for each in processes_of()}
    threads = threading.active_count()
    with Sandbox(TIGHT, workers=2) as sandbox:
        assert {each.pid for each in processes_of()} == before
        assert sandbox.judge([]) == []
        sandbox.judge([right(n) for n in range(4)])
        assert len(processes_of()) > len(before)
    assert {each.pid for each in processes_of()} == before
    assert threading.active_count() == threads
    with pytest.raises(RunFailed, match="closed"):
        sandbox.judge([RIGHT])
    sandbox.close()


def test_closing_wakes_who_waits():
    sandbox = Sandbox(TIGHT, workers=1)
    caught = []

    def ask():
        try:
            sandbox.judge([SLEEPER, RIGHT])
        except RunFailed as error:
            caught.append(str(error))

    before = len(processes_of())
    thread = threading.Thread(target=ask)
    thread.start()
    assert soon(lambda: len(processes_of()) >= before + 3)
    started = time.monotonic()
    sandbox.close()
    thread.join()
    assert len(caught) == 1 and "closed" in caught[0]
    assert time.monotonic() - started < 8
    assert len(processes_of()) == before


def test_python_starts_with_little_memory():
    with Sandbox(Limits(memory_bytes=64 * 2**20), workers=1) as sandbox:
        assert sandbox.judge([RIGHT])[0].passed


@pytest.mark.parametrize("name", ["namespaces", "landlock"])
def test_a_killed_worker_is_replaced_and_no_program_is_lost(opened, name):
    opened(name)
    with forced(name), Sandbox(TIGHT, workers=1) as sandbox, ThreadPoolExecutor(1) as thread:
        before = {each.pid for each in processes_of()}
        assert sandbox.judge([right(1)])[0].passed
        asked = thread.submit(sandbox.judge, [SLEEPER, right(2), wrong(3)])
        mine = partial(new_ones, before)
        running = 4 if name == "namespaces" else 3
        assert soon(lambda: len(mine()) == running)
        old = mine()
        # Started by us: our child. In the full mode its own child is the one that forks.
        first = next(each for each in old if each.ppid() == os.getpid())
        first.kill()
        killed, passed, failed = asked.result(timeout=30)
        assert (killed.reason, killed.passed) == (
            "killed",
            False,
        ) and "worker died" in killed.detail
        assert passed.passed and failed.reason == "failed"
        assert soon(lambda: not {each.pid for each in mine()} & {each.pid for each in old})


def test_a_worker_killed_from_inside_is_replaced_too(opened):
    opened("namespaces")
    with (
        forced("namespaces"),
        Sandbox(TIGHT, workers=1) as sandbox,
        ThreadPoolExecutor(1) as thread,
    ):
        before = {each.pid for each in processes_of()}
        sandbox.judge([right(1)])
        asked = thread.submit(sandbox.judge, [SLEEPER, right(2)])
        mine = partial(new_ones, before)
        assert soon(lambda: len(mine()) == 4)
        old = mine()
        first = next(each for each in old if each.ppid() == os.getpid())
        (first.children()[0]).kill()
        killed, passed = asked.result(timeout=30)
        assert killed.reason == "killed" and passed.passed
        assert soon(lambda: not {each.pid for each in mine()} & {each.pid for each in old})


def test_what_says_nothing_about_the_program_is_not_remembered(opened):
    opened("namespaces")
    with (
        forced("namespaces"),
        Sandbox(TIGHT, workers=1) as sandbox,
        ThreadPoolExecutor(1) as thread,
    ):
        before = {each.pid for each in processes_of()}
        sandbox.judge([right(1)])
        nap = Program("import time\ntime.sleep(0.5)", "")
        asked = thread.submit(sandbox.judge, [nap])
        mine = partial(new_ones, before)
        assert soon(lambda: len(mine()) == 4)
        next(each for each in mine() if each.ppid() == os.getpid()).kill()
        assert asked.result()[0].reason == "killed"
        assert sandbox.judge([nap])[0].passed


# A shell starts what it runs in the background deaf to Ctrl-C; this process must hear it.
DRIVER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from caploc.sandbox import Program, Sandbox, pool
pool.EXECUTABLE = {python!r}
pool.choose_profile = lambda *isolation: {profile!r}
with Sandbox(workers=2) as sandbox:
    sandbox.judge([Program("", "")])
    print("ready", flush=True)
    sandbox.judge([Program(f"import time\\ntime.sleep(600) # {{n}}", "") for n in range(50)])
"""


@pytest.fixture(params=["namespaces", "landlock"])
def driver(opened, request, tmp_path):
    """A process in the middle of judging, with at least two programs running."""
    opened(request.param)
    profile = request.param
    code = DRIVER.format(python=pool.EXECUTABLE, profile=profile)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        running = 8 if profile == "namespaces" else 6
        assert soon(lambda: len(processes_of(process.pid)) == running)
        yield process
        process.kill()


def test_a_killed_driver_leaves_nothing(driver, tmp_path):
    driver.kill()
    driver.wait()
    assert soon(lambda: not processes_of(driver.pid))
    # Of the workers' own folders at most their names are left: nobody is there to remove them.
    assert soon(lambda: not list(tmp_path.glob("*/*")))


def test_a_driver_killed_while_a_rehearsal_ends_leaves_nothing(tmp_path):
    code = """
import os, signal, subprocess
from caploc.sandbox import pool
subprocess.Popen.wait = lambda bystander: os.kill(os.getpid(), signal.SIGKILL)
with pool.open_witness():
    pass
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert soon(lambda: not list(tmp_path.iterdir()))


def test_ctrl_c_stops_at_once_and_leaves_nothing(driver, tmp_path):
    started = time.monotonic()
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=20)
    assert "KeyboardInterrupt" in said and driver.returncode != 0
    assert time.monotonic() - started < 15
    assert soon(lambda: not processes_of(driver.pid))
    assert not list(tmp_path.iterdir())


def test_a_driver_that_ends_without_closing_leaves_nothing():
    code = """
import os
from caploc.sandbox import *
sandbox = Sandbox(workers=2)
assert sandbox.judge([Program("", ""), Program("", "1")])[1].passed
print(os.getpid())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert soon(lambda: not processes_of(int(done.stdout)))


MANY_FILES = """
import os, resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
from caploc.sandbox import Program, Sandbox, pool, require_isolation
pool.EXECUTABLE = {python!r}
require_isolation("weak")
with Sandbox(workers=1) as sandbox:
    print(sandbox.judge([Program("x = 1", "assert x")])[0].reason)
"""


def test_a_driver_may_have_many_files_open():
    """The worker's sockets then have numbers beyond what select(2) can wait for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this machine lets a process open fewer files")
    code = MANY_FILES.format(python=pool.EXECUTABLE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "passed\n", done.stderr


def test_workers_that_do_not_start_say_why(monkeypatch):
    monkeypatch.setattr(pool, "START", "import sys\nsys.exit('no luck today')")
    before = {each.pid for each in processes_of()}
    with (
        forced("namespaces"),
        Sandbox(TIGHT, workers=1) as sandbox,
        pytest.raises(RunFailed, match="no luck today"),
    ):
        sandbox.judge([RIGHT])
    assert not new_ones(before)


# From its n-th program on (the first is the rehearsal) a worker's children are not isolated.
FAILING = """
from caploc.sandbox import zygote
real, runs = zygote.Zygote.run, []
def run(self, driver):
    runs.append(driver)
    if len(runs) >= {first}:
        def refuse(*arguments): raise OSError("no isolation")
        zygote.isolate = refuse
    return real(self, driver)
zygote.Zygote.run = run
"""


@pytest.mark.parametrize("first, passes", [(3, True), (2, False)])
def test_a_program_that_did_not_run_is_tried_by_another_worker(monkeypatch, default, first, passes):
    line = "from caploc.sandbox.zygote import main\n"
    patched = pool.START.replace(line, line + FAILING.format(first=first))
    assert patched != pool.START
    monkeypatch.setattr(pool, "START", patched)
    with forced(default.profile), Sandbox(TIGHT, workers=1) as sandbox:
        verdicts = sandbox.judge([right(1), right(2), right(3)])
    assert [verdict.passed for verdict in verdicts] == [passes] * 3
    if not passes:
        assert {(each.reason, each.detail) for each in verdicts} == {
            ("killed", "it could not be isolated")
        }


def test_a_forked_child_that_ends_takes_no_worker_from_its_parent():
    code = (
        "import os, sys, warnings\n"
        "from caploc.sandbox import Program, Sandbox, require_isolation\n"
        "require_isolation('weak')\n"
        "warnings.simplefilter('ignore')\n"
        "sandbox = Sandbox(workers=1)\n"
        "judge = lambda n: sandbox.judge([Program('', f'assert {n}')])[0].passed\n"
        "first = judge(1)\n"
        "(worker,) = sandbox._workers.values()\n"
        "child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(first, judge(2), [*sandbox._workers.values()] == [worker])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True True True\n", done.stderr
