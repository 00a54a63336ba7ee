"""Every exception that caploc raises on purpose.

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

from collections.abc import Callable, Iterable


class CaplocError(Exception):
    """Anything raised on purpose; its text is one sentence for the user."""


class UserError(CaplocError):
    """What was asked cannot be done; the text says what is allowed and what to do."""


class UnknownName(UserError, LookupError):
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


def raise_together(attempts: Iterable[Callable[[], object]]) -> None:
    """Make every attempt, and raise what they refuse as one error.

    Raises CaplocError, of the first one's kind, with the sentences of all.
    """
    mistakes: list[CaplocError] = []
    for attempt in attempts:
        try:
            attempt()
        except CaplocError as error:
            mistakes.append(error)
    if mistakes:
        raise type(mistakes[0])(" ".join(dict.fromkeys(map(str, mistakes))))
