"""The playground's page by keyboard, on a phone, under attack, stopped, twice, without a server."""

import json
import time

import pytest

pytest.importorskip("playwright.sync_api")
from acting import HOSTILE, VIEWS, answered, ask, chosen, focused, shown, text, truth
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from caploc.wording import UNSEEN, visible

pytestmark = pytest.mark.browser


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
            board |= {"layers": [4, 0, 2, 3], "group_sizes": [1, 1, 1, 1], "run": None}
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
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []
        assert (
            page.evaluate("() => document.documentElement.scrollWidth")
            <= page.viewport_size["width"]
        )
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 150) is (view == "dark")


def test_what_a_model_says_stays_text(visit):
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
    page = visit()
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


def test_words_come_one_by_one_and_stop_ends_them_on_the_server_too(visit, playground, monkeypatch):
    steps = []

    def endless(question, tell):
        while True:
            steps.append("la")
            time.sleep(0.005)
            tell({"kind": "so far", "intact": " ".join(steps), "knocked_out": ""})

    page = visit()
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


def test_a_new_question_ends_the_one_before(visit, playground):
    page = visit()
    page.locator("summary").click()
    page.locator("#new-tokens").fill("2000")
    page.locator("#prompt").fill("rhymes with night:")
    page.locator("#answer").click()
    expect(page.locator("#intact .text")).not_to_be_empty()
    page.locator("#new-tokens").fill("16")
    ask(page)
    expect(page.locator("#failure")).to_be_hidden()
    assert text(page, "intact").startswith("85")


def test_two_browsers_keep_their_own_heads(visit, playground):
    tabs, heads = [visit(), visit("phone")], ["L0H13", "L0H14"]
    prompt = "# f: add 2, negate, double\ndef f(x):\n"
    for page, head in zip(tabs, heads, strict=True):
        page.locator("#clear").click()
        page.locator(f"[data-head={head}]").click()
        page.locator("#prompt").fill(prompt)
    for page in tabs:
        page.locator("#answer").click()
    for page in tabs:
        answered(page)  # both: below the model is asked beside the server, which has it no more
    for page, head in zip(tabs, heads, strict=True):
        found = truth(playground, [head], prompt, new_tokens=64)
        for side, tokens in found.items():
            assert shown(page, side) == [token["token"] for token in tokens]


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
