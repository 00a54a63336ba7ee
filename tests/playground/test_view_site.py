"""The view of runs: what it lists and shows, live, and what hostile folders cannot do."""

import json
import os
import time

import pytest
from starlette.testclient import TestClient

import caploc
from caploc.declaration import ModelOptions, Study
from caploc.options import Settings
from caploc.playground.app import Playgrounds
from caploc.playground.runs import STILL, RunIndex, identify
from caploc.playground.view import application
from caploc.report.templates import page_policy
from caploc.store import Store
from worlds import DEMO
from worlds.viewed_runs import HOSTILE, QUESTION, answer_of, stored_row, write_run


@pytest.fixture
def site(tmp_path):
    app = application(Playgrounds(RunIndex(tmp_path), "cpu"), "secret")
    with TestClient(app, base_url="http://127.0.0.1:8750") as client:
        client.get("/", params={"token": "secret"})
        yield client


def listed(site):
    return {run["path"]: run for run in site.get("/runs").json()["runs"]}


def address(tmp_path, name):
    return f"/run/{identify(tmp_path, tmp_path / name)}"


def test_a_run_is_listed_with_what_it_found(site, tmp_path):
    write_run(tmp_path / "deep" / "er" / "mine")
    run = listed(site)["deep/er/mine"]
    assert (run["model"], run["task"], run["method"], run["seed"]) == (
        "demo", "demo/addition", "css", 3,
    )  # fmt: skip
    assert (run["heads"], run["rows"]) == (["L0H1"], 1234)
    assert run["shown_scores"] == ["90\xa0%", "20\xa0%"]
    assert "L0H1" in run["verdict"] and run["state"] == "done"


def test_a_run_that_writes_is_running_until_it_has_ended_or_is_still(site, tmp_path):
    folder = write_run(tmp_path / "mine")
    (folder / "result.json").unlink()
    assert listed(site)["mine"]["state"] == "stopped"
    with Store(folder / "rows.sqlite") as store:
        question = store.question_id(QUESTION)
        for number in range(1, 4):
            store.add(question, [stored_row([], number, "4", 1.0)])
            assert listed(site)["mine"]["state"] == "running"
    for file in folder.glob("rows.sqlite*"):
        os.utime(file, (time.time() - 2 * STILL,) * 2)
    assert listed(site)["mine"]["state"] == "stopped"
    write_run(folder)
    assert listed(site)["mine"]["state"] == "done"


def test_an_evaluation_is_listed_with_what_it_gave(site, tmp_path):
    def scored(name, *scores):
        intact, without = ({"score": score} for score in scores)
        return {"name": name, "metric": "acc", "intact": intact, "knocked_out": without}

    folder = tmp_path / "scores"
    folder.mkdir()
    tasks = [scored("words/past", 0.8, 0.25), scored("words/antonym", 0.5, 0.52)]
    told = {"schema": 1, "model": "demo", "heads": ["L0H1", "L1H3"], "tasks": tasks}
    (folder / "evaluation.json").write_text(json.dumps(told | {"cost": {"rows": 400}}))
    run = listed(site)["scores"]
    assert (run["method"], run["rows"], run["heads"]) == ("evaluate", 400, ["L0H1", "L1H3"])
    assert run["verdict"].replace("\u00a0", " ") == (
        "words/past 80 % → 25 %, words/antonym 50 % → 52 %"
    )
    (folder / "evaluation.json").write_text(json.dumps(told | {"tasks": tasks[:1]}))
    assert listed(site)["scores"]["scores"] == [0.8, 0.25]


def test_no_address_leads_out_of_the_folder(site, tmp_path):
    write_run(tmp_path / "mine")
    for path in ("figures/secret.png", "figures/..%2Fresult.json", "../../etc/passwd"):
        found = site.get(f"{address(tmp_path, 'mine')}/{path}")
        assert found.status_code in (400, 404)


