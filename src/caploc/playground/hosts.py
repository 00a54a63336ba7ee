"""Under which host names the playground answers, so that no page elsewhere can borrow a name."""

import re
import socket
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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


class HostGuard:
    """Refuses requests under any host name but these and IP addresses."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        """Stand before this application; `names` are in lower case."""
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        asks = scope["type"] in ("http", "websocket")
        if not asks or is_known(Headers(scope=scope).get("host", ""), self.names):
            await self.app(scope, receive, send)
            return
        refused = PlainTextResponse(
            "The playground does not answer under this host name; open it by its IP address, or "
            "start it with `--host NAME`.",
            status_code=400,
        )
        await refused(scope, receive, send)
