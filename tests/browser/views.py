"""How pages are looked at, and what holds of every one."""

DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
VIEWS = {"desk": DESK, "dark": DESK | {"color_scheme": "dark"}, "phone": PHONE}


def check_view(page, view, **options):
    """Nothing bars the way of those who do not see or point, nothing sticks out, dark is dark."""
    # not above: where there is no browser, nothing of it is there
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options=options).response["violations"]
    assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= page.viewport_size["width"]
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 150) is (view == "dark")
