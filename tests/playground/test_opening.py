"""Opening a playground: what it brings, what is refused before the model is loaded, and kills."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import pytest

import caploc
from caploc.cli.looking import open_playground
from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption, UnknownName
from caploc.finished import FinishedRun
from caploc.options import Settings, TaskOptions
from caploc.playground.playground import DrawnExample, Playground
from caploc.playground.serving import listen
from caploc.tasks.catalog import load_task
from caploc.tasks.task import Generated
from worlds import DEMO

MODEL = ModelOptions(DEMO, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    study = Study(
        MODEL, "demo/addition", "css", settings=Settings(masks=10, rate=0.05, top=2),
        other_tasks=("demo/sentences",), options=TaskOptions(fewshot=2), examples=4, controls=0,
        limit=8,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "mine"
    caploc.run_study(study, folder)
    return FinishedRun.read(folder)


def test_a_run_brings_its_model_and_tasks(run):
    playground = Playground.of_run(run, "cpu")
    assert list(playground.options) == ["demo/addition", "demo/sentences"]
    assert playground.options["demo/addition"].fewshot == 2
    assert playground.options["demo/sentences"].fewshot is None
    assert playground.loaded.fingerprint == run.result.model.fingerprint


def test_mistakes_are_refused_before_the_model_is_loaded(monkeypatch):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))
    with pytest.raises(UnknownName, match="Did you mean 'demo/addition'"):
        open_playground(DEMO, ["demo/additon"], TaskOptions(), {})
    with pytest.raises(BadOption, match="--data is for a task"):
        open_playground(DEMO, [], TaskOptions(data={"test": "x.jsonl"}), {})


def test_programs_are_shown_and_never_run_unless_allowed(monkeypatch):
    task = load_task("demo/addition")
    monkeypatch.setattr(task, "metric", replace(task.metric, runs_code=True))
    monkeypatch.setattr(task, "item", lambda *_: pytest.fail("the program was run"))
    answers = {"intact": [Generated("x")], "knocked_out": [Generated("y")]}
    assert "start with --allow-code" in DrawnExample(task, 0).verdict(answers)["withheld"]
    with pytest.raises(pytest.fail.Exception, match="was run"):
        DrawnExample(task, 0, judges_code=True).verdict(answers)


def test_a_port_that_cannot_be_used_is_refused_in_a_sentence():
    with listen(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BadOption, match=rf"Port {port} cannot be used .* --port 0 for any"):
            listen(port)


def digests(folder):
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def viewed(folder):
    """A server of a run, killed at the end; the address that it prints, whole and in parts."""
    command = [sys.executable, "-m", "caploc", "view", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        printed = r"View: ((http://127.0.0.1:\d+/)\?token=(\S+))"
        yield re.match(printed, server.stdout.readline()).groups()
        os.kill(server.pid, signal.SIGKILL)


def test_a_killed_server_costs_nothing_and_the_next_one_has_another_token(run):
    """The address that is printed works, and no other; what lies in the folders stays as it is."""
    before = digests(run.folder)
    with viewed(run.folder) as (url, base, token):
        page = urllib.request.urlopen(url)
        kept = {"cookie": page.headers["set-cookie"].partition(";")[0]}
        (entry,) = json.load(asked(f"{base}runs", kept))["runs"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(f"{base}runs", {})
        play, posted = f"{base}play/{entry['id']}", kept | {"content-type": "application/json"}
        asked(f"{play}/load", posted, {})
        endless = {"heads": ["L0H1"], "prompt": "1+1=", "new_tokens": 2000, "stops": []}
        assert asked(f"{play}/answers", posted, endless).readline()
    with viewed(run.folder) as (*_, other):
        assert other != token
    assert digests(run.folder) == before


def asked(url, headers, content=None):
    data = None if content is None else json.dumps(content).encode()
    return urllib.request.urlopen(urllib.request.Request(url, data, headers))
