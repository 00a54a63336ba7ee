"""The report and the comparison in a real browser, of real runs of the demo model."""

import json
from pathlib import Path

import pytest

from worlds import DEMO

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect
from views import VIEWS, check_view

import caploc
from caploc.comparison import compare
from caploc.contents import check_contents
from caploc.declaration import ModelOptions, Study
from caploc.evaluation import curve
from caploc.options import Settings
from caploc.report.page import write_report
from caploc.result import Result

pytestmark = pytest.mark.browser
HOSTILE = (
    "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    "<svg onload=document.title='run'>\"'`${1}]]>-->\x00\u202e"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of addition with its curve, one of sorting, and both compared."""
    folder = tmp_path_factory.mktemp("runs")
    for task in ("addition", "sorting"):
        study = Study(
            ModelOptions(DEMO, device="cpu"),
            f"demo/{task}",
            "scan",
            other_tasks=("demo/sentences",),
            settings=Settings(top=5),
            limit=60,
        )
        caploc.run_study(study, folder / task, command=f"caploc locate demo --task demo/{task}")
    curve(folder / "addition", 3)
    compare([folder], folder, command="caploc view runs --write")
    return folder


@pytest.fixture
def report(runs, visit):
    address = (runs / "addition" / "report.html").as_uri()
    return lambda view="desk", **options: visit(address, view, **options)


@pytest.fixture(scope="module")
def result(runs):
    return json.loads((runs / "addition" / "result.json").read_text())


def cell(page, head):
    return page.locator(f'#map td[data-note^="{head}:"]')


def test_pointing_at_a_head_says_effect_interval_selection_and_group(report, result):
    page, first = report(), result["top"][0]
    cell(page, first).hover()
    note = page.locator("#tip")
    expect(note).to_be_visible()
    for words in (f"{first}: −", "95 % interval (−", "named", "key-value group"):
        expect(note).to_contain_text(words)
    page.locator("h1").hover()
    expect(note).to_be_hidden()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_verdict_and_its_table_are_above_the_fold(report, size):
    width, height = size
    page = report(viewport={"width": width, "height": height})
    box = page.locator(".card table").bounding_box()
    assert box["y"] + box["height"] <= height and box["x"] + box["width"] <= width
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert len(page.locator("body").inner_text().split()) <= 1200


def test_the_keyboard_alone_walks_the_map(report):
    page = report()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#map') !== null"):
            break
    focused = "document.activeElement.dataset.note.split(':')[0]"
    assert page.evaluate(focused) == "L0H0"
    for key, head in (("ArrowRight", "L0H1"), ("ArrowDown", "L1H1"), ("ArrowLeft", "L1H0"),
                      ("ArrowUp", "L0H0")):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate(focused) == head
        expect(page.locator("#tip")).to_contain_text(f"{head}:")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()


@pytest.mark.parametrize("name", ["addition/report.html", "compare.html"])
def test_a_phone_scrolls_in_one_direction_only(runs, visit, name):
    page = visit((runs / name).as_uri(), "phone")
    assert page.locator("h1").bounding_box()["width"] <= 360
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    tables = page.locator("table:not(.map)").all()
    assert tables and all(one.bounding_box()["width"] <= 360 for one in tables)
    if name.startswith("addition"):
        expect(page.locator(".for-narrow").first).to_be_visible()
        expect(page.locator(".for-wide").first).to_be_hidden()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["addition/report.html", "compare.html"])
def test_nothing_bars_the_way_and_nothing_sticks_out(runs, visit, view, name):
    page = visit((runs / name).as_uri(), view)
    check_view(page, view)
    if name.startswith("addition"):
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        cell(page, "L0H10").hover()
        check_view(page, view)


def test_without_scripts_everything_is_there(report, result):
    page = report(java_script_enabled=False)
    expect(page.locator("h1")).to_contain_text("heads")
    assert page.locator("#map td[title]").count() == 96
    assert page.locator("#head-table tbody tr").count() >= len(result["top"])
    assert page.locator(".answers tbody tr").count() == 3
    expect(page.locator(".for-wide svg").first).to_be_visible()


def test_hostile_text_shows_as_text(tmp_path, visit, result):
    bad = json.loads(json.dumps(result))
    for part, field in (("task", "name"), ("model", "name"), ("method", "name")):
        bad[part][field] = HOSTILE
    bad["command"] = bad["search"]["notes"] = HOSTILE
    bad["search"]["notes"] = [HOSTILE]
    bad["validation"]["other_tasks"][0]["name"] = HOSTILE
    bad["versions"] = {HOSTILE: HOSTILE}
    texts = dict.fromkeys(("prompt", "gold", "intact"), HOSTILE) | {"knocked_out": HOSTILE + "!"}
    lost = bad["validation"]["task"]["lost"]
    lost |= {"count": 1, "kinds": {HOSTILE: 1}, "samples": [texts | {"kind": HOSTILE}]}
    hostile = check_contents(tmp_path / "result.json", Result, bad)
    page = visit(write_report(tmp_path, hostile).as_uri())
    shown = page.locator(".answers tbody pre").nth(1).inner_text()
    assert shown.startswith("</script><script>document.title='run'</script><img src=x")
    assert shown.endswith("␀⟨U+202E⟩")
    assert page.title().startswith("</script>") and page.title() != "run"
    assert page.locator("img, svg[onload], script").count() == 1
    for mark in page.locator(".for-wide [data-note]").all()[:4]:
        mark.hover()
    for head in page.locator("#map td[data-note]").all()[:16]:
        head.click()
    page.wait_for_timeout(200)
    assert page.title() != "run"


def test_links_of_the_comparison_lead_to_the_runs(runs, visit):
    page = visit((runs / "compare.html").as_uri())
    expect(page.locator("h1")).to_contain_text("2 runs")
    links = page.locator("#runs tbody a").evaluate_all("all => all.map((one) => one.href)")
    paths = {Path(link.removeprefix("file://")) for link in links}
    assert paths == {runs / name / "report.html" for name in ("addition", "sorting")}
    page.locator(".matrix td[data-note]").first.hover()
    expect(page.locator("#tip")).to_be_visible()
