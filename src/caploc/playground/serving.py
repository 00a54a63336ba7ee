"""Serve the playground on this machine: a free port, a warning where others can reach it."""

import socket

import uvicorn

from caploc.errors import BadOption
from caploc.playground.app import application
from caploc.playground.hosts import is_loopback, list_hosts
from caploc.playground.playground import Playground

FAREWELL = 2  # seconds that answers under way get when the server is stopped


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any that is free.

    Raises:
        BadOption: if the port is taken or may not be used, or the host is not of this machine.
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
