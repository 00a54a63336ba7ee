"""The playground's addresses: its page, what the page asks, and who may ask it."""

import asyncio
import base64
import json
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
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caploc.errors import BadOption, CaplocError
from caploc.finished import FinishedRun
from caploc.headfile import NAME
from caploc.playground.answers import Event
from caploc.playground.playground import Playground, describe_error
from caploc.playground.setting import (
    DEMO,
    AttentionRequest,
    ExampleRequest,
    HeadsRequest,
    PageQuestion,
    PageRequest,
)
from caploc.report import colours
from caploc.report.headtable import head_map
from caploc.report.sentence import headline
from caploc.report.wording import called, inline

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
    """Return the names of a playground that listens there; addresses need none.

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


T = TypeVar("T")
A = TypeVar("A", bound=PageRequest)
# A prompt to begin with. The demo model was trained on lines, each a text of its own.
FIRST = {DEMO: {"prompt": "47+38=", "stops": ["\n"], "new_tokens": 16}}
ELSEWHERE = {"prompt": "", "stops": [], "new_tokens": 64}

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


class Turns:
    """One thread that serves every visitor in turn.

    Streams take turns step by step: a long answer in one tab does not keep another waiting, and a
    step knocks out its own heads and none afterwards, so that visitors never share a mask.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playground")

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Have one piece of work done and return its result."""
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


class Site:
    """What each address of the playground answers."""

    def __init__(self, playground: Playground) -> None:
        self.playground, self.turns = playground, Turns()

    def routes(self) -> list[BaseRoute]:
        post = {
            "/example": self.example,
            "/answers": self.answers,
            "/attention": self.attention,
            "/heads": self.heads,
        }
        return [
            Route("/", self.page),
            Route("/shades.css", self.shades),
            Route("/board", report_errors(self.board)),
            *(Route(path, report_errors(each), methods=["POST"]) for path, each in post.items()),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]

    async def page(self, request: Request) -> Response:
        return FileResponse(PAGE / "page.html")

    async def shades(self, request: Request) -> Response:
        return Response(colours.stylesheet(), media_type="text/css")

    async def board(self, request: Request) -> Response:
        return JSONResponse(await self.turns.call(lay_out, self.playground))

    async def example(self, request: Request) -> Response:
        asked = await read_request(ExampleRequest, request)
        # described on the thread that loads tasks
        return JSONResponse(
            await self.turns.call(lambda: self.playground.example(asked).describe())
        )

    async def answers(self, request: Request) -> Response:
        """Both answers, an event a line, as they come."""
        question = await read_request(PageQuestion, request)
        events = self.turns.stream(self.playground.answers(question))
        return StreamingResponse(encode_events(events), media_type="application/x-ndjson")

    async def attention(self, request: Request) -> Response:
        """A head's pattern; the weights are float32, row by row, in base64."""
        asked = await read_request(AttentionRequest, request)
        found = await self.turns.call(self.playground.attention, asked)
        weights = base64.b64encode(found["weights"].tobytes()).decode()
        return JSONResponse(found | {"weights": weights})

    async def heads(self, request: Request) -> Response:
        asked = await read_request(HeadsRequest, request)
        saved = await self.turns.call(self.playground.save_heads, asked)
        as_file = {"content-disposition": f'attachment; filename="{NAME}"'}
        return Response(saved, media_type=JSON, headers=as_file)

    @asynccontextmanager
    async def open(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.turns.end()


def application(playground: Playground, hosts: Sequence[str]) -> Starlette:
    """Return a web application that answers under these host names and IP addresses.

    A page elsewhere can neither point a name of its own here (the host is checked) nor post (only
    JSON is taken, for which browsers ask first, and nobody allows it).
    """
    site = Site(playground)
    guard = Middleware(Guard, names=frozenset(hosts))
    return Starlette(routes=site.routes(), middleware=[guard], lifespan=site.open)


async def read_request(kind: type[A], request: Request) -> A:
    """Read what a page of ours posted; raises BadOption naming the first thing that is wrong."""
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    if media != JSON:
        raise BadOption(f"The playground takes {JSON}; got {media or 'nothing'}.")
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


async def encode_events(events: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    """Events as lines of JSON."""
    try:
        async for event in events:
            yield json.dumps(event, allow_nan=False).encode() + b"\n"
    finally:
        await events.aclose()


class Guard:
    """Answers only under these host names and IP addresses, and adds the security headers."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS.items()]
            await send(message)

        asks = scope["type"] in ("http", "websocket")
        if not asks or is_known(Headers(scope=scope).get("host", ""), self.names):
            await self.app(scope, receive, guarded)
            return
        refused = PlainTextResponse(
            "The playground does not answer under this host name; open it by its IP address, or "
            "start it with `--host NAME`.",
            status_code=400,
        )
        await refused(scope, receive, guarded)


def lay_out(playground: Playground) -> dict[str, Any]:
    """Everything the page needs to draw itself."""
    loaded, setting = playground.loaded, playground.setting
    grid = loaded.grid
    return {
        "model": {
            "name": inline(loaded.name),
            "called": called(loaded.name),
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "window": playground.window,
            "chat": loaded.tokenizer.chat_template is not None,
        },
        "layers": list(grid.heads_per_layer),
        "group_sizes": list(grid.group_sizes),
        "runs": [lay_out_run(run) for run in setting.runs],
        "tasks": list(setting.tasks),
        "first": FIRST.get(setting.model.name, ELSEWHERE),
    }


def lay_out_run(run: FinishedRun) -> dict[str, Any]:
    """Return a run's map, and its heads in the order in which they are knocked out."""
    drawn = head_map(run.result)
    return {
        "name": inline(run.folder.name),
        "task": run.study.task,
        "sentence": headline(run.result),
        "order": run.result.ranking(),
        "top": len(run.result.top),
        # each head's colour, effect and note, layer by layer
        "cells": [
            [{"shade": cell.shade, "text": cell.text, "note": cell.note} for cell in layer]
            for layer in drawn.layers
        ],
        "legend": {"needed": drawn.needed_end, "helped": drawn.helped_end},
    }


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
        raise BadOption(f"--host {host!r} is no address of this machine.") from None
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
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


def serve(playground: Playground, host: str, listening: socket.socket) -> None:
    """Serve until Ctrl-C. Nothing is loaded from elsewhere, and nothing is sent anywhere."""
    config = uvicorn.Config(
        application(playground, list_hosts(host)),
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FAREWELL,
    )
    uvicorn.Server(config).run(sockets=[listening])
