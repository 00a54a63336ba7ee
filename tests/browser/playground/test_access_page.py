"""The playground's page by keyboard, on a phone, under attack, stopped, twice, without a server."""

import json
import time

import pytest

pytest.importorskip("playwright.sync_api")
from acting import HOSTILE, answered, ask, chosen, focused, text
from playwright.sync_api import expect
from views import VIEWS, check_view

pytestmark = pytest.mark.browser


def test_everything_goes_without_a_mouse(play):
    page = play()
    page.locator("#clear").click()
    cell = page.locator("#map td[tabindex='0']")
    cell.focus()
    start = cell.get_attribute("data-head")
    for key in ("ArrowRight", "ArrowDown", " ", "End", "Enter"):
        page.keyboard.press(key)
    layer, index = (int(part) for part in start[1:].split("H"))
    assert chosen(page) == [f"L{layer + 1}H{index + 1}", f"L{layer + 1}H15"]
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.locator("#prompt").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("sort 72941=")
    page.keyboard.press("Control+Enter")
    answered(page)
    assert text(page, "intact").startswith("12479")


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_bars_the_way_and_nothing_sticks_out(play, view):
    page = play(view)
    for task in ("demo/addition", "demo/capitals"):
        page.locator("#task").select_option(task)
        page.locator("#about-example", has_text=task).wait_for()
        answered(page)
        page.locator(".token:visible").first.click()
        check_view(page, view)


def test_what_a_model_says_stays_text(play):
    odds = {"token": 1, "text": HOSTILE, "special": False, "intact": -0.1, "knocked_out": -4.0}
    odds["likeliest"] = {"intact": [[HOSTILE, -0.1]], "knocked_out": [[HOSTILE, -0.2]]}
    side = {"tokens": [odds], "text": HOSTILE, "cut": False}
    judged = {"answer": HOSTILE, "score": 0, "said": HOSTILE, "mark": None}
    verdict = {"metric": HOSTILE, "intact": judged, "knocked_out": judged}
    answers = {"kind": "written", "intact": side, "knocked_out": side, "verdict": verdict}
    so_far = {"kind": "so far", "intact": HOSTILE, "knocked_out": HOSTILE}
    drawn = {
        "task": HOSTILE, "number": 1, "size": 2, "metric": HOSTILE, "prompt": HOSTILE,
        "gold": HOSTILE,
    }  # fmt: skip
    page = play()
    page.route("**/example", lambda route: route.fulfill(json=drawn))
    title, lines = page.title(), [json.dumps(so_far) + "\n"]
    page.route("**/answers", lambda route: route.fulfill(body="".join(lines)))
    page.locator("#draw").click()
    answered(page)
    expect(page.locator("#intact .text")).to_contain_text("<script>document.title='run'</script>")
    lines.append(json.dumps(answers) + "\n")
    page.locator("#draw").click()
    page.locator("#knocked_out .token").hover()
    for place in ("#intact .text", "#inspector", "#gold", "#knocked_out .verdict"):
        expect(page.locator(place)).to_contain_text("<script>document.title='run'</script>")
    assert "⟨U+202E⟩" in text(page, "intact") and "\u202e" not in text(page, "intact")
    assert page.title() == title and page.locator("main img, main script").count() == 0


def test_words_come_one_by_one_and_stop_ends_them_on_the_server_too(play, playground, monkeypatch):
    steps = []

    def endless(question, tell):
        while True:
            steps.append("la")
            time.sleep(0.005)
            tell({"kind": "so far", "intact": " ".join(steps), "knocked_out": ""})

    page = play()
    monkeypatch.setattr(playground, "answer", endless)
    page.locator("#answer").click()
    for number in (3, 30):
        expect(page.locator("#intact .text")).to_contain_text(" ".join(["la"] * number))
    page.locator("#stop").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("stopped")
    assert focused(page) == "Stop"
    monkeypatch.undo()
    ask(page)  # one thread answers: it has ended the other
    assert text(page, "intact").startswith("85")


def test_a_page_without_its_server_or_its_token_says_so(chromium, serve, playground, run):
    with serve(run.folder.parent, playground) as (base, token):
        page = chromium.new_context().new_page()
        refused = page.goto(f"{base}/play/model/")
        assert refused.status == 403 and "with its token" in page.locator("body").inner_text()
        page.goto(f"{base}/play/model/{token}")
        answered(page)
        page.goto(base)  # the browser has kept it
        expect(page.locator("#list-shown")).to_have_text("1 of 1")
        page.go_back()
        answered(page)
        page.locator("#prompt").fill("1+1=")
    page.locator("#answer").click()
    expect(page.locator("#failure")).to_contain_text("is `caploc view` still running?")
    assert page.locator("#prompt").input_value() == "1+1="
