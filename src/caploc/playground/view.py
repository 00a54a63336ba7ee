"""Look at runs in a browser: the list of all, a run's report and examples, several side by side.

What a run's folder holds is data: pages draw it as text, and a report of it may run the one script
that this version writes into its own reports, in a frame without an origin.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from caploc.contents import LiveRun, read_file
from caploc.errors import BadOption, CaplocError, UserError
from caploc.folder import PROGRESS, RESULT
from caploc.naming import DEFAULT_MODEL
from caploc.playground.examples import examples_of
from caploc.playground.runs import RunIndex, Stamp, stamp_of
from caploc.playground.serving import (
    PAGE,
    Handler,
    Turns,
    build_site,
    read_request,
    report_errors,
    show_playground,
)
from caploc.report.colours import shade_class, shade_number
from caploc.report.headtable import DARKEST
from caploc.report.overview import ComparedRun
from caploc.report.page import write_report
from caploc.report.templates import COMPARE, REPORT, page_policy
from caploc.wording import called_apart, inline

MOST_COMPARED = 24  # runs side by side
DRAWN = 8  # reports, and comparisons, that are kept in memory
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

    def __init__(self, root: Path) -> None:
        self.index = RunIndex(root)

    def routes(self) -> list[BaseRoute]:
        answers = {
            "/runs": self.runs,
            "/run/{run}/about": self.about,
            "/run/{run}/examples": self.list_examples,
            "/run/{run}/examples/{place:int}": self.example,
            "/run/{run}/report.html": self.report,
            "/compare/{run}/report.html": self.report,  # where a comparison links to
            "/compare/page": self.compare,
        }
        pages = ("/", "/run/{run}/", "/compare/")
        return [
            *(Route(path, show_view) for path in pages),
            *(Route(path, in_thread(work)) for path, work in answers.items()),
        ]

    def runs(self, request: Request) -> Response:
        entries = [asdict(entry) for entry in self.index.list()]
        place = Path(*self.index.root.absolute().parts[-2:]).as_posix()
        return JSONResponse({"root": inline(place), "runs": entries})

    def about(self, request: Request) -> Response:
        name = request.path_params["run"]
        folder = self.index.folder(name)
        entry = next(e for e in self.index.list() if e.id == name)
        return JSONResponse(asdict(entry) | {"live": live_of(folder)})

    def list_examples(self, request: Request) -> Response:
        asked, folder = request.query_params, self.index.folder(request.path_params["run"])
        first = asked.get("first", "0")
        if not first.isdecimal() or len(first) > 9:
            raise BadOption(f"first must be a number from 0; got {first[:20]!r}.")
        found = examples_of(folder).page(
            asked.get("only", "all"), asked.get("text", ""), int(first)
        )
        return JSONResponse(found)

    def example(self, request: Request) -> Response:
        folder = self.index.folder(request.path_params["run"])
        return JSONResponse(examples_of(folder).whole(request.path_params["place"], folder))

    def report(self, request: Request) -> Response:
        """Return the report that lies there; of a run without one it is drawn, and not kept."""
        folder = self.index.folder(request.path_params["run"])
        for name in (REPORT, COMPARE):
            if (folder / name).is_file():
                return framed((folder / name).read_bytes())
        return framed(draw_report(folder, stamp_of(folder, RESULT)))

    def compare(self, request: Request) -> Response:
        """Return the page of several runs side by side, as `caploc view` writes it."""
        names = list(dict.fromkeys(request.query_params.get("runs", "").split(",")))
        if not 2 <= len(names) <= MOST_COMPARED:
            raise BadOption(f"Choose 2 to {MOST_COMPARED} runs to compare; got {len(names)}.")
        folders = {name: self.index.folder(name) for name in names}
        stamps = tuple(stamp_of(folder, RESULT) for folder in folders.values())
        return framed(draw_comparison(tuple(folders.items()), stamps))


def live_of(folder: Path) -> dict[str, Any] | None:
    """Return how far a run is, with a shade for each head scanned; None of one that has ended."""
    try:
        live = read_file(folder / PROGRESS, LiveRun)
    except CaplocError:
        return None

    def cell(share: float | None) -> list[str]:
        if share is None:
            return ["u", "not scanned yet"]
        shade = shade_class(shade_number(max(share, 0.0), DARKEST))
        return [shade, f"{100 * share:.0f} % lost"]

    cells = [[cell(share) for share in layer] for layer in live.layers]
    return live.as_dict() | {"stage": inline(live.stage), "layers": cells}


@lru_cache(maxsize=DRAWN)
def draw_report(folder: Path, stamp: Stamp) -> bytes:
    """Draw the report of a run, once for each stamp of its result."""
    found = examples_of(folder)
    with TemporaryDirectory() as place:
        return write_report(Path(place), found.result, found.answers).read_bytes()


@lru_cache(maxsize=DRAWN)
def draw_comparison(runs: tuple[tuple[str, Path], ...], stamps: tuple[Stamp, ...]) -> bytes:
    """Draw the page over runs, which addresses know by these names, once for each of the stamps."""
    from caploc.comparison import compare_runs  # loads scipy

    folders = [folder for _, folder in runs]
    paths = [folder.absolute().as_posix() for folder in folders]
    called = called_apart(paths)
    with TemporaryDirectory() as place:
        compared = [  # the page links to a run by the name of its folder
            ComparedRun(called[path], Path(place) / name, examples_of(folder).result)
            for path, (name, folder) in zip(paths, runs, strict=True)
        ]
        compare_runs(compared, folders, Path(place))
        return (Path(place) / COMPARE).read_bytes()


def framed(page: bytes) -> Response:
    """Return a report under the policy that lets it draw itself and nothing else."""
    return Response(page, media_type="text/html", headers={"content-security-policy": FRAMED})


class Playgrounds:
    """The playgrounds of runs. One model is loaded at a time, and only when somebody asks for it.

    `device` is where; programs that a model writes are judged only if `judges_code`.
    """

    def __init__(
        self,
        index: RunIndex,
        device: str = "auto",
        *,
        judges_code: bool = False,
        trust: bool = False,
    ) -> None:
        self.index, self.device, self.judges_code = index, device, judges_code
        self.trust, self.turns = trust, Turns()
        self.site: Any = None  # of the model that is loaded

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/play/{run}/", show_playground),
            Route("/play/{run}/board", report_errors(self.board)),
            Route("/play/{run}/load", report_errors(self.load), methods=["POST"]),
            Route("/play/{run}/{action}", report_errors(self.act), methods=["POST"]),
        ]

    async def board(self, request: Request) -> Response:
        """Lay the playground out, or say which model would have to be loaded for it."""
        folder = self.index.folder(request.path_params["run"])
        number = self.number_of(folder)
        if number is None:
            entry = next(e for e in self.index.list() if e.id == request.path_params["run"])
            return JSONResponse({"unloaded": entry.model, "state": entry.state})
        laid = await self.site.lay_out()
        return JSONResponse(laid | {"run": number})

    async def load(self, request: Request) -> Response:
        await read_request(Nothing, request)
        folder = self.index.folder(request.path_params["run"])
        await self.turns.call(self.open, folder)
        return JSONResponse({})

    async def act(self, request: Request) -> Response:
        action = request.path_params["action"]
        if self.number_of(self.index.folder(request.path_params["run"])) is None:
            raise BadOption("Another model has been loaded since; load this page again.")
        if action not in self.site.actions():
            raise BadOption("There is no such action; load this page again.")
        answer: Response = await self.site.actions()[action](request)
        return answer

    def number_of(self, folder: Path) -> int | None:
        """Return the place of a run among those of the loaded model, None if it is none of them."""
        runs = self.site.playground.setting.runs if self.site else ()
        return next((n for n, run in enumerate(runs) if run.folder == folder), None)

    def open(self, folder: Path) -> None:
        """Load the model of a run, with the tasks of all runs of it; raises UserError."""
        from caploc.playground.app import Site  # loads torch
        from caploc.playground.playground import Playground

        if self.number_of(folder) is None:
            setting = self.settle([folder, *self.beside(folder)])
            self.site = None  # two models may be more than the memory holds
            self.site = Site(Playground(setting), self.turns)

    def beside(self, folder: Path) -> list[Path]:
        """Return the folders of the other runs of the same model."""
        entries = [entry for entry in self.index.list() if entry.kind == "heads"]
        folders = {entry.id: self.index.folder(entry.id) for entry in entries}
        own = {e.fingerprint for e in entries if folders[e.id] == folder} - {""}
        return [folders[e.id] for e in entries if e.fingerprint in own and folders[e.id] != folder]

    def settle(self, folders: Sequence[Path]) -> Any:
        """Put the first run and those beside it together; without these if one is unfit."""
        from caploc.declaration import Allowed, ModelOptions
        from caploc.finished import FinishedRun  # loads torch
        from caploc.options import TaskOptions
        from caploc.playground.setting import make_setting

        loading = ModelOptions(DEFAULT_MODEL, device=self.device)
        options = TaskOptions(allow_code=self.judges_code)

        def setting_of(chosen: Sequence[Path]) -> Any:
            runs = [FinishedRun.read(each, Allowed(True, self.trust)) for each in chosen]
            setting = make_setting(runs, None, loading, (), options)
            setting.check()
            return setting

        with suppress(UserError):
            return setting_of(folders)
        return setting_of(folders[:1])


class Nothing(BaseModel):
    """A request that says nothing but that it is one of our own pages'."""

    model_config = ConfigDict(extra="forbid")


def view_application(view: View, playgrounds: Playgrounds, hosts: Sequence[str]) -> Starlette:
    """Return a web application over runs, which answers under these host names and addresses."""
    return build_site([*view.routes(), *playgrounds.routes()], playgrounds.turns, hosts)
