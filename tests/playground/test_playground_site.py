"""The site: what it answers, to whom, and in which words it refuses."""

import json

import pytest
from starlette.testclient import TestClient

from caploc.headfile import read_heads
from caploc.playground.app import application
from caploc.playground.serving import hosts_of

HEADS = ["L0H13", "L0H14"]


@pytest.fixture(scope="module")
def site(playground):
    with TestClient(
        application(playground, hosts_of("127.0.0.1")), base_url="http://127.0.0.1:8750"
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


@pytest.mark.parametrize("path", ["/", "/board", "/page/main.js", "/shades.css", "/nothing"])
def test_every_answer_carries_the_policy(site, path):
    headers = site.get(path).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_no_file_of_the_page_names_an_address_elsewhere(site):
    for name in ("", *(f"page/{n}" for n in ("page.css", "main.js", "heads.js", "answers.js",
                                            "attention.js", "net.js", "words.js"))):  # fmt: skip
        reply = site.get(f"/{name}")
        assert reply.status_code == 200
        assert "//" not in reply.text.replace("// ", "").replace("http://www.w3.org", "")


def test_other_names_for_this_machine_are_refused(site):
    assert site.get("/board", headers={"host": "evil.example:8750"}).status_code == 400
    assert site.get("/board", headers={"host": "localhost:8750"}).status_code == 200


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
