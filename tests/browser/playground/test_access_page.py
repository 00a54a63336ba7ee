"""The playground's page by keyboard, on a phone, under attack, stopped, twice; what it saves."""

import json
import time

import pytest

pytest.importorskip("playwright.sync_api")
from acting import HOSTILE, VIEWS, answered, ask, chosen, focused, text
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from caploc.components import read_heads
from caploc.export import Export
from caploc.finished import FinishedRun
from caploc.playground.setting import PageQuestion
from caploc.wording import UNSEEN, visible

pytestmark = pytest.mark.browser


def test_the_saved_file_of_a_runs_heads_is_the_exported_one(visit, runs, tmp_path):
    page = visit()
    with page.expect_download() as waiting:
        page.locator("#save").click()
    waiting.value.save_as(tmp_path / "saved.json")
    run = FinishedRun.read(runs / "addition")
    heads = read_heads(tmp_path / "saved.json").heads
    Export(
        model=run.study.model, heads=heads, target=tmp_path / "to", kind="heads", run=run
    ).write()
    exported = (tmp_path / "to" / "heads.json").read_bytes()
    assert (tmp_path / "saved.json").read_bytes() == exported


def test_heads_are_saved_as_a_file_that_knockout_reads(visit, tmp_path):
    page = visit()
    names = page.evaluate("() => [...window.playground.map.chosen]")
    with page.expect_download() as waiting:
        page.locator("#save").click()
    assert waiting.value.suggested_filename == "heads.json"
    waiting.value.save_as(tmp_path / "heads.json")
    file = read_heads(tmp_path / "heads.json")
    assert file.names == names and file.evidence["task"]["name"] == "demo/addition"


def test_everything_goes_without_a_mouse(visit):
    page = visit()
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


def test_arrow_keys_reach_every_layer_that_has_heads(visit):
    def uneven(page):
        def altered(route):
            board = route.fetch().json()
            board |= {"layers": [4, 0, 2, 3], "group_sizes": [1, 1, 1, 1], "runs": []}
            route.fulfill(json=board | {"tasks": [*board["tasks"], HOSTILE]})

        page.route("**/board", altered)

    page = visit(ready=False, before=uneven)
    page.locator("[data-head=L0H0]").focus()
    walked = []
    for key in ("End", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        walked.append(focused(page))
    assert walked == ["L0H3", "L2H1", "L3H1", "L3H1", "L3H2", "L2H1", "L0H1"]
    named = page.locator("#task option").all_inner_texts()[-1]
    assert named == visible(HOSTILE) and "⟨U+202E⟩" in named


def test_no_button_loses_the_focus_it_has(visit):
    page = visit()
    page.locator("#clear").click()
    for head in ("L0H1", "L0H2", "L1H3"):
        page.locator(f"[data-head={head}]").click()
    page.get_by_role("button", name="Do not knock out L0H2").focus()
    for expected in ("L1H3", "L0H1", "L0H1"):
        page.keyboard.press("Enter")
        assert focused(page).removesuffix(" ×") == expected
    assert chosen(page) == [] and page.locator(":focus").get_attribute("data-head") == "L0H1"
    page.locator("[data-head=L0H1]").click()
    for name in ("Random instead", "None", "None"):
        page.get_by_role("button", name=name).focus()
        page.keyboard.press("Enter")
        assert focused(page) == name
    assert chosen(page) == []
    expect(page.get_by_role("button", name="Random instead")).to_be_disabled()


def test_unseen_characters_are_drawn_as_in_reports(visit):
    page = visit()
    unseen = [code for code in range(0x110000) if UNSEEN.match(chr(code))]
    drawn = page.evaluate(
        """async (codes) => {
            const { visible } = await import("/page/words.js");
            return codes.map((code) => visible(String.fromCodePoint(code)));
        }""",
        unseen,
    )
    assert drawn == [visible(chr(code)) for code in unseen]


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_bars_the_way_and_nothing_sticks_out(visit, view):
    page = visit(view)
    for task in ("demo/addition", "demo/capitals"):
        page.locator("#task").select_option(task)
        page.locator("#about-example", has_text=task).wait_for()
        answered(page)
        page.locator(".token:visible").first.click()
        page.locator("#look").click()
        page.locator("#pattern").wait_for()
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []
        assert (
            page.evaluate("() => document.documentElement.scrollWidth")
            <= page.viewport_size["width"]
        )
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 150) is (view == "dark")


