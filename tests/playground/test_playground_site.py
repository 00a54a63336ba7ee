"""The site: what it answers, and in which words it refuses."""

import json
import re
import sys

import pytest
from starlette.testclient import TestClient

from caploc.playground.app import Playgrounds
from caploc.playground.runs import RunIndex
from caploc.playground.serving import PAGE
from caploc.playground.view import application
from caploc.wording import UNSEEN

HEADS = ["L0H13", "L0H14"]
PLAY = "/play/model"


@pytest.fixture(scope="module")
def site(playground, tmp_path_factory):
    runs = RunIndex(tmp_path_factory.mktemp("no runs"))
    app = application(Playgrounds(runs, "cpu", playground=playground), "secret")
    with TestClient(app, base_url="http://127.0.0.1:8750") as client:
        client.get("/", params={"token": "secret"})
        yield client


def test_answers_come_as_lines_of_json(site):
    asked = {"heads": HEADS, "prompt": "47+38=", "new_tokens": 4}
    lines = site.post(f"{PLAY}/answers", json=asked).iter_lines()
    *so_far, last = map(json.loads, lines)
    assert [each["intact"] for each in so_far] == ["8", "85", "85"]
    assert last["kind"] == "written" and last["intact"]["text"] == "85"


def test_the_board_lays_out_every_head_and_task(site, playground):
    board = site.get(f"{PLAY}/board").json()
    assert sum(board["layers"]) == playground.loaded.grid.size
    assert board["tasks"][0] == "demo/addition" and board["run"] is None
    assert board["titles"]["demo/addition"] == "demo/addition"


def test_an_example_that_is_drawn_is_one_of_the_tasks(site, playground):
    drawn = site.post(f"{PLAY}/example", json={"task": "demo/addition"}).json()
    first = playground.task("demo/addition").requests(drawn["number"])[0]
    assert drawn["prompt"] == first.prompt and drawn["size"] == 512
    again = site.post(f"{PLAY}/example", json={"task": "demo/addition", "number": drawn["number"]})
    assert again.json() == drawn


def test_the_page_draws_the_unseen_characters_that_reports_draw():
    """The page's list is read as Python reads it and tried on every character there is."""
    (listed,) = re.findall(r"const UNSEEN = /\[(.*)\]/gu;", (PAGE / "words.js").read_text())
    drawn = re.sub(r"\\u\{(\w+)\}", lambda found: chr(int(found[1], 16)), listed)
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert re.findall(f"[{drawn}]", every) == UNSEEN.findall(every)


def test_a_form_of_another_page_is_refused(site):
    reply = site.post(f"{PLAY}/answers", data={"heads": "L0H1"})
    assert reply.status_code == 400 and "takes application/json" in reply.json()["message"]
    assert "access-control-allow-origin" not in site.options(f"{PLAY}/answers").headers


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        ("answers", "{", "Invalid JSON"),
        ("answers", '{"heads": [], "surprise": 1}', "surprise: Extra inputs"),
        ("answers", '{"heads": [], "new_tokens": 0}', "new_tokens: Input should be greater"),
        ("answers", '{"heads": ["L6H0"], "prompt": "1"}', "L0 to L5"),
        ("example", '{"task": "demo/nothing"}', "is not laid out here"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(site, path, content, sentence):
    reply = site.post(
        f"{PLAY}/{path}", content=content, headers={"content-type": "application/json"}
    )
    assert sentence in reply.json()["message"] and "Traceback" not in reply.text
