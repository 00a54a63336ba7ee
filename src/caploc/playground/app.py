"""The playgrounds' addresses: of the model that is loaded, and of runs whose model may be."""

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from caploc.errors import BadOption
from caploc.playground.runs import RunIndex
from caploc.playground.serving import Turns, read_request, report_errors, show_playground

ALONE = "model"  # what a playground without a run is called in addresses


class Nothing(BaseModel):
    """A request that says nothing but that it is one of our own pages'."""

    model_config = ConfigDict(extra="forbid")


class Playgrounds:
    """One model is loaded at a time; that of a run only when somebody asks for it.

    `device` is where; programs that a model writes are judged only if `judges_code`.
    """

    def __init__(
        self,
        index: RunIndex,
        device: str = "auto",
        *,
        judges_code: bool = False,
        trust: bool = False,
        playground: Any = None,
    ) -> None:
        """Start with a playground of a model without a run, if there is one."""
        self.index, self.device, self.judges_code = index, device, judges_code
        self.trust, self.turns = trust, Turns()
        self.playground, self.name = playground, ALONE

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/play/{run}/", show_playground),
            Route("/play/{run}/board", report_errors(self.board)),
            Route("/play/{run}/load", report_errors(self.load), methods=["POST"]),
            Route("/play/{run}/example", report_errors(self.example), methods=["POST"]),
            Route("/play/{run}/answers", report_errors(self.answers), methods=["POST"]),
        ]

    async def board(self, request: Request) -> Response:
        """Lay the playground out, or say which model would have to be loaded for it."""
        if self.playground is not None and self.name == request.path_params["run"]:
            from caploc.playground.board import lay_out  # loads torch

            return JSONResponse(await self.turns.call(lay_out, self.playground))
        entry = self.index.find(request.path_params["run"])
        return JSONResponse({"unloaded": entry.model, "state": entry.state})

    async def load(self, request: Request) -> Response:
        await read_request(Nothing, request)
        name = request.path_params["run"]
        await self.turns.call(self.open, name, self.index.folder(name))
        return JSONResponse({})

    def open(self, name: str, folder: Path) -> None:
        """Load the model of a run; raises UserError."""
        from caploc.declaration import Allowed
        from caploc.finished import FinishedRun  # loads torch
        from caploc.playground.playground import Playground

        run = FinishedRun.read(folder, Allowed(True, self.trust))
        self.playground = None  # two models may be more than the memory holds
        self.playground = Playground.of_run(run, self.device, judges_code=self.judges_code)
        self.name = name

    async def example(self, request: Request) -> Response:
        """Return an example of a task, as it is asked."""
        from caploc.playground.playground import ExampleRequest

        asked, playground = await read_request(ExampleRequest, request), self.loaded(request)
        # described on the thread that loads tasks
        return JSONResponse(await self.turns.call(lambda: playground.example(asked).describe()))

    async def answers(self, request: Request) -> Response:
        """Return both answers to a question, and before that what is said of them, as it comes."""
        from caploc.playground.playground import PageQuestion

        asked, playground = await read_request(PageQuestion, request), self.loaded(request)
        answering = self.turns.stream(partial(playground.answer, asked))
        return StreamingResponse(answering, media_type="application/x-ndjson")

    def loaded(self, request: Request) -> Any:
        """Return the playground of an address; raises BadOption if another's model is loaded."""
        if self.playground is None or self.name != request.path_params["run"]:
            raise BadOption("Another model has been loaded since; load this page again.")
        return self.playground
