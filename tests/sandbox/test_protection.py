"""What is said about isolation, against what a program finds in it."""

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from profiles import TIGHT

from caploc import sandbox
from caploc.cli import options
from caploc.doctor import machine_facts
from caploc.errors import BadOption, RunFailed
from caploc.sandbox import Program, Sandbox, protection, require_isolation
from caploc.sandbox.pool import Worker, WorkerFailed
from caploc.sandbox.protocol import PROFILES

HERE = sys.modules["caploc.sandbox.pool"]


@pytest.fixture
def afresh():
    """Forgets what has been tried and what was required, before and after."""
    protection.cache_clear()
    require_isolation("full")
    yield
    protection.cache_clear()
    require_isolation("full")


@pytest.fixture
def only(afresh, monkeypatch):
    """The machine gives this profile and no stronger one."""

    def allow(profile):
        def start(limits, wanted):
            if wanted != profile:
                raise WorkerFailed("unshare: Operation not permitted")
            return Worker(limits, wanted)

        monkeypatch.setattr(HERE, "Worker", start)

    return allow


def test_the_strongest_profile_that_works_is_taken(default, afresh):
    require_isolation("weak")
    assert HERE.choose_profile() == default.profile


def test_everything_is_out_of_reach_where_everything_works(opened, afresh):
    opened("namespaces")
    found = protection()
    assert found.profile == "namespaces" and found.missing == ()
    assert found.statement == (
        "Model-written code runs in processes of its own behind namespaces, a system-call filter "
        "and resource limits; tried there and out of reach: the network, local sockets, the user's "
        "files, names and dates of files, writing files, modes and attributes, Python's library, "
        "other processes' memory, rare system calls, more rights, memory beyond the limit and "
        "signals."
    )


@pytest.mark.parametrize("name", PROFILES)
def test_a_rehearsal_in_each_profile_finds_open_what_it_says_at_most(opened, name):
    found = {capability for capability, ways in opened(name).open_ways.items() if ways}
    assert found <= set(HERE.EXPOSED[name])


def broken(monkeypatch):
    """Workers that forget the filter and Landlock."""
    line = "from caploc.sandbox.zygote import main\n"
    leaky = "from caploc.sandbox import isolation as i\n"
    leaky += "i.install_filter = i.restrict_paths = lambda *_, **__: 0\n"
    monkeypatch.setattr(HERE, "START", HERE.START.replace(line, line + leaky))


def test_a_rehearsal_notices_what_is_open(opened, monkeypatch):
    """The counterpart: without any means every way that the user has is found open."""
    opened("landlock")
    monkeypatch.setattr(HERE, "check_rehearsal", lambda *_: None)
    broken(monkeypatch)
    worker = Worker(TIGHT, "landlock")
    worker.stop()
    open_ways = worker.open_ways
    harmless = {"Python's library", "more rights", "memory beyond the limit"}
    harmless |= {"writing files", "modes and attributes"} if os.geteuid() == 0 else set()
    assert {capability for capability, ways in open_ways.items() if not ways} <= harmless
    # A signal of the user whom root's programs become does not reach root.
    reached = {"the network", "local sockets"} | (set() if os.geteuid() == 0 else {"signals"})
    for capability in reached:
        assert "the witness was reached" in open_ways[capability]
    assert {way.split()[0] for way in open_ways["local sockets"]} == {"socket", "socketpair", "the"}
    assert "F_SETOWN" in open_ways["signals"]
    assert {"io_setup", "unshare", "memfd_create"} <= {*open_ways["rare system calls"]}


@pytest.mark.parametrize("name", ["namespaces", "landlock"])
def test_isolation_from_which_a_rehearsal_gets_out_is_refused(opened, monkeypatch, name):
    opened(name)
    broken(monkeypatch)
    with pytest.raises(
        WorkerFailed, match=r"a rehearsal got out of it \(.*rare system calls: io_setup"
    ):
        Worker(TIGHT, name)


def test_weak_isolation_is_refused_unless_it_is_asked_for_by_name(opened, only):
    opened("landlock")
    only("landlock")
    found = protection()
    assert found.profile == "landlock" and found.missing == (
        "names, sizes and dates of files can be seen",
    )
    assert "So it is refused." in found.statement and "names and dates" not in found.out_of_reach
    for refuse in (
        lambda: Sandbox(workers=1).judge([Program("x = 1", "assert x")]),
        lambda: options.check_isolation(True),
    ):
        with pytest.raises(BadOption) as refused:
            refuse()
        for part in (
            "isolation would be weak (unshare: Operation not permitted)",
            "names, sizes and dates of files can be seen",
            "container",
            "kernel.apparmor_restrict_unprivileged_userns",
            "--isolation weak",
        ):
            assert part in str(refused.value)
    options.check_isolation(False)
    require_isolation("weak")
    with Sandbox(workers=1) as judged:
        assert judged.judge([Program("x = 1", "assert x")])[0].passed


def test_the_option_asks_for_weak_isolation_and_says_what_is_left(opened, only, capsys):
    opened("landlock")
    only("landlock")
    assert options.set_isolation("weak") == "weak"
    options.check_isolation(True)
    assert "But names, sizes and dates of files can be seen" in " ".join(
        capsys.readouterr().err.split()
    )
    with Sandbox(workers=1) as judged:
        assert judged.judge([Program("x = 1", "assert x")])[0].passed
    options.set_isolation("full")
    with pytest.raises(BadOption, match="--isolation weak"):
        options.check_isolation(True)


