"""Questions to the playground in a real browser: heads, examples, choices, odds, talks."""

import pytest

pytest.importorskip("playwright.sync_api")
from acting import answered, ask, chosen, joined, shown, text, truth
from playwright.sync_api import expect

from caploc.playground.playground import ExampleRequest

pytestmark = pytest.mark.browser


def test_the_page_opens_on_a_lost_example_with_both_answers(play, run):
    page = play()
    lost = run.result.validation.task.lost.samples[0]
    assert page.locator("#example").input_value() == str(lost.example)
    assert page.locator("#prompt").input_value() == lost.prompt
    assert chosen(page) and set(chosen(page)) == set(run.result.top)
    assert text(page, "intact").removesuffix("<|end|>") == lost.intact != lost.knocked_out
    assert text(page, "knocked_out").removesuffix("<|end|>") == lost.knocked_out
    assert page.locator("#intact .verdict").inner_text().startswith("✓ right")


def test_heads_picked_by_hand_are_knocked_out(play, playground):
    page = play()
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
    said = joined(truth(playground, ["L0H14"])["knocked_out"])
    expect(page.locator("#knocked_out .text")).to_have_text(said, timeout=60_000)


def test_the_slider_takes_the_first_heads_of_the_run(play, playground):
    page = play()
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


def test_a_control_knocks_out_as_many_others_in_each_layer(play):
    page = play()
    before, drawn = chosen(page), []
    for _ in range(6):
        page.locator("#random").click()
        drawn.append(chosen(page))
    for after in drawn:
        assert not set(before) & set(after)
        layers = [sorted(name.split("H")[0] for name in names) for names in (before, after)]
        assert layers[0] == layers[1]
    assert len({tuple(after) for after in drawn}) > 1


def test_an_example_is_drawn_asked_and_scored(play, playground):
    page = play()
    page.locator("#task").select_option("demo/addition")
    answered(page)
    number = int(page.locator("#example").input_value())
    drawn = playground.example(ExampleRequest(task="demo/addition", number=number))
    assert page.locator("#prompt").input_value() == drawn.prompt
    expect(page.locator("#gold")).to_have_text(f"Right answer: {drawn.describe()['gold']}")
    expect(page.locator("#intact .verdict")).to_have_text("✓ right · exact_match")
    page.locator("#prompt").fill("1+1=")
    expect(page.locator("#gold")).to_be_hidden()
    page.locator("#answer").click()
    answered(page)
    expect(page.locator("#intact .verdict")).to_be_empty()


def test_choices_are_weighed_on_both_sides(play, playground):
    page = play()
    page.locator("#task").select_option("demo/capitals")
    answered(page)
    number = int(page.locator("#example").input_value())
    drawn = playground.example(ExampleRequest(task="demo/capitals", number=number))
    assert page.locator(".choice").count() == len(drawn.requests) == 4
    right = page.locator(".choice", has_text="the right answer").locator(".text")
    assert right.inner_text() == drawn.describe()["gold"]
    shares = page.locator(".bars .value").all_inner_texts()
    total = sum(float(s.split(" ")[0]) for s in shares[::2] if not s.startswith("<"))
    assert total == pytest.approx(100, abs=0.5)
    expect(page.locator("#choices .verdict[data-side=intact]")).to_contain_text("right")
    page.locator("#task").select_option("demo/prose")
    expect(page.locator(".choice")).to_have_count(1)
    answered(page)


def test_a_token_tells_its_odds_to_mouse_and_keys(play, playground):
    page = play()
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


def test_a_talk_goes_on_with_what_each_side_said(play, playground, monkeypatch):
    template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}assistant:"
    monkeypatch.setattr(playground.loaded.tokenizer, "chat_template", template)
    page = play()
    page.locator("#chat").check()
    page.locator("summary").click()
    page.locator("#new-tokens").fill("6")
    ask(page, "47+38=")
    first = page.evaluate("() => window.playground.said")
    page.locator("#reply").click()
    expect(page.locator("#prompt")).to_be_empty()
    expect(page.locator("#talk")).to_contain_text("You 47+38=")
    ask(page, "and 1+1=")
    turns = [{"user": "47+38=", **first}]
    heads = page.evaluate("() => window.playground.map.names()")
    found = truth(playground, heads, "and 1+1=", chat=True, turns=turns, new_tokens=6)
    for side, tokens in found.items():
        assert shown(page, side) == [token["token"] for token in tokens]
    page.locator("#forget").click()
    expect(page.locator("#talk")).to_be_hidden()
