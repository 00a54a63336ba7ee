"""Look at runs in a browser: the list of all, a run's report, its examples and its playground.

What a run's folder holds is data: pages draw it as text, and a report of it may run the one script
that this version writes into its own reports, in a frame without an origin.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from caploc.errors import BadOption
from caploc.playground.app import Playgrounds
from caploc.playground.examples import examples_of
from caploc.playground.runs import RunIndex
from caploc.playground.serving import PAGE, Handler, build_site, report_errors
from caploc.report.templates import COMPARE, REPORT, page_policy
from caploc.wording import inline

# Without an origin of its own a report can neither read nor ask anything of this server.
FRAMED = f"{page_policy()}; frame-ancestors 'self'; sandbox allow-scripts allow-downloads"


def in_thread(work: Callable[[Request], Response]) -> Handler:
    """Return a handler that works beside others, and says what went wrong in one sentence."""

    async def handler(request: Request) -> Response:
        return await run_in_threadpool(work, request)

    return report_errors(handler)


def show_view(request: Request) -> Response:
    """Return the page of all views, which asks for the rest by its own address."""
    return FileResponse(PAGE / "view.html")


class View:
    """What each address of the view answers; nothing is written into the folders."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index

    def routes(self) -> list[BaseRoute]:
        answers = {
            "/runs": self.runs,
            "/run/{run}/about": self.about,
            "/run/{run}/examples": self.list_examples,
            "/run/{run}/examples/{place:int}": self.example,
            "/run/{run}/report.html": self.report,
        }
        return [
            *(Route(path, show_view) for path in ("/", "/run/{run}/")),
            *(Route(path, in_thread(work)) for path, work in answers.items()),
        ]

    def folder(self, request: Request) -> Path:
        return self.index.folder(request.path_params["run"])

    def runs(self, request: Request) -> Response:
        entries = [asdict(entry) for entry in self.index.list()]
        place = Path(*self.index.root.absolute().parts[-2:]).as_posix()
        return JSONResponse({"root": inline(place), "runs": entries})

    def about(self, request: Request) -> Response:
        entry = self.index.find(request.path_params["run"])
        return JSONResponse(asdict(entry))

    def list_examples(self, request: Request) -> Response:
        asked = request.query_params
        first = asked.get("first", "0")
        if not first.isdecimal() or len(first) > 9:
            raise BadOption(f"first must be a number from 0; got {first[:20]!r}.")
        found = examples_of(self.folder(request))
        return JSONResponse(found.page(asked.get("only", "all"), asked.get("text", ""), int(first)))

    def example(self, request: Request) -> Response:
        found = examples_of(self.folder(request))
        return JSONResponse(found.whole(request.path_params["place"]))

    def report(self, request: Request) -> Response:
        """Return the report that lies there, under the policy that lets it draw itself only."""
        folder = self.folder(request)
        for name in (REPORT, COMPARE):
            if (folder / name).is_file():
                headers = {"content-security-policy": FRAMED}
                return Response(
                    (folder / name).read_bytes(), media_type="text/html", headers=headers
                )
        raise BadOption("No report lies here; `caploc view FOLDER --write` writes that of a run.")


def application(playgrounds: Playgrounds, token: str) -> Starlette:
    """Return a web application over runs and playgrounds, which answers those with the token."""
    view = View(playgrounds.index)
    return build_site([*view.routes(), *playgrounds.routes()], playgrounds.turns, token)
