"""What is said about the walls, against what they hold."""

import ast
import sys
from pathlib import Path

import pytest

from caploc import sandbox
from caploc.doctor import machine_facts
from caploc.errors import RunFailed
from caploc.sandbox import Program, Sandbox, protection
from caploc.sandbox.walls import Walls, wishes
from caploc.sandbox.worker import Worker, WorkerFailed

HERE = sys.modules["caploc.sandbox.protection"]


@pytest.fixture
def afresh():
    """Forgets what has been tried, before and after."""
    HERE.tried.cache_clear()
    yield
    HERE.tried.cache_clear()


@pytest.fixture
def only(afresh, monkeypatch):
    """The machine gives these walls and no stronger ones."""

    def allow(walls):
        def start(limits, wish):
            if wish != walls:
                raise WorkerFailed("not today")
            return Worker(limits, wish)

        monkeypatch.setattr(HERE, "Worker", start)

    return allow


def test_the_strongest_walls_that_work_are_taken(default, afresh):
    assert HERE.strongest() == default.walls


def test_everything_is_said_where_everything_works(opened, afresh):
    opened("full")
    said = protection()
    assert said.missing == ()
    for name in ("user", "pid", "net", "mount", "ipc", "uts"):
        assert f"{name} namespace" in said.active
    assert {"system-call filter", "no_new_privs", "resource limits"} <= set(said.active)
    assert said.statement == (
        "Model-written code runs in processes of its own behind namespaces, a system-call filter "
        "and resource limits, with no network and no files but Python's."
    )


def test_what_is_missing_is_said(opened, only):
    opened("bare")
    only(Walls(namespaces=False, filter=False, landlock=False))
    said = protection()
    assert not any("namespace" in name or "filter" in name for name in said.active)
    assert "the network can be reached" in said.missing
    assert "files that the user may read can be read" in said.missing
    assert said.statement.startswith("Model-written code runs in processes of its own behind res")
    assert "but the network can be reached" in said.statement and "container" in said.statement
    with Sandbox(workers=1) as judged:  # and it works all the same
        right, wrong = judged.judge([Program("x = 1", "assert x"), Program("x = 0", "assert x")])
    assert right.passed and not wrong.passed


@pytest.mark.parametrize("walls", wishes(), ids=str)
def test_facts_are_those_that_a_program_finds(opened, only, walls):
    """What is said to be out of reach, a program does not reach; and what is not, it does."""
    name = next(name for name, each in sys.modules["walled"].WALLS.items() if each == walls)
    behind = opened(name)
    only(walls)
    text = """
import socket
def online():
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as connection:
            connection.connect(("127.0.0.1", 9))
        return True
    except OSError:
        return False
def readable(path):
    try:
        open(path).close()
        return True
    except OSError:
        return False
"""
    missing = protection().missing
    online = "the network can be reached" in missing
    readable = "files that the user may read can be read" in missing
    tests = f"assert online() == {online} and readable({__file__!r}) == {readable}"
    assert behind.verdict(text, tests).passed


def test_no_walls_at_all_are_a_reason_and_not_a_crash(only):
    only(None)
    said = protection()
    assert said.active == () and said.missing == ("programs cannot be run",)
    assert said.statement == "Programs that a model wrote cannot be run here: not today."
    with Sandbox(workers=1) as judged, pytest.raises(RunFailed, match="not today"):
        judged.judge([Program("", "")])


def test_a_system_without_fork_is_told_so(afresh, monkeypatch):
    monkeypatch.delattr("os.fork")
    assert "this system has no fork" in protection().statement


def test_the_doctor_says_the_same():
    assert machine_facts()["model-written code"] == protection().statement


INSIDE = sorted((Path(sandbox.__file__).parent / "inside").glob("*.py"))


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.stem)
def test_what_runs_inside_needs_the_standard_library_only(path):
    allowed = ("caploc.sandbox.inside", "caploc.sandbox.limits", "caploc.sandbox.walls")
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            ours = name.startswith(allowed)
            assert ours or name.split(".")[0] in sys.stdlib_module_names, name


def test_the_driver_imports_nothing_that_only_some_systems_have():
    """So that the rest of caploc runs where programs cannot."""
    for path in Path(sandbox.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("caploc.sandbox.inside"):
                assert {alias.name for alias in node.names} <= {"frames", "remove"}