def test_isolation_has_two_names(afresh):
    with pytest.raises(BadOption, match="--isolation must be full or weak; got 'none'"):
        require_isolation("none")


def test_what_is_missing_is_said(opened, only):
    opened("filter")
    only("filter")
    found = protection()
    assert found.profile == "filter"
    assert "files that the user may read can be read" in found.missing
    assert "But files that the user may read can be read" in found.statement
    assert "the network" in found.out_of_reach
    require_isolation("weak")
    with Sandbox(workers=1) as judged:  # and it works all the same
        right, wrong = judged.judge([Program("x = 1", "assert x"), Program("x = 0", "assert x")])
    assert right.passed and not wrong.passed


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_said_is_what_a_program_finds(opened, only, profile):
    """What is said to be out of reach, a program does not reach; and what is not, it does."""
    behind = opened(profile)
    only(profile)
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
    readable = "files that the user may read can be read" in missing
    tests = f"assert not online() and readable({__file__!r}) == {readable}"
    assert behind.verdict(text, tests).passed


def test_no_profile_at_all_is_a_reason_and_not_a_crash(only):
    only(None)
    found = protection()
    assert found.out_of_reach == () and found.missing == ("programs cannot be run",)
    assert found.statement == (
        "Programs that a model wrote cannot be run here: unshare: Operation not permitted."
    )
    with Sandbox(workers=1) as judged, pytest.raises(RunFailed, match="not permitted"):
        judged.judge([Program("", "")])


# Starts a worker by each profile, as whoever runs it, and prints what came of it.
AS_SOMEBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from caploc.sandbox.protocol import Limits
from caploc.sandbox.pool import Worker, WorkerFailed
try:
    worker = Worker(Limits(), sys.argv[2])
except WorkerFailed as error:
    print("refused", error)
else:
    worker.stop()
    print("started")
"""


def start_as(profile, prelude="", **user):
    source = str(Path(sandbox.__file__).parents[2])
    executable = sys.modules["caploc.sandbox.pool"].EXECUTABLE
    command = [executable, "-B", "-c", prelude + AS_SOMEBODY, source, profile]
    return subprocess.run(command, capture_output=True, text=True, check=True, **user).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop root's rights")
@pytest.mark.parametrize("name", ["landlock", "filter"])
def test_root_that_cannot_become_another_user_is_refused(opened, name):
    """Without the right to change users, as in some containers."""
    opened(name)
    drop = """
import ctypes
for capability in (6, 7):  # CAP_SETGID, CAP_SETUID
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
"""
    found = start_as(name, prelude=drop)
    assert found.startswith("refused") and "root cannot become another user" in found


def test_a_library_that_programs_could_change_is_refused():
    for profile in PROFILES:
        with pytest.raises(
            WorkerFailed, match=r"could change Python's own library, .* \(by open\)"
        ):
            HERE.check_rehearsal(profile, {"Python's library": ["open", "chmod"]})


def test_a_library_that_can_be_changed_is_noticed(opened, monkeypatch, tmp_path):
    """As where the user has installed Python, and nothing but limits isolates."""
    opened("landlock")
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.owner() == tmp_path.owner() and folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o755)
    library = tmp_path / "library"
    library.mkdir()
    library.chmod(0o777)
    (library / "os.py").touch()
    broken(monkeypatch)
    own = f"import os; os.__file__ = {str(library / 'os.py')!r}\n"
    monkeypatch.setattr(HERE, "START", own + HERE.START)
    with pytest.raises(WorkerFailed, match="could change Python's own library"):
        Worker(TIGHT, "landlock")


def test_a_system_other_than_linux_is_told_so(afresh, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert protection().statement == (
        "Programs that a model wrote cannot be run here: that needs Linux, in a virtual machine or "
        "container, say."
    )


def test_a_processor_whose_calls_are_unknown_is_told_so(afresh, monkeypatch):
    line = "from caploc.sandbox.zygote import main\n"
    other = "import platform; platform.machine = lambda: 'riscv64'\n"
    monkeypatch.setattr(HERE, "START", HERE.START.replace(line, line + other))
    assert "no system-call filter is known for riscv64" in protection().statement


def test_the_doctor_says_the_same():
    assert machine_facts()["model-written code"] == protection().statement


FOLDER = Path(sandbox.__file__).parent
DRIVER = {"__init__", "pool"}
INSIDE = sorted({path.stem for path in FOLDER.glob("*.py")} - DRIVER)


def imported(path):
    """What a file imports, each with the names that it takes from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module, {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from ((alias.name, set()) for alias in node.names)


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_inside_needs_the_standard_library_only(name):
    for module, names in imported(FOLDER / f"{name}.py"):
        if module == "caploc.sandbox":
            assert names <= {*INSIDE}
        elif module.startswith("caploc.sandbox."):
            assert module.split(".")[-1] in INSIDE
        elif module == "caploc.errors":
            assert name == "protocol"
        else:
            assert module.split(".")[0] in sys.stdlib_module_names, module


def test_the_driver_imports_nothing_that_only_some_systems_have():
    """So that the rest of caploc runs where programs cannot."""
    for name in DRIVER:
        for module, names in imported(FOLDER / f"{name}.py"):
            inside = names & {*INSIDE} if module == "caploc.sandbox" else {module.split(".")[-1]}
            assert not inside & ({*INSIDE} - {"protocol"}), (name, module)
