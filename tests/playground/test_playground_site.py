"""The site: what it answers, to whom, and in which words it refuses."""

import json
import re
import socket
import sys
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from caploc.components import ALONE, read_heads
from caploc.contents import RunFile, check_contents
from caploc.declaration import ModelOptions, Study
from caploc.export.card import evidence_of
from caploc.finished import FinishedRun
from caploc.playground.app import application
from caploc.playground.serving import PAGE, is_known, list_hosts
from caploc.result import Result
from caploc.wording import UNSEEN
from worlds import DEMO

HEADS = ["L0H13", "L0H14"]


@pytest.fixture(scope="module")
def site(playground):
    with TestClient(
        application(playground, list_hosts("127.0.0.1")), base_url="http://127.0.0.1:8750"
    ) as client:
        yield client


def test_answers_come_as_lines_of_json(site):
    asked = {"heads": HEADS, "prompt": "47+38=", "new_tokens": 4}
    events = [json.loads(line) for line in site.post("/answers", json=asked).iter_lines()]
    assert [e["event"] for e in events][:2] == ["begin", "token"]
    assert events[-1] == {"event": "done"}


def test_the_board_lays_out_every_head_and_task(site, playground):
    board = site.get("/board").json()
    assert sum(board["layers"]) == playground.loaded.grid.size
    assert board["tasks"][0] == "demo/addition" and board["runs"] == []
    assert board["titles"]["demo/addition"] == "demo/addition"


def test_an_example_that_is_drawn_is_one_of_the_tasks(site, playground):
    drawn = site.post("/example", json={"task": "demo/addition"}).json()
    first = playground.task("demo/addition").requests(drawn["number"])[0]
    assert drawn["prompt"] == first.prompt and drawn["size"] == 512
    again = site.post("/example", json={"task": "demo/addition", "number": drawn["number"]})
    assert again.json() == drawn


def test_saved_heads_are_a_file_that_knockout_reads(site, playground, tmp_path):
    reply = site.post("/heads", json={"heads": HEADS})
    assert reply.headers["content-disposition"] == 'attachment; filename="heads.json"'
    (tmp_path / "heads.json").write_bytes(reply.content)
    file = read_heads(tmp_path / "heads.json")
    assert file.names == HEADS and file.grid == playground.loaded.grid
    assert file.fingerprint == playground.loaded.fingerprint


@pytest.fixture
def run(playground, monkeypatch, tmp_path):
    """The playground opened on a run whose ranking is L3H12, L0H13, then L5H1."""
    score = {"score": 1.0, "stderr": None, "examples": 1}
    result = {
        "model": {"name": "demo"},
        "task": {"name": "demo/addition"},
        "method": {"name": "css"},
        "grid": {"layers": 6, "heads": [16] * 6},
        "estimand": {"heads": ALONE, "top": ALONE},
        "heads": [
            {"head": f"L{layer}H{index}", "layer": layer, "index": index, "effect": -0.5}
            for layer, index in ((5, 1), (0, 13), (3, 12))
        ],
        "top": ["L3H12", "L0H13"],
        "validation": {"task": {"name": "demo/addition", "intact": score, "knocked_out": score}},
    }
    study = Study(ModelOptions(DEMO), "demo/addition")
    found = check_contents(tmp_path / "result.json", Result, result)
    run = FinishedRun(tmp_path, study, found, RunFile(study={}))
    monkeypatch.setattr(playground, "setting", replace(playground.setting, runs=(run,)))
    return run


@pytest.mark.parametrize("heads", [["L0H13", "L3H12"], ["L5H1", "L0H13", "L3H12"], ["L3H12"]])
def test_a_runs_first_heads_are_saved_in_its_order_with_what_it_measured(
    site, run, tmp_path, heads
):
    reply = site.post("/heads", json={"heads": heads, "run": 0})
    (tmp_path / "heads.json").write_bytes(reply.content)
    file = read_heads(tmp_path / "heads.json")
    assert file.names == ["L3H12", "L0H13", "L5H1"][: len(heads)]
    assert file.evidence == evidence_of(run, file.heads)