def test_a_strangers_report_may_run_our_script_and_nothing_else(site, tmp_path):
    folder = write_run(tmp_path / "mine")
    (folder / "report.html").write_text("<script>alert(1)</script>")
    reply = site.get(f"{address(tmp_path, 'mine')}/report.html")
    policies = [value for name, value in reply.headers.multi_items()
                if name == "content-security-policy"]  # fmt: skip
    (policy,) = policies
    assert policy.startswith(page_policy()) and "'unsafe-inline'" in policy
    assert "script-src 'sha256-" in policy and "default-src 'none'" in policy
    assert "sandbox allow-scripts allow-downloads" in policy and "same-origin" not in policy
    page = site.get("/").text
    assert 'sandbox="allow-scripts allow-downloads"' in page and "allow-same-origin" not in page


ANSWERS = [
    answer_of(0),
    answer_of(1, "4", "4", knocked_out_outcome=1.0),
    answer_of(2, "7", "4", intact_outcome=0.0, knocked_out_outcome=1.0),
    answer_of(3, "7", "8", intact_outcome=0.0),
    answer_of(4, "4", HOSTILE, prompt="Look at THIS ONE"),
]


@pytest.mark.parametrize(
    ("only", "places"),
    [
        ("all", [0, 1, 2, 3, 4]), ("changed", [0, 2, 3, 4]), ("lost", [0, 4]), ("gained", [2]),
        ("reworded", [3]), ("unchanged", [1]), ("right", [0, 1, 4]), ("wrong", [2, 3]),
    ],
)  # fmt: skip
def test_examples_are_found_by_what_became_of_them(site, tmp_path, only, places):
    write_run(tmp_path / "mine", ANSWERS)
    found = site.get(f"{address(tmp_path, 'mine')}/examples", params={"only": only}).json()
    assert [row["place"] for row in found["rows"]] == places
    assert found["counts"][only] == found["total"] == len(places)


def test_examples_are_found_by_their_text_and_handed_out_in_pages(site, tmp_path):
    many = [answer_of(number) for number in range(120)]
    write_run(tmp_path / "mine", [*many, ANSWERS[4]])
    path = f"{address(tmp_path, 'mine')}/examples"
    found = site.get(path, params={"text": "this one"}).json()
    assert [row["place"] for row in found["rows"]] == [120]
    pages = [site.get(path, params={"first": first}).json()["rows"] for first in (0, 50, 100, 150)]
    assert list(map(len, pages)) == [50, 50, 21, 0]
    assert [row["place"] for page in pages for row in page] == list(range(121))
    for asked in ({"only": "x"}, {"first": "-1"}, {"first": "9" * 99}):
        refused = site.get(path, params=asked)
        assert refused.status_code == 400 and len(refused.json()["message"]) < 200


def test_a_model_is_loaded_only_when_a_page_of_ours_asks(site, tmp_path):
    settings = Settings(masks=10, rate=0.05, top=2)
    study = Study(ModelOptions(DEMO, device="cpu"), "demo/addition", "css", settings=settings,
                  examples=4, controls=0, limit=8)  # fmt: skip
    caploc.run_study(study, tmp_path / "mine")
    play = f"/play/{identify(tmp_path, tmp_path / 'mine')}"
    assert site.get(f"{play}/board").json() == {"unloaded": "demo", "state": "done"}
    asked = {"heads": ["L0H13"], "prompt": "47+38=", "new_tokens": 2}
    assert "load this page again" in site.post(f"{play}/answers", json=asked).json()["message"]
    assert site.post(f"{play}/load", data={"a": "b"}).status_code == 400
    assert site.get(f"{play}/load").status_code == 405
    assert "unloaded" in site.get(f"{play}/board").json()
    assert site.post(f"{play}/load", json={}).status_code == 200
    board = site.get(f"{play}/board").json()
    assert sum(board["layers"]) == 96 and board["run"]["task"] == "demo/addition"
    lines = site.post(f"{play}/answers", json=asked).text.splitlines()
    assert json.loads(lines[-1])["intact"]["text"] == "85"


def test_a_run_of_a_stranger_gets_no_code_of_its_model_run(site, tmp_path):
    folder = write_run(tmp_path / "mine")
    run = json.loads((folder / "run.json").read_text())
    run["study"]["model"]["trust_remote_code"] = True
    (folder / "run.json").write_text(json.dumps(run))
    reply = site.post(f"/play/{identify(tmp_path, folder)}/load", json={})
    assert reply.status_code == 400 and "--trust-remote-code" in reply.json()["message"]
