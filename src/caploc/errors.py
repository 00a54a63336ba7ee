"""Every exception that caploc raises on purpose, and how a name that is near is told.

CaplocError
├── UserError            a mistake in what was asked; the command line exits with 2
│   ├── UnknownName      no such model, task, head, method ...
│   ├── BadOption        a value outside what is allowed
│   ├── BadData          an evaluation set that is empty, malformed or out of reach
│   ├── ModelRefused     a model whose heads could not be found or proved
│   ├── ModelBusy        a model whose heads another thread has knocked out
│   └── FolderTaken      a folder that belongs to another run, or to another process
└── RunFailed            the machine's fault; the command line exits with 1, rows are kept
    ├── Stopped          by Ctrl-C; the command line exits with 130
    │   ├── Terminated   by SIGTERM; the command line exits with 143
    │   └── HungUp       by SIGHUP, as a terminal sends it that is closed; exits with 129
    ├── OutOfMemory      even one row does not fit
    ├── FetchFailed      the package index, or the network, does not give a model
    └── StoreFailed      the disk is full, read-only or corrupt
"""

import re
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # the version is told without it
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class CaplocError(Exception):
    """Anything raised on purpose; its text is one sentence for the user."""


class UserError(CaplocError):
    """What was asked cannot be done; the text says what is allowed and what to do."""


class UnknownName(UserError, LookupError, ValueError):
    """A name that is in no table."""


class BadOption(UserError, ValueError):
    """An option outside its allowed values."""


class BadData(UserError):
    """An evaluation set that cannot be read or used."""


class ModelRefused(UserError):
    """A model that cannot be loaded, or whose heads were not found or did not pass the proof."""


class ModelBusy(UserError):
    """A forward pass through a model whose heads another thread has knocked out."""


class FolderTaken(UserError):
    """A run folder that another study, or another running process, owns."""


class RunFailed(CaplocError):
    """The run stopped; what was measured is stored and the same command resumes it."""


class Stopped(RunFailed):
    """The user pressed Ctrl-C."""

    code = 130  # of the command line: 128 and the signal's number


class Terminated(Stopped):
    """Someone asked the process to end, as a batch system does before it kills."""

    code = 143


class HungUp(Stopped):
    """The terminal, or the connection to it, is gone."""

    code = 129


class OutOfMemory(RunFailed):
    """A batch of one row does not fit into memory."""


class FetchFailed(RunFailed):
    """A pretrained model that cannot be downloaded, or not as it was published."""


class StoreFailed(RunFailed):
    """The rows on disk can no longer be written or read."""


T = TypeVar("T")
LISTED = 20  # names beyond this would bury the sentence


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`; raises UnknownName with the nearest name and what the table holds."""
    if name in table:
        return table[name]
    raise unknown(table, name, kind)


def nearest(names: Iterable[str], name: str) -> str | None:
    """The name that ends in another (`past`: `words/past`) or is spelled most like it, if any."""
    known = {each.lower(): each for each in names}
    whole = sorted(each for each in known if name and each.endswith(f"/{name.lower()}"))
    near = whole or get_close_matches(name.lower(), list(known), n=1)
    return known[near[0]] if near else None


def unknown(names: Iterable[str], name: str, kind: str, where: str = "") -> UnknownName:
    """Build the error for a name that is not among `names`; `where` says how to list them all."""
    known = sorted(names)
    near = nearest(known, name)
    hint = f" Did you mean {near!r}?" if near else ""
    listed = f" Known: {', '.join(known)}." if len(known) <= LISTED else ""
    return UnknownName(f"There is no {kind} {name!r}.{hint}{listed}{' ' + where if where else ''}")


def describe_fault(fault: "ErrorDetails") -> str:
    """Say what pydantic found wrong with a value: the end of a sentence, mostly in its words."""
    if (own := fault.get("ctx", {}).get("error")) is not None:
        return str(own).rstrip(".")
    if fault["type"].startswith("missing"):
        return "is missing"
    if fault["type"] == "extra_forbidden":
        return "is no key here"
    value = fault["input"]
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value) if "." in value else int(value)  # a number as it was typed
    return f"{re.sub('^[A-Z][a-z]+ should', 'must', fault['msg'])}; got {reprlib.repr(value)}"


def describe_faults(error: "ValidationError") -> str:
    """Say where and what is wrong with what a file holds, all of it."""
    found = error.errors(include_url=False)
    said = (
        f"{'.'.join(map(str, one['loc'])) or 'it'}{':' if 'error' in one.get('ctx', {}) else ''} "
        f"{describe_fault(one)}"
        for one in found
    )
    return "; ".join(dict.fromkeys(said))