def test_no_run_speaks_for_heads_that_were_chosen_by_hand(site, run, tmp_path):
    reply = site.post("/heads", json={"heads": ["L5H1", "L3H12"], "run": 0})
    (tmp_path / "heads.json").write_bytes(reply.content)
    file = read_heads(tmp_path / "heads.json")
    assert file.names == ["L3H12", "L5H1"] and file.evidence == {}


def test_a_saved_file_tells_no_folder_of_this_machine(site, playground, monkeypatch):
    monkeypatch.setattr(
        playground, "loaded", replace(playground.loaded, name="/home/someone/models/mine")
    )
    content = site.post("/heads", json={"heads": HEADS}).json()
    assert content["model"]["name"] == "mine"


def test_the_page_draws_the_unseen_characters_that_reports_draw(site):
    """The page's list is read as Python reads it and tried on every character there is."""
    (listed,) = re.findall(r"const UNSEEN = /\[(.*)\]/gu;", (PAGE / "words.js").read_text())
    drawn = re.sub(r"\\u\{(\w+)\}", lambda found: chr(int(found[1], 16)), listed)
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert re.findall(f"[{drawn}]", every) == UNSEEN.findall(every)


@pytest.mark.parametrize("path", ["/", "/board", "/page/main.js", "/shades.css", "/nothing"])
def test_every_answer_carries_the_policy(site, path):
    headers = site.get(path).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_no_file_of_the_page_names_an_address_elsewhere(site):
    for path in PAGE.iterdir():
        reply = site.get(f"/page/{path.name}")
        assert reply.status_code == 200
        assert "//" not in reply.text.replace("// ", "").replace("http://www.w3.org", "")


def test_other_names_for_this_machine_are_refused(site):
    refused = site.get("/board", headers={"host": "evil.example:8750"})
    assert refused.status_code == 400 and "open it by its IP address" in refused.text
    assert "script-src 'self'" in refused.headers["content-security-policy"]
    assert site.get("/board", headers={"host": "localhost:8750"}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "mybox.lan"])
def test_a_name_that_anyone_may_point_here_is_unknown_wherever_it_listens(host):
    names = list_hosts(host)
    for known in ("127.0.0.1:8750", "LOCALHOST", "[::1]:8750", "192.168.0.7", "[fe80::1]:80"):
        assert is_known(known, names)
    for other in ("evil.example:8750", "", "127.0.0.1.evil.example", "evil@127.0.0.1", "[evil]",
                  "127.0.0.1:80@evil.example", "::1:8750x", "localhost.evil.example"):  # fmt: skip
        assert not is_known(other, names)


def test_a_machine_that_others_reach_answers_to_its_own_name_and_the_one_given():
    own = socket.gethostname()
    assert is_known(f"{own}:8750", list_hosts("0.0.0.0"))
    assert is_known("MyBox.lan:8750", list_hosts("mybox.lan"))
    assert not is_known("mybox.lan:8750", list_hosts("127.0.0.1"))


def test_a_form_of_another_page_is_refused(site):
    reply = site.post("/heads", data={"heads": "L0H1"})
    assert reply.status_code == 400 and "takes application/json" in reply.json()["message"]
    plain = site.post("/heads", content=b"{}", headers={"content-type": "text/plain"})
    assert plain.status_code == 400
    assert "access-control-allow-origin" not in site.options("/heads").headers


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        ("/answers", "{", "Invalid JSON"),
        ("/answers", '{"heads": [], "surprise": 1}', "surprise: Extra inputs"),
        ("/answers", '{"heads": [], "new_tokens": 0}', "new_tokens: Input should be greater"),
        ("/example", '{"task": "demo/nothing"}', "is not laid out here"),
        ("/heads", '{"heads": []}', "No head is chosen"),
        ("/heads", '{"heads": ["L6H0"]}', "L0 to L5"),
        ("/heads", '{"heads": ["L0H1"], "run": 3}', "there are 0 here, none is 3"),
        ("/attention", '{"question": {"heads": []}, "said": [1], "head": "L0H0"}', "empty"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(site, path, content, sentence):
    reply = site.post(path, content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert sentence in reply.json()["message"]
    assert "Traceback" not in reply.text


def test_a_request_beyond_all_measure_is_refused(site):
    reply = site.post("/answers", json={"heads": [], "prompt": "x" * 9_000_000})
    assert reply.status_code == 400 and "8,000,000 bytes" in reply.json()["message"]
