"""Uploading: what goes wrong is a sentence, and a server that speaks the Hub's API gets it all."""

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from caploc.errors import BadOption, RunFailed
from caploc.export import Export
from caploc.heads import Head
from caploc.workbench import ModelOptions


def export(target, **changes):
    return Export(ModelOptions("demo"), (Head(0, 10),), "heads", target, **changes)


@pytest.mark.parametrize(
    ("repository", "words"),
    [("a/b/c", "is no repository"), ("me/..", "is no repository"), ("me/x", "needs a token")],
)
def test_mistakes_are_seen_before_anything_is_written(repository, words, tmp_path, monkeypatch):
    monkeypatch.setattr("caploc.export.get_token", lambda: None)
    with pytest.raises(BadOption, match=words):
        export(tmp_path / "out", repository=repository).write()
    assert not (tmp_path / "out").exists()


def test_no_network_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "caploc.export.get_token", lambda: "hf_made_up"
    )  # HF_HUB_OFFLINE is set in tests
    with pytest.raises(RunFailed, match="me/x could not be put on .* Nothing was written"):
        export(tmp_path / "out", repository="me/x").write()
    assert not (tmp_path / "out").exists()


class StandIn(BaseHTTPRequestHandler):
    """As much of the Hub as an upload of small files asks for."""

    def do_GET(self):
        if self.path.startswith("/api/whoami"):
            self.reply({"name": "me", "type": "user", "orgs": []})
        elif "/tree/" in self.path:
            files = self.server.repositories["me/taken"]
            self.reply([{"type": "file", "path": file, "oid": "0", "size": 0} for file in files])
        elif self.path.startswith("/api/models/me/"):
            name = self.path.split("?")[0].removeprefix("/api/models/").split("/revision")[0]
            files = self.server.repositories.get(name)
            siblings = [{"rfilename": file} for file in files or ()]
            if files is None:
                self.reply({"error": "Repository not found"}, 404, "RepoNotFound")
            else:
                self.reply({"id": name, "modelId": name, "siblings": siblings, "sha": "0" * 40})
        else:
            self.reply({}, 404)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.server.created.append(asked)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.server.repositories.setdefault(name, {})
            self.reply({"url": f"{self.server.url}/{name}", "name": name})
        elif "/preupload/" in self.path:
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            self.reply({"files": files})
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/models/").split("/commit")[0]
            for line in body.splitlines():
                each = json.loads(line)
                if each["key"] == "file":
                    content = base64.b64decode(each["value"]["content"])
                    self.server.repositories[name][each["value"]["path"]] = content
            oid = "1" * 40
            url = f"{self.server.url}/{name}/commit/{oid}"
            self.reply({"commitUrl": url, "commitOid": oid, "pullRequestUrl": None})
        else:  # among others the check of the card's metadata
            self.reply({"errors": [], "warnings": []})

    def reply(self, content, status=200, code=None):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        self.server.asked.append(f"{self.command} {self.path}")


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    made.url = f"http://127.0.0.1:{made.server_port}"
    made.repositories, made.created, made.asked = {"me/taken": {"model.safetensors": b""}}, [], []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def caploc(server, home, *arguments):
    environment = os.environ | {
        "HF_ENDPOINT": server.url, "HF_TOKEN": "hf_made_up", "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(home), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "caploc", "export", "demo", "--heads", "L0H10,L2H3", *arguments],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoint", "heads"])
def test_a_repository_gets_what_the_folder_holds(kind, server, tmp_path):
    out = tmp_path / "out"
    done = caploc(server, tmp_path / "home", "--to", str(out), "--as", kind,
                  "--push-to-hub", "me/cut", "--private")  # fmt: skip
    assert done.returncode == 0, (done.stderr, server.asked)
    (created,) = server.created
    private = created.get("private") or created.get("visibility") == "private"
    assert created["name"] == "cut" and private
    held = {path.name: path.read_bytes() for path in out.iterdir()}
    assert server.repositories["me/cut"] == held and "README.md" in held
    assert f"Uploaded: {server.url}/me/cut" in done.stdout.replace("\n", "")


@pytest.mark.slow
def test_a_repository_that_holds_something_is_refused_first(server, tmp_path):
    done = caploc(server, tmp_path / "home", "--to", str(tmp_path / "out"),
                  "--push-to-hub", "me/taken")  # fmt: skip
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert "holds 'model.safetensors'" in " ".join(done.stderr.split())
    assert server.created == []
