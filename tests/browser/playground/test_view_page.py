"""The view of runs in a real browser: live, filtered, whole, quick; hostile runs."""

import pytest

from worlds import DEMO

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect
from views import VIEWS, check_view

import caploc
from caploc.declaration import ModelOptions, Study
from caploc.options import Settings
from caploc.wording import visible
from worlds.viewed_runs import HOSTILE, answer_of, write_run  # noqa: E402

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Runs with lost, gained and hostile answers, and one of the demo model."""
    root = tmp_path_factory.mktemp("shelf")
    answers = [answer_of(number) for number in range(60)]
    answers += [
        answer_of(60, "7", "4", intact_outcome=0.0, knocked_out_outcome=1.0),
        answer_of(61, "4", HOSTILE, prompt=f"Say {HOSTILE}", kind=HOSTILE),
    ]
    write_run(root / "sums", answers)
    write_run(root / "deep" / "other", [answer_of(0)], method={"name": "scan"}, seed=9)
    write_run(root / "strange", task=HOSTILE, model=HOSTILE, method={"name": HOSTILE})
    (root / "strange" / "report.html").write_text(
        "<script>parent.document.title = 'run'; top.location = '/run'</script><p>a report</p>"
    )
    (root / "broken").mkdir()
    (root / "broken" / "result.json").write_text("{")
    study = Study(
        ModelOptions(DEMO, device="cpu"), "demo/addition", "css",
        settings=Settings(top=3), examples=20, controls=0, limit=60,
    )  # fmt: skip
    caploc.run_study(study, root / "real")
    return root


@pytest.fixture(scope="module")
def url(shelf, serve):
    with serve(shelf) as (base, token):
        yield f"{base}/{token}"


def open_run(page, name):
    page.locator("#runs").get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#run-title")).to_have_text(name)


def names(page):
    return page.locator("#runs tbody th a").all_inner_texts()


def test_runs_are_searched_and_sorted(visit, url):
    page = visit(url)
    expect(page.locator("#list-shown")).to_have_text("5 of 5")
    page.locator("#find").fill("scan l0h1")
    expect(page.locator("#list-shown")).to_have_text("1 of 5")
    assert names(page) == ["deep/other"]
    page.locator("#find").fill("")
    page.get_by_role("button", name="Seed").click()
    page.get_by_role("button", name="Seed").click()
    assert names(page)[0] == "deep/other"
    expect(page.locator("[aria-sort]")).to_have_attribute("aria-sort", "descending")


def test_a_run_is_watched_while_it_goes_on(visit, tmp_path, serve):
    folder = write_run(tmp_path / "live")
    (folder / "result.json").unlink()
    (folder / "rows.sqlite-wal").touch()
    with serve(tmp_path) as (base, token):
        page = visit(f"{base}/{token}")
        expect(page.locator(".state")).to_have_text("running")
        run = visit(base + page.locator("#runs th a").get_attribute("href") + token)
        expect(run.locator("#no-report")).to_contain_text("The run goes on")
        write_run(tmp_path / "live", [answer_of(0)])
        (folder / "report.html").write_text("<h1>found</h1>")
        expect(page.locator(".state")).to_have_text("done", timeout=10_000)
        expect(page.locator("td[data-label='Intact → without']")).to_have_text("90\xa0% → 20\xa0%")
        expect(run.frame_locator("#report").locator("h1")).to_have_text("found")
        for opened in (page, run):
            opened.close()  # a page that asks on once its server has gone logs an error


def test_a_report_is_shown_in_a_frame_where_it_works(visit, url):
    page = visit(url)
    open_run(page, "real")
    report = page.frame_locator("#report")
    report.locator("#map td").nth(3).hover()
    expect(report.locator("#tip")).to_be_visible()  # its own script runs


def test_examples_are_filtered_searched_and_turned(visit, url):
    page = visit(url)
    open_run(page, "sums")
    page.get_by_role("link", name="Examples").click()
    expect(page.locator("#examples-shown")).to_have_text("62 of 62 examples")
    page.locator("#later").click()
    expect(page.locator("#place")).to_have_text("51 to 62")
    page.locator("[data-only=gained]").click()
    expect(page.locator("#examples tbody tr")).to_have_count(1)
    expect(page.locator("#examples .badge")).to_have_text("gained")
    page.locator("[data-only=all]").click()
    page.locator("#words").fill("31+1")
    expect(page.locator("#examples tbody th a")).to_have_text(["31"])
    page.locator("#examples tbody a").click()
    expect(page.locator("#prompt")).to_have_text("31+1=")
    expect(page.locator("#intact")).to_have_text("4")
    expect(page.locator("#knocked_out")).to_have_text("5")
    page.locator("#next").click()
    expect(page.locator("#prompt")).to_have_text("32+1=")
    page.go_back()
    expect(page.locator("#prompt")).to_have_text("31+1=")


def test_what_a_stranger_wrote_stays_text(visit, url):
    page = visit(url)
    title = page.title()
    expect(page.locator("#runs")).to_contain_text("document.title='run'")
    open_run(page, "sums")
    page.goto(f"{page.url}#examples/61")
    for place in ("#prompt", "#knocked_out"):
        expect(page.locator(place)).to_contain_text("<img src=x onerror=")
    assert "\u202e" not in page.locator("main").inner_text()
    expect(page.locator("#example-outcome")).to_contain_text(visible(HOSTILE)[:20])
    assert page.locator("main img, main script, main a[href^=javascript]").count() == 0
    page.goto(page.url.partition("/run/")[0])
    open_run(page, "strange")
    expect(page.frame_locator("#report").locator("p")).to_have_text("a report")
    assert page.title() == "strange · caploc runs" and title.endswith("caploc runs")
    assert visit.wrong and all("Content Security Policy" in said for said in visit.wrong)
    visit.wrong.clear()  # that the report's script was refused


def test_an_example_goes_on_in_the_playground(visit, url):
    page = visit(url)
    open_run(page, "real")
    page.goto(f"{page.url}#examples/0")
    expect(page.locator("#prompt")).not_to_be_empty()
    prompt = page.locator("#prompt").inner_text()
    page.get_by_role("link", name="Token by token").click()
    page.locator("#load").click()
    expect(page.locator("#status")).to_contain_text("done", timeout=120_000)
    assert page.locator("textarea").input_value() == prompt
    page.locator("#back").click()
    expect(page.locator("#run-title")).to_have_text("real")


@pytest.mark.parametrize("view", VIEWS)
def test_no_page_sticks_out_or_bars_the_way(visit, url, view):
    page = visit(url, view)
    link = page.locator("#runs").get_by_role("link", name="sums", exact=True)
    home = page.url.partition("?")[0]
    run = home.rstrip("/") + link.get_attribute("href")
    for address in (home, run, f"{run}#examples", f"{run}#examples/61"):
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_timeout(700)
        check_view(page, view, iframes=False)
