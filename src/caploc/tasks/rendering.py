"""Renders templates, one a line of standard input, as a process of its own that may be ended.

A template of a stranger may loop for ever, build a text that no memory holds, or match a regular
expression that takes a year. Jinja's sandbox keeps it from Python, not from time and memory: those
end with the process. Imports nothing of caploc, so that it starts in a tenth of a second.
"""

import json
import re
import signal
import sys
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, Template, nodes
from jinja2.sandbox import SandboxedEnvironment

TAG = "\x00type"  # of a value that JSON has no form for
DATES: dict[str, Any] = {"datetime": datetime, "date": date, "time": time}


def encode_value(value: Any) -> Any:
    """Return a value in JSON's terms, for what a column of data may hold; raises TypeError."""
    for name, kind in DATES.items():
        if type(value) is kind:
            return {TAG: name, "text": value.isoformat()}
    if isinstance(value, Decimal):
        return {TAG: "decimal", "text": str(value)}
    if isinstance(value, bytes):
        return {TAG: "bytes", "text": value.hex()}
    raise TypeError(f"it reads a value of the type {type(value).__name__}; name other columns")


def decode_value(value: dict[str, Any]) -> Any:
    """Return the value that `encode_value` was given."""
    kind = value.get(TAG)
    readers = {name: each.fromisoformat for name, each in DATES.items()}
    readers |= {"decimal": Decimal, "bytes": bytes.fromhex}
    return readers[kind](value["text"]) if kind in readers else value


@lru_cache(maxsize=256)
def compiled(source: str) -> Template:
    """Return a template; each is compiled once, though lm-eval hands it over for every document."""
    return ENVIRONMENT.from_string(source)


@lru_cache(maxsize=256)
def names_in(source: str) -> frozenset[str]:
    """Return the columns that a template may read, uncompiled: that would compute constants."""
    return frozenset(name.name for name in ENVIRONMENT.parse(source).find_all(nodes.Name))


# lm-eval's environment for templates, in Jinja's sandbox.
ENVIRONMENT = SandboxedEnvironment(
    loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
)
ENVIRONMENT.filters["regex_replace"] = lambda string, pattern, repl, count=0: re.sub(
    pattern, repl, string, count=count
)


def answer_line(line: str, seconds: float, longest: int) -> dict[str, Any]:
    """Return the rendered text of a request, or the error's name and message."""
    try:
        request = json.loads(line, object_hook=decode_value)
        text = rendered(request["template"], request["values"], seconds)
        if len(text) > longest:
            raise MemoryError
        return {"text": text}
    except MemoryError:
        return {"error": "MemoryError", "message": ""}
    except Exception as error:  # whatever a template and its filters raise
        return {"error": type(error).__name__, "message": str(error)[:2000]}


def rendered(source: str, values: dict[str, Any], seconds: float) -> str:
    """Render; the system ends this process when the processor time is over."""
    limited = hasattr(signal, "setitimer")
    if limited:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends a process that does not catch
    try:
        return compiled(source).render(**values)
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_PROF, 0)


def serve_requests() -> None:
    """Answer until the other side closes."""
    seconds, most, longest = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with suppress(ImportError, ValueError, OSError):  # Windows; macOS has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer_line(line, seconds, longest)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve_requests()
