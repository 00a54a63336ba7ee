"""Hundreds of hostile programs, as root and as a plain user, with namespaces and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import list_programs

from caploc import sandbox

pytestmark = pytest.mark.attacks

HERE = Path(__file__).parent
SOURCE = str(Path(sandbox.__file__).parents[2])
NOBODY = 65534
# The profile is chosen by name here, not by what is strongest.
PROFILES = {"namespaces": "namespaces", "no namespaces": "landlock"}
SETTINGS = [(user, profile) for user in ("root", "plain user") for profile in PROFILES]
PROGRAMS = list_programs()


def find_python(user):
    """A Python that both this user and those whom root becomes can run."""
    if os.geteuid() != 0:
        return sys.executable
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); import caploc.sandbox"
    for python in filter(os.path.exists, (sys.executable, "/usr/bin/python3")):
        try:
            subprocess.run([python, "-B", "-c", code], check=True, capture_output=True, **user)
        except (subprocess.CalledProcessError, PermissionError):
            continue
        return python
    pytest.skip("no Python 3.11 here can be read by other users than root, with this package")


def judge_as(user, profile):
    """What came of every program in one setting, or a skip with the reason."""
    is_root = os.geteuid() == 0
    if user == "root" and not is_root:
        pytest.skip("only root can try what root's programs may do")
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root else {}
    asked = {
        "source": SOURCE,
        "profile": PROFILES[profile],
        "programs": {name: [text, tests] for name, (_, text, tests, _) in PROGRAMS.items()},
    }
    done = subprocess.run(
        [find_python(nobody), "-B", "-c", (HERE / "driver.py").read_text()],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd="/",
        **(nobody if user == "plain user" else {}),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "refused" in found:
        pytest.skip(f"this machine does not give {profile} to {user}: {found['refused']}")
    return found


@pytest.fixture(scope="session")
def judged():
    """What came of every program, by setting; all programs of a setting share one pool."""
    known = {}

    def judge(setting):
        if setting not in known:
            try:
                known[setting] = judge_as(*setting)
            except pytest.skip.Exception as reason:
                known[setting] = reason
        if isinstance(known[setting], pytest.skip.Exception):
            raise known[setting]
        return known[setting]

    return judge


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("setting", SETTINGS, ids=" with ".join)
def test_a_hostile_program_neither_passes_nor_harms(judged, setting, name):
    kind, _, _, reasons = PROGRAMS[name]
    if kind == "namespaces" and setting[1] != "namespaces":
        pytest.skip("names and dates of files are hidden by namespaces alone")
    found = judged(setting)
    passed, reason, detail = found["verdicts"][name]
    assert reason in reasons, detail
    assert passed == (kind != "exhaustion" and kind != "forgery")
    assert found["harm"][name] == []


@pytest.mark.parametrize("setting", SETTINGS, ids=" with ".join)
def test_nothing_that_programs_share_is_touched(judged, setting):
    """Ports of this machine, a process of the same user, and Python's library."""
    assert judged(setting)["common harm"] == []


def test_there_are_enough_of_each_kind():
    kinds = [kind for kind, *_ in PROGRAMS.values()]
    assert kinds.count("escape") > 200 and kinds.count("exhaustion") >= 30
    assert kinds.count("forgery") > 60
