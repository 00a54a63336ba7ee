"""What is said about isolation, against what a program finds in it."""

import ast
import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from profiles import PROFILES

from caploc import sandbox
from caploc.cli import options
from caploc.doctor import machine_facts
from caploc.errors import BadOption, RunFailed
from caploc.sandbox import Program, Sandbox, protection, rehearsal, require_isolation
from caploc.sandbox.pool import Worker, WorkerFailed
from caploc.sandbox.protocol import Profile, list_profiles

HERE = sys.modules["caploc.sandbox.pool"]
# What must be out of reach in each profile, whoever starts the worker.
HELD = {
    "full": set(HERE.CAPABILITIES),
    "filter-landlock": set(HERE.CAPABILITIES) - {"stat"},
    "filter": set(HERE.CAPABILITIES) - {"stat", "reading", "processes"},
    "namespaces": set(HERE.CAPABILITIES) - {"kernel"},
    "landlock": {"reading", "writing", "library", "rights", "memory"},
    "bare": {"library", "rights", "memory"},
}


@pytest.fixture
def afresh():
    """Forgets what has been tried and what was required, before and after."""
    HERE.explore.cache_clear()
    require_isolation("full")
    yield
    HERE.explore.cache_clear()
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
    assert HERE.choose_profile("weak") == default.profile


def test_everything_is_out_of_reach_where_everything_works(opened, afresh):
    opened("full")
    found = protection()
    assert found.full and found.missing == ()
    assert found.out_of_reach == tuple(name for name, _ in HERE.CAPABILITIES.values())
    assert found.profile.namespaces and found.profile.filter
    assert found.statement == (
        "Model-written code runs in processes of its own behind namespaces, a system-call filter "
        "and resource limits; tried there and out of reach: the network, local sockets, the user's "
        "files, names and dates of files, writing files, modes and attributes, Python's library, "
        "signals, other processes' memory, rare system calls, more rights and memory beyond the "
        "limit."
    )


@pytest.mark.parametrize("name", HELD)
def test_a_rehearsal_in_each_profile_finds_out_of_reach_what_it_promises(opened, name):
    open_ways = opened(name).open_ways
    assert set(open_ways) == set(HERE.CAPABILITIES)
    assert {capability: open_ways[capability] for capability in HELD[name]} == dict.fromkeys(
        HELD[name], []
    )


def test_a_rehearsal_notices_what_is_open(opened):
    """The counterpart: without any means every way that the user has is found open."""
    open_ways = opened("bare").open_ways
    for capability in ("network", "sockets", "reading", "stat", "signals", "processes", "kernel"):
        assert open_ways[capability], capability
    # A signal of the user whom root's programs become does not reach root.
    for capability in ("network", "sockets", *([] if os.geteuid() == 0 else ["signals"])):
        assert "the witness was reached" in open_ways[capability]
    pairs = {way.split("'")[0] for way in open_ways["sockets"]}
    assert {"socketpair sendto SOCK_DGRAM ", "socketpair connect SOCK_DGRAM "} <= pairs
    assert {"F_SETOWN", "F_SETOWN_EX", "ioctl 0x8901"} <= {*open_ways["signals"]}


def test_on_other_systems_than_linux_nothing_is_claimed_that_is_not_there(monkeypatch):
    """There is no prctl, root is real, and Linux's numbers are those of other calls."""
    became = []

    def absent(*arguments):
        raise OSError(errno.ENOSYS, "this system has no such call")

    monkeypatch.setattr(rehearsal, "LINUX", False)
    monkeypatch.setattr(rehearsal, "call", absent)
    monkeypatch.setattr(rehearsal, "control_process", absent)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "setuid", became.append)
    ways = (rehearsal.check_new_rights, rehearsal.try_root, lambda: rehearsal.reach((206, 0)))
    assert all(map(rehearsal.succeeds, ways)) and became == [0]


def test_full_isolation_from_which_a_rehearsal_gets_out_is_refused(opened, monkeypatch):
    opened("full")
    pool = sys.modules["caploc.sandbox.pool"]
    line = "from caploc.sandbox.zygote import main\n"
    leaky = "from caploc.sandbox import isolation as i\ni.install_filter = lambda **_: 0\n"
    monkeypatch.setattr(pool, "START", pool.START.replace(line, line + leaky))
    with pytest.raises(WorkerFailed, match=r"a rehearsal got out of it \(.*kernel: io_setup"):
        Worker(sys.modules["profiles"].TIGHT, PROFILES["full"])