def test_what_a_model_says_stays_text(visit):
    odds = {"intact": -0.1, "knocked_out": -4.0}
    odds["likeliest"] = {"intact": [[HOSTILE, -0.1]], "knocked_out": [[HOSTILE, -0.2]]}
    said = [{"event": "begin"}]
    for side in ("intact", "knocked_out"):
        said.append(
            {"event": "token", "side": side, "token": 1, "text": HOSTILE, "ends": False, **odds}
        )
    judged = {"answer": HOSTILE, "score": 0, "said": HOSTILE, "mark": None}
    said.append(
        {
            "event": "verdict",
            "gold": HOSTILE,
            "metric": HOSTILE,
            "intact": judged,
            "knocked_out": judged,
        }
    )
    lines = "".join(json.dumps(event) + "\n" for event in [*said, {"event": "done"}])
    drawn = {
        "task": HOSTILE, "number": 1, "size": 2, "metric": HOSTILE, "kind": "written",
        "prompt": HOSTILE, "gold": HOSTILE, "choices": [],
    }  # fmt: skip
    page = visit()
    page.route("**/answers", lambda route: route.fulfill(body=lines))
    page.route("**/example", lambda route: route.fulfill(json=drawn))
    title = page.title()
    page.locator("#draw").click()
    answered(page)
    page.locator("#knocked_out .token").hover()
    for place in ("#intact .text", "#inspector", "#gold", "#knocked_out .verdict"):
        expect(page.locator(place)).to_contain_text("<script>document.title='run'</script>")
    assert "⟨U+202E⟩" in text(page, "intact") and "\u202e" not in text(page, "intact")
    assert page.title() == title and page.locator("main img, main script").count() == 0


def test_stop_ends_the_answer_on_the_server_too(visit, playground, monkeypatch):
    steps = []

    def endless(question):
        yield {"event": "begin"}
        try:
            while True:
                steps.append(1)
                time.sleep(0.005)
                yield {
                    "event": "token", "side": "intact", "token": 1, "text": "la ", "ends": False,
                    "intact": -1.0, "knocked_out": -1.0,
                    "likeliest": {"intact": [], "knocked_out": []},
                }  # fmt: skip
        finally:
            steps.append("closed")

    page = visit()
    monkeypatch.setattr(playground, "answers", endless)
    page.locator("#answer").click()
    page.locator("#intact .token").nth(20).wait_for()
    page.locator("#stop").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("stopped")
    assert focused(page) == "Stop"
    for _ in range(100):
        if steps[-1] == "closed":
            break
        time.sleep(0.05)
    assert steps[-1] == "closed"
    monkeypatch.undo()
    ask(page)
    assert text(page, "intact").startswith("85")


def test_two_tabs_keep_their_own_heads(visit, playground):
    tabs, heads = [visit(), visit()], ["L0H13", "L0H14"]
    for page, head in zip(tabs, heads, strict=True):
        page.locator("#clear").click()
        page.locator(f"[data-head={head}]").click()
        page.locator("#prompt").fill("# f: add 2, negate, double\ndef f(x):\n")
        page.locator("#stops").evaluate("e => { e.value = '' }")
    for page in tabs:
        page.locator("#answer").click()
    for page in tabs:
        answered(page)  # both: below the model is asked beside the server, which has it no more
    for page, head in zip(tabs, heads, strict=True):
        asked = PageQuestion(
            heads=[head], prompt="# f: add 2, negate, double\ndef f(x):\n", new_tokens=64
        )
        events = [e for e in playground.answers(asked) if e.get("side") == "knocked_out"]
        shown = page.evaluate(
            "() => window.playground.answers.tokens.knocked_out.map((token) => token.token)"
        )
        assert shown == [e["token"] for e in events if e["event"] == "token"]


def test_mistakes_get_a_sentence_on_the_page(visit):
    page = visit()
    failure = page.locator("#failure")
    page.locator("#prompt").fill(" ")
    page.locator("#answer").click()
    expect(failure).to_contain_text("The prompt is empty")
    page.locator("#prompt").fill("1" * 2100)
    page.locator("#answer").click()
    expect(failure).to_contain_text("the model's window is 2,048")
    page.locator("#prompt").fill("1+1=")
    page.locator("summary").click()
    page.locator("#stops").fill("\\n")
    page.locator("#answer").click()
    expect(failure).to_contain_text("write texts in quotes between commas")
    page.locator("#stops").fill("")
    page.locator("#clear").click()
    page.locator("#answer").click()
    expect(failure).to_contain_text("No head is chosen")
    page.route("**/answers", lambda route: route.abort())
    page.locator("[data-head=L0H1]").click()
    page.locator("#answer").click()
    expect(failure).to_contain_text("is `caploc view` still running?")
