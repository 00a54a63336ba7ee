"""Renders templates, one a line of standard input, as a process of its own that may be ended.

A template of a stranger may loop for ever, build a text that no memory holds, or match a regular
expression that takes a year. Jinja's sandbox keeps it from Python, not from time and memory: those
end with the process. Imports nothing of caploc, so that it starts in a tenth of a second.
"""

import json
import re
import signal
import sys
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, Template, nodes
from jinja2.sandbox import SandboxedEnvironment

TAG = "\x00type"  # of a value that JSON has no form for
DATES: dict[str, Any] = {"datetime": datetime, "date": date, "time": time}


def encode_value(value: Any) -> Any:
    """Return a value in JSON's terms, for what a column of data may hold.

    Raises:
        TypeError: if it is anything else.
    """
    for name, kind in DATES.items():
        if type(value) is kind:
            return {TAG: name, "text": value.isoformat()}
    if isinstance(value, Decimal):
        return {TAG: "decimal", "text": str(value)}
    if isinstance(value, bytes):
        return {TAG: "bytes", "text": value.hex()}
    raise TypeError(f"it reads a value of the type {type(value).__name__}; name other columns")


def decode_value(value: dict[str, Any]) -> Any:
    """Return the value of `encode`."""
    kind = value.get(TAG)
    if kind in DATES:
        return DATES[kind].fromisoformat(value["text"])
    if kind == "decimal":
        return Decimal(value["text"])
    if kind == "bytes":
        return bytes.fromhex(value["text"])
    return value


def environment() -> SandboxedEnvironment:
    """lm-eval's environment for templates, in Jinja's sandbox."""
    made = SandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
    )
    made.filters["regex_replace"] = replace_matches
    return made


def replace_matches(string: str, pattern: str, repl: str, count: int = 0) -> str:
    """`re.sub`, as lm-eval's filter of the name `regex_replace`."""
    return re.sub(pattern, repl, string, count=count)


@lru_cache(maxsize=256)
def compiled(source: str) -> Template:
    """Return a template; each is compiled once, though lm-eval hands it over for every document."""
    return ENVIRONMENT.from_string(source)


@lru_cache(maxsize=256)
def names_in(source: str) -> frozenset[str]:
    """Return the columns that a template may read, without compiling it: that computes constants.

    Raises:
        TemplateError: if it is no template.
    """
    return frozenset(name.name for name in ENVIRONMENT.parse(source).find_all(nodes.Name))


ENVIRONMENT = environment()


def limit_memory(most: int) -> None:
    """Give this process at most so many bytes of memory, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ValueError, OSError):  # macOS has no such limit
        return


def answer_line(line: str, seconds: float) -> dict[str, Any]:
    """Return the rendered text of a request, or the error's name and message."""
    try:
        request = json.loads(line, object_hook=decode_value)
        return {"text": rendered(request["template"], request["values"], seconds)}
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
    limit_memory(most)
    for line in sys.stdin:
        reply = answer_line(line, seconds)
        if len(reply.get("text", "")) > longest:
            reply = {"error": "MemoryError", "message": ""}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve_requests()
