"""What a visitor of the playground does and sees, and what is true."""

from playwright.sync_api import expect

from caploc.playground.playground import PageQuestion

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\u202e"


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


def truth(playground, heads, prompt="47+38=", **asked):
    """What each side says, token by token, asked without a page."""
    question = PageQuestion(heads=heads, prompt=prompt, **{"new_tokens": 16} | asked)
    answers = playground.answer(question, lambda so_far: None)
    return {side: answers[side]["tokens"] for side in ("intact", "knocked_out")}


def joined(tokens):
    return "".join(token["text"] for token in tokens)


def shown(page, side):
    """The tokens that the page shows."""
    return page.evaluate(
        "side => window.playground.answers.tokens[side].map((token) => token.token)", side
    )


def focused(page):
    return page.evaluate(
        "() => document.activeElement.dataset.head || document.activeElement.innerText"
    )
