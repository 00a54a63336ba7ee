"""The playground's page in a real browser, on a real server, with a run of the demo model."""

import json
import math
import os
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

import caploc
from caploc.export import Export
from caploc.finished import FinishedRun
from caploc.headfile import read_heads
from caploc.playground.app import application
from caploc.playground.asked import AttentionAsked, ExampleAsked, Question
from caploc.playground.hosts import hosts_of
from caploc.playground.playground import Playground
from caploc.playground.serving import address, listen
from caploc.playground.setting import runs_in, setting_of
from caploc.report.reading import UNSEEN, visible
from caploc.search import Settings
from caploc.study import Study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
DEMO = ModelOptions("demo", device="cpu")
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\u202e"
VIEWS = {
    "desk": {"viewport": {"width": 1360, "height": 1000}},
    "dark": {"viewport": {"width": 1360, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for task in ("addition", "sorting"):
        study = Study(
            DEMO,
            f"demo/{task}",
            "css",
            settings=Settings(masks=40, rate=0.05, top=5),
            examples=10,
            controls=0,
            limit=20,
        )
        caploc.run(study, folder / task)
    return folder


@pytest.fixture(scope="module")
def playground(runs):
    tasks = ["demo/capitals", "demo/prose", "demo/code"]
    return Playground(setting_of(runs_in(runs), None, DEMO, tasks, TaskOptions()))


@pytest.fixture(scope="module")
def url(playground):
    with listen("127.0.0.1", 0) as listening:
        site = application(playground, hosts_of("127.0.0.1"))
        server = uvicorn.Server(uvicorn.Config(site, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address("127.0.0.1", listening)
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def chromium():
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no browser at {CHROMIUM}; name one in CHROMIUM")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, url):
    """Open the page in some view; what goes wrong in it fails the test."""
    contexts, wrong, asked = [], [], []

    def opened(view="desk", ready=True, before=lambda page: None):
        contexts.append(chromium.new_context(**VIEWS[view]))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        before(page)
        page.goto(url)
        if ready:
            expect(page.locator("#model")).to_contain_text("96 heads")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert {
        address for address in asked if not address.startswith((url, "data:", "blob:"))
    } == set()


def answered(page):
    expect(page.locator("#status")).to_contain_text("done", timeout=20_000)


def ask(page, prompt="47+38="):
    page.locator("#prompt").fill(prompt)
    page.locator("#answer").click()
    answered(page)


def text(page, side):
    return page.locator(f"#{side} .text").inner_text()


def chosen(page):
    return [
        e.get_attribute("data-head") for e in page.locator("[aria-selected=true][data-head]").all()
    ]


def truth(playground, heads, prompt="47+38="):
    """What each side says, token by token, asked without a page."""
    asked = Question(heads=heads, prompt=prompt, stops=["\n"], new_tokens=16)
    events = [e for e in playground.answers(asked) if e["event"] == "token"]
    return {side: [e for e in events if e["side"] == side] for side in ("intact", "knocked_out")}


def joined(events):
    return "".join(event["text"] for event in events)


def test_heads_picked_by_hand_are_knocked_out(visit, playground):
    page = visit()
    page.locator("#clear").click()
    for head in ("L0H13", "L0H14"):
        page.locator(f"[data-head={head}]").click()
    assert chosen(page) == ["L0H13", "L0H14"]
    ask(page)
    found = truth(playground, ["L0H13", "L0H14"])
    assert joined(found["intact"]) != joined(found["knocked_out"])
    for side, events in found.items():
        assert text(page, side) == joined(events)
    page.locator("[data-head=L0H13]").click()
    answered(page)
    expect(page.locator("#knocked_out .text")).to_have_text(
        joined(truth(playground, ["L0H14"])["knocked_out"])
    )


def test_the_slider_takes_the_first_heads_of_the_run(visit, playground):
    page = visit()
    order = page.evaluate("() => window.playground.run.order")
    slider = page.locator("#number")
    slider.focus()
    page.keyboard.press("Home")
    assert chosen(page) == []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert sorted(chosen(page)) == sorted(order[:3])
    expect(page.locator("#number-shown")).to_have_text("3")
    page.locator(f"[data-head={order[0]}]").click()
    expect(page.locator("#number-shown")).to_have_text("–")
    page.locator("#runs").select_option(index=1)
    assert page.evaluate("() => window.playground.run.task") == "demo/sorting"
    other = page.evaluate("() => window.playground.run.order")
    assert sorted(chosen(page)) == sorted(other[: len(chosen(page))])


def test_a_control_knocks_out_as_many_others_in_each_layer(visit):
    page = visit()
    before, drawn = chosen(page), []
    for _ in range(6):
        page.locator("#random").click()
        drawn.append(chosen(page))
    for after in drawn:
        assert not set(before) & set(after)
        layers = [sorted(name.split("H")[0] for name in names) for names in (before, after)]
        assert layers[0] == layers[1]
    assert len({tuple(after) for after in drawn}) > 1


def test_a_control_takes_all_others_of_a_layer_that_has_too_few(visit):
    page = visit()
    page.locator("#clear").click()
    for index in range(11):
        page.locator(f"[data-head=L2H{index}]").click()
    for _ in range(2):
        page.locator("#random").click()
        assert chosen(page) == [f"L2H{index}" for index in range(11, 16)]


def test_an_example_is_drawn_asked_and_scored(visit, playground):
    page = visit()
    page.locator("#task").select_option("demo/addition")
    answered(page)
    number = int(page.locator("#example").input_value())
    drawn = playground.example(ExampleAsked(task="demo/addition", number=number))
    assert page.locator("#prompt").input_value() == drawn.prompt
    expect(page.locator("#gold")).to_have_text(f"Right answer: {drawn.gold}")
    expect(page.locator("#intact .verdict")).to_have_text("✓ right · exact_match")
    page.locator("#prompt").fill("1+1=")
    expect(page.locator("#gold")).to_be_hidden()
    page.locator("#answer").click()
    answered(page)
    expect(page.locator("#intact .verdict")).to_be_empty()


def test_choices_are_weighed_on_both_sides(visit, playground):
    page = visit()
    page.locator("#task").select_option("demo/capitals")
    answered(page)
    number = int(page.locator("#example").input_value())
    drawn = playground.example(ExampleAsked(task="demo/capitals", number=number))
    assert page.locator(".choice").count() == len(drawn.choices) == 4
    right = page.locator(".choice", has_text="the right answer").locator(".text")
    assert right.inner_text() == drawn.gold
    shares = page.locator(".bars .value").all_inner_texts()
    total = sum(float(s.split(" ")[0]) for s in shares[::2] if not s.startswith("<"))
    assert total == pytest.approx(100, abs=0.5)
    expect(page.locator("#choices .verdict[data-side=intact]")).to_contain_text("right")
    page.locator("#task").select_option("demo/prose")
    expect(page.locator(".choice")).to_have_count(1)
    answered(page)


def reading(totals):
    """What the server says of choices with these log-probabilities, the same on both sides."""
    token = {"token": 1, "text": "x", "intact": None, "knocked_out": None}
    token["likeliest"] = dict.fromkeys(("intact", "knocked_out"), [["x", None]])
    yield {"event": "begin", "choices": ["x"] * len(totals), "gold": None}
    for number, total in enumerate(totals):
        yield {"event": "choice", "choice": number}
        yield {"event": "tokens", "tokens": [token]}
        yield {"event": "read", "choice": number, "intact": total, "knocked_out": total}
    yield {"event": "done"}


@pytest.mark.parametrize(
    "totals", [(-2000.0, -2001.0, None), (-1.0, None), (None, None), (-5000.0, -1e9), (-2.0, -2.0)]
)
def test_shares_hold_for_long_choices_and_broken_models(visit, totals):
    page = visit()
    lines = "".join(json.dumps(event) + "\n" for event in reading(totals))
    page.route("**/answers", lambda route: route.fulfill(body=lines))
    page.locator("#answer").click()
    answered(page)
    known = [total for total in totals if total is not None]
    sides = page.locator(".choice .bars").all()
    for total, bars in zip(totals, sides, strict=True):
        share = 0 if total is None else 1 / sum(math.exp(min(each - total, 700)) for each in known)
        width = bars.locator("i").first.evaluate("e => e.style.width")
        assert float(width.removesuffix("%")) == pytest.approx(100 * share, abs=1e-3)
        said = bars.locator(".value").first.inner_text()
        if total is None:
            assert said.startswith("–")
        elif share > 0.1:
            assert float(said.split(" ")[0]) == pytest.approx(100 * share, abs=0.05)
        else:
            assert said.startswith("< 0.01 %")
    page.locator(".choice .token").first.hover()
    bars = page.locator("#inspector .meter i")
    assert [bar.evaluate("e => e.style.width") for bar in bars.all()] == ["0%", "0%"]


def test_a_token_tells_its_odds_to_mouse_and_keys(visit, playground):
    page = visit()
    page.locator("#clear").click()
    page.locator("[data-head=L0H13]").click()
    page.locator("[data-head=L0H14]").click()
    ask(page)
    first, second = truth(playground, ["L0H13", "L0H14"])["knocked_out"][:2]
    tokens = page.locator("#knocked_out .token")
    tokens.first.hover()
    inspector = page.locator("#inspector")
    share = 100 * 2.718281828 ** first["knocked_out"]
    expect(inspector).to_contain_text(f"{share:.1f} % knocked out")
    expect(inspector.locator(".said").first).to_have_text(first["text"])
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(inspector.locator("h3 .piece")).to_have_text(second["text"])
    label = page.locator(":focus").get_attribute("aria-label")
    assert label.startswith(f"{second['text']}: ") and label.endswith("knocked out")


def test_attention_is_shown_and_read_with_the_keys(visit, playground):
    page = visit()
    page.locator("#clear").click()
    page.locator("[data-head=L0H13]").click()
    ask(page)
    page.locator("#layer").select_option("1")
    page.locator("#index").select_option("2")
    page.locator("#look").click()
    readout = page.locator("#readout")
    expect(page.locator("#attention-status")).to_have_text("L1H2, 10 tokens, intact")
    expect(page.locator("#strip")).to_have_text("<|end|>47+38=85<|end|>")
    before = readout.inner_text()
    page.get_by_role("application", name="Attention of L1H2").focus()
    page.keyboard.press("ArrowUp")
    assert readout.inner_text() != before
    weights = page.evaluate("() => Array.from(window.playground.attention.weights)")
    assert len(weights) == 100
    assert sum(weights[90:]) == pytest.approx(1, abs=1e-5)
    page.locator("#attention-model").select_option("1")
    page.wait_for_timeout(300)
    cut = page.evaluate("() => Array.from(window.playground.attention.weights)")
    assert cut != weights


def test_attention_is_that_without_the_heads_chosen_when_it_is_asked(visit, playground):
    page = visit()
    page.locator("#clear").click()
    page.locator("[data-head=L0H13]").click()
    ask(page)
    page.locator("#live").uncheck()
    page.locator("#clear").click()
    page.locator("[data-head=L0H14]").click()
    page.locator("#layer").select_option("1")
    page.locator("#index").select_option("2")
    page.locator("#attention-model").select_option("1")
    page.locator("#look").click()
    status = page.locator("#attention-status")
    expect(status).to_have_text("L1H2, 10 tokens, without L0H14")
    found = page.evaluate("() => Array.from(window.playground.attention.weights)")
    said = page.evaluate("() => window.playground.spoken('intact').said")
    question = Question(heads=["L0H14"], prompt="47+38=", stops=["\n"], new_tokens=16)
    asked = AttentionAsked(question=question, said=said, head="L1H2", knocked_out=True)
    assert found == playground.attention(asked)["weights"].ravel().tolist()
    other = asked.model_copy(update={"question": question.model_copy(update={"heads": ["L0H13"]})})
    assert found != playground.attention(other)["weights"].ravel().tolist()


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


def focused(page):
    return page.evaluate(
        "() => document.activeElement.dataset.head || document.activeElement.innerText"
    )


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
    for page, head in zip(tabs, heads, strict=True):
        answered(page)
        asked = Question(
            heads=[head], prompt="# f: add 2, negate, double\ndef f(x):\n", new_tokens=16
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
    expect(failure).to_contain_text("is `caploc ui` still running?")
