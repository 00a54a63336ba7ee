"""One model in two processes: the same answers, the same study, and no process left behind."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import shared_answers
from test_loading import save
from tiny import GROUPED, build

from caploc.models.loading import check_model, load_model

HERE = Path(__file__).parent
pytestmark = pytest.mark.sharded
SECONDS = 120
# A rendezvous of its own on a free port of the loopback.
LAUNCH = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--local-addr",
    "127.0.0.1",
]
SHAPE = {**GROUPED, "num_hidden_layers": 4}


def environment():
    """Loopback only, one thread, nothing of a surrounding torchrun."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    return kept | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TQDM_DISABLE": "1"}


def torchrun(*command, processes=2, check=True):
    """Run a program in several processes; its output."""
    launch = [*LAUNCH, "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [*launch, *map(str, command)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with four heads in each layer, two to a key-value head."""
    return save(tmp_path_factory.mktemp("shared"), build("llama", SHAPE))


@pytest.fixture(scope="module")
def alone(folder):
    """Answers of one process."""
    return shared_answers.alone(str(folder))


def equal(found, truth):
    """Texts to the token, log-probabilities to rounding: sums of shards add in another order."""
    assert found.keys() == truth.keys()
    for key, response in truth.items():
        if "text" in response:
            assert found[key] == response
        else:
            assert found[key]["logprob"] == pytest.approx(response["logprob"], rel=1e-5, abs=1e-4)
            assert found[key]["greedy"] == response["greedy"]


def test_two_processes_answer_as_one(folder, alone, tmp_path):
    torchrun(HERE / "shared_answers.py", "together", folder, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["held"] == [[0, 2]] * SHAPE["num_hidden_layers"]
    said = {json.dumps(answer) for answer in alone["packed"].values()}
    assert len(said) > len(alone["packed"]) / 3  # masks change answers
    equal(found["packed"], alone["packed"])
    equal(found["again"], alone["packed"])


def test_the_plain_way_answers_as_one_process(folder, alone, tmp_path):
    torchrun(HERE / "shared_answers.py", "plainly", folder, tmp_path / "found.json")
    equal(json.loads((tmp_path / "found.json").read_text())["plain"], alone["plain"])


def nearly(found, truth):
    """Equal, floats to rounding."""
    if isinstance(truth, dict):
        return found.keys() == truth.keys() and all(nearly(found[k], truth[k]) for k in truth)
    if isinstance(truth, list):
        return len(found) == len(truth) and all(map(nearly, found, truth))
    return found == (pytest.approx(truth, rel=1e-5, abs=1e-4) if type(truth) is float else truth)


STUDY = ["--task", "demo/addition", "--method", "one-shot", "--examples", "12", "--limit", "20"]
STUDY += ["--controls", "2", "--quiet"]


def test_a_study_of_two_processes_finds_what_one_finds(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [sys.executable, "-m", "caploc", "locate", "demo", *STUDY, "--out", str(one)],
        env=environment(),
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    torchrun("-m", "caploc", "locate", "demo", *STUDY, "--device", "shard", "--out", two)
    truth, found = (json.loads((path / "result.json").read_text()) for path in (one, two))
    assert found["heads"] == truth["heads"]
    assert found["top"] == truth["top"]
    assert found["intact"] == truth["intact"]
    assert nearly(found["validation"], truth["validation"])


@pytest.mark.parametrize(
    ("processes", "options", "words"),
    [
        (2, [], "torchrun started several processes, and --device auto uses one"),
        (3, ["--device", "shard"], "which 3 processes cannot share evenly"),
        (2, ["--device", "shard", "--dtype", "int9"], "There is no dtype 'int9'"),
    ],
)
def test_a_mistake_is_said_once_and_all_processes_end(tmp_path, processes, options, words):
    command = ["-m", "caploc", "locate", "demo", *STUDY, *options, "--out", tmp_path / "run"]
    done = torchrun(*command, processes=processes, check=False)
    assert done.returncode != 0
    assert " ".join(done.stderr.split()).count(words) == 1


def test_a_killed_process_ends_the_others_and_the_rows_are_kept(tmp_path):
    out = tmp_path / "run"
    launch = [*LAUNCH, "--nproc-per-node", "2", "-m", "caploc", "locate", "demo"]
    many = ["--task", "demo/addition", "--device", "shard", "--quiet", "--out", str(out)]
    log = (tmp_path / "log").open("w")
    running = subprocess.Popen([*launch, *many], env=environment(), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while kept(out) < 50 and time.monotonic() < deadline:
            time.sleep(0.2)
        before = kept(out)
        assert before >= 50
        os.kill(follower(running.pid), signal.SIGKILL)
        assert running.wait(60) != 0
        assert kept(out) >= before
    finally:
        running.terminate()
        running.wait(60)
        log.close()


def kept(out):
    """Rows in a run folder so far."""
    if not (out / "rows.sqlite").exists():
        return 0
    with sqlite3.connect(f"file:{out / 'rows.sqlite'}?mode=ro", uri=True) as database:
        try:
            return database.execute("SELECT count(*) FROM rows").fetchone()[0]
        except sqlite3.OperationalError:  # not made yet
            return 0


def follower(launcher):
    """The process of a launcher that is not the first."""
    for child in psutil.Process(launcher).children():
        if child.environ().get("RANK") == "1":
            return child.pid
    raise AssertionError("there is no second process")


def test_a_shared_model_is_refused_alone(folder):
    for load in (check_model, load_model):
        with pytest.raises(Exception, match="start them: torchrun"):
            load(str(folder), device="shard")
