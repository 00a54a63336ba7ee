"""The playground on a real server, with runs of the demo model."""

import threading

import pytest
import uvicorn

import caploc
from caploc.declaration import ModelOptions, Study
from caploc.options import Settings, TaskOptions
from caploc.playground.app import application
from caploc.playground.playground import Playground
from caploc.playground.serving import address, list_hosts, listen
from caploc.playground.setting import make_setting, open_runs
from worlds import DEMO

MODEL = ModelOptions(DEMO, device="cpu")


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for task in ("addition", "sorting"):
        study = Study(
            MODEL,
            f"demo/{task}",
            "css",
            settings=Settings(masks=40, rate=0.05, top=5),
            examples=10,
            controls=0,
            limit=20,
        )
        caploc.run_study(study, folder / task)
    return folder


@pytest.fixture(scope="package")
def playground(runs):
    tasks = ["demo/capitals", "demo/prose", "demo/code"]
    return Playground(make_setting(open_runs(runs), None, MODEL, tasks, TaskOptions()))


@pytest.fixture(scope="package")
def url(playground):
    with listen("127.0.0.1", 0) as listening:
        site = application(playground, list_hosts("127.0.0.1"))
        server = uvicorn.Server(uvicorn.Config(site, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address("127.0.0.1", listening)
        server.should_exit = True
        thread.join()


@pytest.fixture
def visit(chromium, url):
    """Open the page in some view; what goes wrong in it fails the test."""
    from acting import VIEWS  # not above: where there is no browser, nothing of it is there
    from playwright.sync_api import expect

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
            expect(page.locator("#status")).to_contain_text("done")  # the lost example is answered
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert {
        address for address in asked if not address.startswith((url, "data:", "blob:"))
    } == set()
