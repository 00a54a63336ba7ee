"""What hostile programs do to this machine: nothing. And they do not pass."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import pytest
from hostile import ENDLESS, PROGRAMS, TESTS

from caploc.sandbox import Limits, Program, bubblewrap, pool, run_program

# The size of files is one that nobody else uses: it marks these programs' processes.
LIMITS = Limits(cpu_seconds=1, wall_seconds=6, memory_bytes=2**28, file_bytes=2**24 + 4096)
# Whatever ends by itself has all the time that a slow machine needs for it.
PATIENT = replace(LIMITS, cpu_seconds=120, wall_seconds=600)
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bubblewrap import Limits, Program, run_program
asked = json.load(sys.stdin)
verdict = run_program(Program(*asked["program"]), Limits(*asked["limits"]))
print(json.dumps([verdict.passed, verdict.reason, verdict.detail]))
"""


@pytest.fixture(scope="module", autouse=True)
def needs_bubblewrap():
    if obstacle := pool.find_obstacle():
        pytest.skip(f"bubblewrap is needed, {obstacle}")


def run_as_nobody(folder, program, limits):
    """Run a program as a user without rights starts it, whom root becomes in a new process."""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", DRIVER, str(folder)],
        input=json.dumps({"program": [program.text, program.tests], "limits": astuple(limits)}),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        **NOBODY,
    )
    assert done.returncode == 0, done.stderr
    return bubblewrap.ProgramResult(*json.loads(done.stdout))


@pytest.fixture(
    scope="module", params=["this user", pytest.param("nobody", marks=pytest.mark.slow)]
)
def run(request):
    """Run a program as started by this user or, if that is root, by an ordinary one."""
    if request.param == "this user":
        return run_program
    if os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    if not Path("/usr/bin/python3.11").exists() and not Path("/usr/bin/python3.12").exists():
        pytest.skip("no Python 3.11 here that an ordinary user can read")
    # not below pytest's folder, which other sessions close to other users
    folder = Path(tempfile.mkdtemp(prefix="caploc-package-"))
    request.addfinalizer(partial(shutil.rmtree, folder))
    for name in ("bubblewrap.py", "runner.py"):
        shutil.copy(Path(bubblewrap.__file__).with_name(name), folder)
    folder.chmod(0o755)
    return partial(run_as_nobody, folder)


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What belongs to others: a folder and a file open to all, a port, a process."""
    folder = tmp_path_factory.mktemp("outside")
    file = folder / "file"
    file.write_text("secret")
    folder.chmod(0o777)
    file.chmod(0o666)
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield {"@FILE@": file, "@FOLDER@": folder, "@PORT@": server, "@PROCESS@": process}
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def verdicts(run, outside):
    """What came of every program, three at a time."""
    places = {
        "@FILE@": repr(str(outside["@FILE@"])),
        "@FOLDER@": repr(str(outside["@FOLDER@"])),
        "@PORT@": str(outside["@PORT@"].getsockname()[1]),
        "@PROCESS@": str(outside["@PROCESS@"].pid),
    }
    programs = []
    for text in PROGRAMS.values():
        for place, value in places.items():
            text = text.replace(place, value)
        programs.append(Program(text, TESTS))
    limits = [LIMITS if name in ENDLESS else PATIENT for name in PROGRAMS]
    with ThreadPoolExecutor(3) as threads:
        return dict(zip(PROGRAMS, threads.map(run, programs, limits), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_does_not_pass(verdicts, name):
    assert not verdicts[name].passed, verdicts[name]


def test_reasons_say_what_happened(verdicts):
    found = {name: verdict.reason for name, verdict in verdicts.items()}
    assert found["a loop without end"] == found["a sleep without end"] == "timeout"
    assert found["memory"] == "memory"
    assert found["sys.exit"] == found["os._exit when asked"] == "error"


def test_nothing_outside_was_touched(verdicts, outside):
    assert outside["@FILE@"].read_text() == "secret"
    assert [path.name for path in outside["@FOLDER@"].iterdir()] == ["file"]
    assert outside["@PROCESS@"].poll() is None
    with pytest.raises(BlockingIOError):
        outside["@PORT@"].accept()


def list_own_processes():
    """List what runs with the limits of this file."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"\0{LIMITS.file_bytes}\0".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # it has ended
            continue
    return found


def test_no_process_is_left(verdicts):
    until = time.monotonic() + 60
    while list_own_processes() and time.monotonic() < until:
        time.sleep(0.1)
    assert not list_own_processes()


def test_an_unpassed_wall_clock_ends_all_that_a_program_started(run):
    fork = "import os, time\nfor _ in range(2): os.fork()\ntime.sleep(1000)"
    start = time.monotonic()
    assert run(Program(fork, ""), LIMITS).reason == "timeout"
    assert time.monotonic() - start < 300  # they sleep for 1000
    test_no_process_is_left(None)


def test_a_driver_that_is_killed_takes_its_programs_along():
    code = (
        "from caploc.sandbox import *\n"
        f"run_program(Program('import time; time.sleep(1000)', ''), {PATIENT!r})"
    )
    driver = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 60
    while not list_own_processes() and time.monotonic() < until:
        time.sleep(0.1)
    assert list_own_processes()
    driver.kill()
    driver.wait()
    test_no_process_is_left(None)
