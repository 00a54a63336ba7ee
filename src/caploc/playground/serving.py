"""Serve pages on this machine: who may ask, what is taken, which headers go with each answer."""

import asyncio
import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caploc.errors import BadOption, CaplocError
from caploc.report.colours import stylesheet

LOG = logging.getLogger(__name__)
T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)
PAGE = Path(__file__).parent / "page"
Handler = Callable[[Request], Awaitable[Response]]
Event = dict[str, Any]  # what a page is sent, as JSON
Tell = Callable[[Event], None]
HOST = "127.0.0.1"
HOSTS = {HOST, "localhost"}
JSON = "application/json"
MOST_BYTES = 8_000_000  # of one request
# Escaping keeps what a model says from being run; this holds should it ever fail.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
FAREWELL = 2  # seconds that answers under way get when the server is stopped


def describe_error(error: Exception) -> str:
    """Return what the page says of an error."""
    if isinstance(error, CaplocError):
        return str(error)
    if type(error).__name__ == "OutOfMemoryError":
        return "The text does not fit into the device's memory; shorten it, or free memory."
    LOG.error("A page could not be answered", exc_info=error)
    said = " ".join(str(error).split())[:200]
    return f"The model could not answer ({type(error).__name__}: {said})."


class Turns:
    """One thread that asks the model for every visitor in turn."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playground")

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)

    async def stream(self, work: Callable[[Tell], Event]) -> AsyncIterator[bytes]:
        """Hand on, as lines of JSON, what `work` tells while it goes on and what it returns.

        It ends at its next word when nobody listens any more.
        """
        told, left = asyncio.Queue[Event | None](), threading.Event()
        loop = asyncio.get_running_loop()

        def put(event: Event | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, event)

        def tell(event: Event) -> None:
            if left.is_set():
                raise BrokenPipeError
            put(event)

        def do() -> None:
            try:
                tell(work(tell))
            except BrokenPipeError:  # nobody is left to read an answer
                pass
            except Exception as error:  # whatever a model or a task does
                put({"message": describe_error(error)})
            put(None)

        doing = self.thread.submit(do)
        try:
            while (event := await told.get()) is not None:
                yield f"{json.dumps(event)}\n".encode()
        finally:
            left.set()
            doing.cancel()  # unless it has begun

    def end(self) -> None:
        """Take no more work; what runs is the last."""
        self.thread.shutdown(wait=True, cancel_futures=True)


async def show_playground(request: Request) -> Response:
    """Return the playground's page, which asks for the rest beside its own address."""
    return FileResponse(PAGE / "page.html")


async def shades(request: Request) -> Response:
    """Return the colours of effects, those of reports."""
    return Response(stylesheet(), media_type="text/css")


def report_errors(handler: Handler) -> Handler:
    """Return the handler, which says what went wrong in one sentence."""

    async def handled(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:  # nobody is left to read an answer
            return Response(status_code=400)
        except Exception as error:  # whatever a model or a task does
            status = 400 if isinstance(error, CaplocError) else 500
            return JSONResponse({"message": describe_error(error)}, status_code=status)

    return handled


async def read_request(kind: type[A], request: Request) -> A:
    """Read what a page of ours posted; raises BadOption naming the first thing that is wrong."""
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    if media != JSON:  # which no page of another origin posts without being asked first
        raise BadOption(f"The page takes {JSON}; got {media or 'nothing'}.")
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MOST_BYTES:
            raise BadOption(f"The request is longer than {MOST_BYTES:,} bytes; shorten the prompt.")
    try:
        return kind.model_validate_json(bytes(found))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        raise BadOption(f"{where}: {first['msg']}.") from None


class Guard:
    """Answers whoever has the token and asks for this machine by name; adds the security headers.

    The address that caploc prints holds the token; the browser keeps it as a cookie, which it sends
    for no page of another site. A page elsewhere may point a name of its own at this machine; its
    requests carry that name.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = Request(scope)
        name, _, port = asked.headers.get("host", "").partition(":")
        here = name.lower() in HOSTS and (port or "80").isdecimal()
        cookie = f"caploc-{port}"  # a cookie is of a host, whatever the port
        named = asked.query_params.get("token", "")
        known = any(
            secrets.compare_digest(each.encode(), self.token.encode())
            for each in (named, asked.cookies.get(cookie, ""))
        )

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)  # a report brings its own, stricter policy
                if here and known and named:
                    kept = f"{cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", kept)
            await send(message)

        answering = self.app
        if not here:
            answering = PlainTextResponse(f"Open this page at {HOST} or localhost.", 403)
        elif not known:
            answering = PlainTextResponse(
                "Open the address that caploc printed, with its token.", 403
            )
        await answering(scope, receive, guarded)


def build_site(routes: Sequence[BaseRoute], turns: Turns, token: str) -> Starlette:
    """Return a web application that answers those with the token, and ends the turns at its end."""

    @asynccontextmanager
    async def ending(app: Starlette) -> AsyncIterator[None]:
        yield
        turns.end()

    shared = [Route("/shades.css", shades), Mount("/page", StaticFiles(directory=PAGE))]
    guard = Middleware(Guard, token=token)
    return Starlette(routes=[*routes, *shared], middleware=[guard], lifespan=ending)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine only; port 0 takes any that is free.

    Raises BadOption if the port is taken or may not be used.
    """
    if not 0 <= port <= 65535:
        raise BadOption(f"--port must be 0 to 65535; got {port}.")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise BadOption(
            f"Port {port} cannot be used ({error.strerror}); choose another, or --port 0 for any "
            "that is free."
        ) from None


def address(listening: socket.socket) -> str:
    """Return where a browser finds it."""
    return f"http://{HOST}:{listening.getsockname()[1]}"


def serve(site: Starlette, listening: socket.socket) -> None:
    """Serve until Ctrl-C. Nothing is loaded from elsewhere, and nothing is sent anywhere."""
    config = uvicorn.Config(
        site,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FAREWELL,
    )
    uvicorn.Server(config).run(sockets=[listening])
