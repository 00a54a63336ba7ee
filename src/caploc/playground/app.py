"""The playground's addresses: its page, and what the page asks."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caploc.errors import BadOption, CaplocError
from caploc.headfile import NAME
from caploc.playground.asked import (
    AttentionAsked,
    ExampleAsked,
    HeadsAsked,
    Question,
    parsed,
)
from caploc.playground.board import board
from caploc.playground.hosts import Known
from caploc.playground.odds import Event
from caploc.playground.playground import Playground, sentence
from caploc.playground.turns import Turns
from caploc.report import colours

PAGE = Path(__file__).parent / "page"
Handler = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
MOST_BYTES = 8_000_000  # of one request
# Escaping keeps what a model says from being run; this holds should it ever fail.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


def answered(handler: Handler) -> Handler:
    """The handler, which says what went wrong in one sentence."""

    async def handled(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:  # nobody is left to read an answer
            return Response(status_code=400)
        except Exception as error:  # whatever a model or a task does
            status = 400 if isinstance(error, CaplocError) else 500
            return JSONResponse({"message": sentence(error)}, status_code=status)

    return handled


class Site:
    """What each address of the playground answers."""

    def __init__(self, playground: Playground) -> None:
        """Answer for this playground, everything that touches its model in turn."""
        self.playground, self.turns = playground, Turns()

    def routes(self) -> list[BaseRoute]:
        """Every address."""
        post = {
            "/example": self.example,
            "/answers": self.answers,
            "/attention": self.attention,
            "/heads": self.heads,
        }
        return [
            Route("/", self.page),
            Route("/shades.css", self.shades),
            Route("/board", answered(self.board)),
            *(Route(path, answered(each), methods=["POST"]) for path, each in post.items()),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return FileResponse(PAGE / "page.html")

    async def shades(self, request: Request) -> Response:
        """The colours of effects and changes."""
        return Response(colours.stylesheet(), media_type="text/css")

    async def board(self, request: Request) -> Response:
        """What the page lays out."""
        return JSONResponse(await self.turns.call(board, self.playground))

    async def example(self, request: Request) -> Response:
        """An example of a task."""
        asked = parsed(ExampleAsked, await body(request))
        return JSONResponse(await self.turns.call(self.described, asked))

    def described(self, asked: ExampleAsked) -> Event:
        """The example as the page shows it; on the model's thread, as tasks are loaded there."""
        return self.playground.example(asked).described()

    async def answers(self, request: Request) -> Response:
        """Both answers, an event a line, as they come."""
        question = parsed(Question, await body(request))
        events = self.turns.stream(self.playground.answers(question))
        return StreamingResponse(lines(events), media_type="application/x-ndjson")

    async def attention(self, request: Request) -> Response:
        """A head's pattern; the weights are float32, row by row, in base64."""
        asked = parsed(AttentionAsked, await body(request))
        found = await self.turns.call(self.playground.attention, asked)
        weights = base64.b64encode(found["weights"].tobytes()).decode()
        return JSONResponse(found | {"weights": weights})

    async def heads(self, request: Request) -> Response:
        """A file of heads to save."""
        asked = parsed(HeadsAsked, await body(request))
        saved = await self.turns.call(self.playground.saved, asked)
        as_file = {"content-disposition": f'attachment; filename="{NAME}"'}
        return Response(saved, media_type=JSON, headers=as_file)

    @asynccontextmanager
    async def open(self, app: Starlette) -> AsyncIterator[None]:
        """Serve, and take no more work afterwards."""
        yield
        self.turns.end()


def application(playground: Playground, hosts: Sequence[str]) -> Starlette:
    """The playground as a web application that answers under these host names and IP addresses.

    A page elsewhere can neither point a name of its own here (the host is checked) nor post (only
    JSON is taken, for which browsers ask first, and nobody allows it).
    """
    site = Site(playground)
    known = Middleware(Known, names=frozenset(hosts))
    return Starlette(
        routes=site.routes(), middleware=[Middleware(Guarded), known], lifespan=site.open
    )


async def body(request: Request) -> bytes:
    """What a page of ours posted.

    Raises:
        BadOption: if it is not JSON, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != JSON:
        raise BadOption(f"The playground takes {JSON}; got {kind or 'nothing'}.")
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BYTES:
            raise BadOption(f"The request is longer than {MOST_BYTES:,} bytes; shorten the prompt.")
    return bytes(found)


async def lines(events: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    """Events as lines of JSON."""
    try:
        async for event in events:
            yield json.dumps(event, allow_nan=False).encode() + b"\n"
    finally:
        await events.aclose()


class Guarded:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        """Guard this application."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with headers."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS.items()]
            await send(message)

        await self.app(scope, receive, guarded)
