"""What the kernel can put around a program, apart from the limits on what it may use."""

import sys
from dataclasses import dataclass
from typing import Literal

# "full": namespaces and the filter, and every way out that is tried is closed. "weak": the best
# that the machine gives.
Isolation = Literal["full", "weak"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One combination of the kernel's means of isolation.

    Attributes:
        namespaces: a world of its own: users, processes, network, files, messages, host name.
        filter: only the system calls that a computation needs.
        landlock: the kernel's own limits on paths, where there are no namespaces.
    """

    namespaces: bool
    filter: bool
    landlock: bool

    @property
    def full(self) -> bool:
        """Tell whether nothing that a Linux kernel offers is missing."""
        return self.namespaces and self.filter

    @property
    def read_only(self) -> bool:
        """Tell whether only the filter can keep files from being written, and so keeps all."""
        return self.filter and not self.namespaces and not self.landlock


def profiles() -> list[Profile]:
    """List every combination that this system may have, strongest first."""
    if sys.platform != "linux":
        return [Profile(namespaces=False, filter=False, landlock=False)]
    return [
        Profile(namespaces=True, filter=True, landlock=False),
        Profile(namespaces=False, filter=True, landlock=True),
        Profile(namespaces=True, filter=False, landlock=False),
        Profile(namespaces=False, filter=True, landlock=False),
        Profile(namespaces=False, filter=False, landlock=True),
        Profile(namespaces=False, filter=False, landlock=False),
    ]
