"""The playground on a real server, with a run of the demo model."""

import contextlib
import threading

import pytest
import uvicorn

import caploc
from caploc.declaration import ModelOptions, Study
from caploc.finished import FinishedRun
from caploc.options import Settings
from caploc.playground.app import Playgrounds
from caploc.playground.playground import Playground
from caploc.playground.runs import RunIndex
from caploc.playground.serving import address, listen
from caploc.playground.view import application
from worlds import DEMO

MODEL = ModelOptions(DEMO, device="cpu")


@contextlib.contextmanager
def serving(folder, playground=None):
    """Serve runs and a playground; the address of both, and what the printed one ends with."""
    app = application(Playgrounds(RunIndex(folder), "cpu", playground=playground), "secret")
    with listen(0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield address(listening), "?token=secret"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="package")
def serve():
    return serving


@pytest.fixture(scope="package")
def run(tmp_path_factory):
    settings = Settings(masks=40, rate=0.05, top=5)
    others = ("demo/capitals", "demo/prose", "demo/code")
    study = Study(
        MODEL, "demo/addition", "css", settings=settings, other_tasks=others, examples=10,
        controls=0, limit=20,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "addition"
    caploc.run_study(study, folder)
    return FinishedRun.read(folder)


@pytest.fixture(scope="package")
def playground(run):
    return Playground.of_run(run, "cpu")


@pytest.fixture(scope="package")
def url(playground, run):
    with serving(run.folder.parent, playground) as (base, token):
        yield f"{base}/play/model/{token}"


@pytest.fixture
def play(visit, url):
    """Open the playground in some view, once the lost example is answered."""
    from playwright.sync_api import expect  # not above: where there is no browser, it is not there

    def opened(view="desk"):
        page = visit(url, view)
        expect(page.locator("#model")).to_contain_text("96 heads")
        expect(page.locator("#status")).to_contain_text("done")
        return page

    return opened