def test_weak_isolation_is_refused_unless_it_is_asked_for_by_name(opened, only):
    opened("filter-landlock")
    only(PROFILES["filter-landlock"])
    found = protection()
    assert not found.full and found.missing == ("names, sizes and dates of files can be seen",)
    assert "So it is refused." in found.statement and "names and dates" not in found.out_of_reach
    for refuse in (
        lambda: Sandbox(workers=1).judge([Program("x = 1", "assert x")]),
        lambda: Sandbox(workers=1, isolation="full").judge([Program("x = 1", "assert x")]),
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
    with Sandbox(workers=1, isolation="weak") as judged:
        assert judged.judge([Program("x = 1", "assert x")])[0].passed


def test_the_option_asks_for_weak_isolation_and_says_what_is_left(opened, only, capsys):
    opened("filter-landlock")
    only(PROFILES["filter-landlock"])
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
    opened("bare")
    only(Profile(namespaces=False, filter=False, landlock=False))
    found = protection()
    assert not found.profile.namespaces and not found.profile.filter
    assert "the network can be reached" in found.missing
    assert "files that the user may read can be read" in found.missing
    assert "But the network can be reached" in found.statement
    with Sandbox(workers=1, isolation="weak") as judged:  # and it works all the same
        right, wrong = judged.judge([Program("x = 1", "assert x"), Program("x = 0", "assert x")])
    assert right.passed and not wrong.passed


@pytest.mark.parametrize("profile", list_profiles(), ids=str)
def test_what_is_said_is_what_a_program_finds(opened, only, profile):
    """What is said to be out of reach, a program does not reach; and what is not, it does."""
    name = next(name for name, each in PROFILES.items() if each == profile)
    behind = opened(name)
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
    online = "the network can be reached" in missing
    readable = "files that the user may read can be read" in missing
    tests = f"assert online() == {online} and readable({__file__!r}) == {readable}"
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
import json, os, sys
sys.path.insert(0, sys.argv[1])
from caploc.sandbox.protocol import Profile
from caploc.sandbox.protocol import Limits
from caploc.sandbox.pool import Worker, WorkerFailed
try:
    worker = Worker(Limits(), Profile(*json.loads(sys.argv[2])))
except WorkerFailed as error:
    print("refused", error)
else:
    worker.stop()
    print("started")
"""


def start_as(profile, prelude="", **user):
    fields = json.dumps([profile.namespaces, profile.filter, profile.landlock])
    source = str(Path(sandbox.__file__).parents[2])
    executable = sys.modules["caploc.sandbox.pool"].EXECUTABLE
    command = [executable, "-B", "-c", prelude + AS_SOMEBODY, source, fields]
    return subprocess.run(command, capture_output=True, text=True, check=True, **user).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop root's rights")
@pytest.mark.parametrize("name", ["filter-landlock", "filter", "bare"])
def test_root_that_cannot_become_another_user_is_refused(opened, name):
    """Without the right to change users, as in some containers."""
    opened(name)
    drop = """
import ctypes
for capability in (6, 7):  # CAP_SETGID, CAP_SETUID
    assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
"""
    found = start_as(PROFILES[name], prelude=drop)
    assert found.startswith("refused") and "root cannot become another user" in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that another owns")
def test_a_library_that_programs_could_change_is_refused(opened):
    """As where the user has installed Python, and nothing but limits isolates."""
    opened("bare")
    with tempfile.TemporaryDirectory() as library:
        own = Path(library) / "os.py"
        own.touch()
        for path in (library, own):
            os.chown(path, 65534, 65534)
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        prelude = f"""
import sys
sys.path.insert(0, {str(Path(sandbox.__file__).parents[2])!r})
from caploc.sandbox import pool
line = "from caploc.sandbox.zygote import main"
assert line in pool.START
pool.START = pool.START.replace(line, "import os; os.__file__ = {str(own)!r}; " + line)
"""
        found = start_as(PROFILES["bare"], prelude=prelude, **nobody)
        assert found.startswith("refused") and "could change Python's own library" in found
        # The filter alone lets no file be written, wherever it is.
        assert start_as(PROFILES["filter"], prelude=prelude, **nobody) == "started\n"


def test_a_system_without_fork_is_told_so(afresh, monkeypatch):
    monkeypatch.delattr("os.fork")
    assert "this system has no fork" in protection().statement


def test_the_doctor_says_the_same():
    assert machine_facts()["model-written code"] == protection().statement


FOLDER = Path(sandbox.__file__).parent
DRIVER = {"__init__", "pool", "witness"}
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
