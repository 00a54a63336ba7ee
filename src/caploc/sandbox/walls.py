"""Which walls stand around a program, apart from the limits."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Walls:
    """What a worker builds around its programs.

    Attributes:
        namespaces: a world of its own: users, processes, network, files, messages, host name.
        filter: refused system calls.
        landlock: the kernel's own limits on paths, where there are no namespaces.
    """

    namespaces: bool
    filter: bool
    landlock: bool


def wishes() -> list[Walls]:
    """Every combination that this system may have, strongest first."""
    if sys.platform != "linux":
        return [Walls(namespaces=False, filter=False, landlock=False)]
    return [
        Walls(namespaces=True, filter=True, landlock=False),
        Walls(namespaces=True, filter=False, landlock=False),
        Walls(namespaces=False, filter=True, landlock=True),
        Walls(namespaces=False, filter=True, landlock=False),
        Walls(namespaces=False, filter=False, landlock=True),
        Walls(namespaces=False, filter=False, landlock=False),
    ]
