"""Serve pages on this machine: who may ask, what is taken, which headers go with each answer."""

import asyncio
import logging
import re
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from errno import EADDRNOTAVAIL
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
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
JSON = "application/json"
MOST_BYTES = 8_000_000  # of one request
ELSEWHERE = "--host {!r} is no address of this machine; leave it out for 127.0.0.1."
# Escaping keeps what a model says from being run; this holds should it ever fail.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CONTENT_POLICY = b"content-security-policy"
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
HOST = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<bare>[^\[\]:]+))(?::\d*)?")


def is_address(name: str) -> bool:
    """Tell whether the name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def list_hosts(host: str) -> list[str]:
    """Return the names of a server that listens there; addresses need none.

    Where others can reach it they are those that this machine calls itself, and the one given.
    """
    names = {"localhost"} if is_address(host) else {"localhost", host}
    if not is_loopback(host):
        names |= {socket.gethostname(), socket.getfqdn()}
    return sorted(name.lower() for name in names)


def is_known(header: str, names: Collection[str]) -> bool:
    """Tell whether a Host header names an IP address or one of the names, whatever the port.

    A page elsewhere that points a name of its own at this machine cannot be asked for by address:
    its requests carry its name.
    """
    found = HOST.fullmatch(header.lower())
    if found is None:
        return False
    if bracketed := found["bracketed"]:
        return is_address(bracketed)
    return is_address(found["bare"]) or found["bare"] in names


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
    """One thread that serves every visitor in turn.

    Streams take turns step by step: a long answer in one tab does not keep another waiting, and a
    step knocks out its own heads and none afterwards, so that visitors never share a mask.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playground")

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)

    async def stream(self, steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """Hand on what a generator yields; it is closed when nobody listens any more."""
        over = object()
        try:
            while (found := await self.call(next, steps, over)) is not over:
                yield found
        finally:
            self.thread.submit(steps.close)

    def end(self) -> None:
        """Take no more work; the step that runs is the last."""
        self.thread.shutdown(wait=True, cancel_futures=True)


async def show_playground(request: Request) -> Response:
    """Return the playground's page, which asks for the rest beside its own address."""
    return FileResponse(PAGE / "page.html")


def assets() -> list[BaseRoute]:
    """What all pages share: scripts and styles."""

    async def shades(request: Request) -> Response:
        return Response(stylesheet(), media_type="text/css")

    return [Route("/shades.css", shades), Mount("/page", StaticFiles(directory=PAGE))]


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
    if media != JSON:
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
    """Answers only under these host names and IP addresses, and adds the security headers.

    A page elsewhere can neither point a name of its own here (the host is checked) nor post (only
    JSON is taken, for which browsers ask first, and nobody allows it).
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                if CONTENT_POLICY not in dict(given):  # a report brings its own, stricter one
                    given.append((CONTENT_POLICY, POLICY.encode()))
                message["headers"] = [*given, *HEADERS.items()]
            await send(message)

        answer = self.app
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if not is_known(headers.get("host", ""), self.names):
                answer = PlainTextResponse(
                    "This page does not answer under this host name; open it by its IP address, or "
                    "start it with `--host NAME`.",
                    status_code=400,
                )
            elif is_from_elsewhere(headers):
                answer = PlainTextResponse("Pages of other sites cannot use this one.", 403)
        await answer(scope, receive, guarded)


def is_from_elsewhere(headers: Headers) -> bool:
    """Tell whether a browser says that a page of another site asks, other than by a link to here.

    A report in its frame, which has no origin, counts as one: it needs nothing from here.
    """
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    return site in ("cross-site", "same-site") and mode != "navigate"


def build_site(routes: Sequence[BaseRoute], turns: Turns, hosts: Collection[str]) -> Starlette:
    """Return a web application that answers under these names, and ends the turns at its end."""

    @asynccontextmanager
    async def ending(app: Starlette) -> AsyncIterator[None]:
        yield
        turns.end()

    guard = Middleware(Guard, names=frozenset(hosts))
    return Starlette(routes=[*routes, *assets()], middleware=[guard], lifespan=ending)


FAREWELL = 2  # seconds that answers under way get when the server is stopped


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Raises BadOption if the port is taken or may not be used, or the host is not of this machine.
    """
    if not 0 <= port <= 65535:
        raise BadOption(f"--port must be 0 to 65535; got {port}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise BadOption(ELSEWHERE.format(host)) from None
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        if error.errno == EADDRNOTAVAIL:
            raise BadOption(ELSEWHERE.format(host)) from None
        raise BadOption(
            f"Port {port} of {host} cannot be used ({error.strerror}); choose another, such as "
            f"--port {port + 1 if port < 65535 else port - 1}, or --port 0 for any that is free."
        ) from None
    return found


def describe_exposure(host: str) -> str:
    """Return what to say of an address that others can reach; empty for one that they cannot."""
    if is_loopback(host):
        return ""
    return (
        f"--host {host}: everyone who reaches this machine over the network can use the model and "
        "the tasks here; there is no password. Leave --host out to keep it to this machine."
    )


def address(host: str, listening: socket.socket) -> str:
    """Return where a browser finds it."""
    port = listening.getsockname()[1]
    named = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}"


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
