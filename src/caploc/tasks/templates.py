"""The templates of tasks, rendered where they can run nothing and last no longer than they may.

lm-eval renders `doc_to_text` and its like with plain Jinja, in which a template reaches all of
Python (`{{ cycler.__init__.__globals__.os ... }}`). A task's YAML may come from anyone; a process
of its own renders the same text in Jinja's sandbox, with a limit of time and memory.
"""

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from types import SimpleNamespace
from typing import Any

from jinja2 import exceptions
from lm_eval import utils

from caploc.errors import BadData
from caploc.tasks import rendering

SECONDS = 5.0  # of processor time for one text
WAIT = 120.0  # by the clock, on a machine that has no such time to give
MEMORY = 2**30  # bytes of the process
LONGEST = 4_000_000  # characters of one text
LONGEST_SOURCE = 200_000  # characters of a template
KEPT = 1000  # texts that are not rendered twice
LONGEST_KEPT = 20_000  # characters of one with all that it was made of


def confine_templates() -> None:
    """Let lm-eval render templates in the renderer, from now on in this process."""
    if not isinstance(utils.env, Confined):
        utils.env = Confined()


class Confined:
    """Stands in for lm-eval's Jinja environment: what it asks of one, no more."""

    def __init__(self) -> None:
        self.renderer: Renderer | None = None  # until the first template is rendered
        self.lock = Lock()
        self.kept: dict[str, dict[str, Any]] = {}

    def from_string(self, source: str) -> SimpleNamespace:
        """Return a template as lm-eval uses one; a mistake in it shows when it is rendered."""
        return SimpleNamespace(render=lambda **values: self.render(source, values))

    def render(self, source: str, values: dict[str, Any]) -> str:
        """Return the text of a template.

        Raises BadData if it takes too long or too much memory, or reads what is neither text nor a
        number nor made of them; TemplateError if it is no template, or reads what is not there.
        """
        if len(source) > LONGEST_SOURCE:
            raise BadData(
                f"A template has {len(source):,} characters; {LONGEST_SOURCE:,} are most."
            )
        needed = rendering.names_in(source)
        request = {"template": source, "values": {n: v for n, v in values.items() if n in needed}}
        try:
            line = json.dumps(request, default=rendering.encode_value)
        except TypeError as error:
            raise BadData(f"The template {source[:60]!r} cannot be rendered: {error}.") from None
        reply = self.kept.get(line) or self.ask(line)
        if reply is None or reply.get("error") == "MemoryError":
            raise BadData(
                f"A template takes more than {SECONDS:g} seconds, {MEMORY // 2**20:,} MiB or "
                f"{LONGEST:,} characters: {source[:60]!r}; a task's text is made in an instant."
            )
        if "text" in reply:
            return str(reply["text"])
        name, message = reply["error"], reply["message"]
        kind = getattr(exceptions, name, None)  # the error that Jinja would have raised here
        if isinstance(kind, type) and issubclass(kind, exceptions.TemplateSyntaxError):
            raise kind(message, 1)
        if isinstance(kind, type) and issubclass(kind, exceptions.TemplateError):
            raise kind(message)
        raise ValueError(f"{name}: {message}")

    def ask(self, line: str) -> dict[str, Any] | None:
        """Return the renderer's reply, and keep a text: all examples show the same few before."""
        with self.lock:
            if self.renderer is None or not self.renderer.answers():
                self.renderer = Renderer()
            reply = self.renderer.ask(line)
        if reply and "text" in reply and len(line) + len(reply["text"]) <= LONGEST_KEPT:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[line] = reply
        return reply


class Renderer:
    """A process that renders, and the conversation with it."""

    def __init__(self) -> None:
        """Start it, in a session of its own: Ctrl-C in the terminal is none of its business."""
        limits = str(SECONDS), str(MEMORY), str(LONGEST)
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(rendering.__file__)), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.end)

    def answers(self) -> bool:
        """Return whether it can be asked: it is this process's own, and has not ended."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, line: str) -> dict[str, Any] | None:
        """Return what it makes of a request; None if it ended over it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        reply = b""
        killer = Timer(WAIT, self.process.kill)  # the one way to stop waiting on every system
        killer.daemon = True
        try:
            killer.start()
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            pass
        finally:
            killer.cancel()
            if not reply.endswith(b"\n"):
                self.end()
        return json.loads(reply) if reply.endswith(b"\n") else None

    def end(self) -> None:
        atexit.unregister(self.end)
        if self.owner != os.getpid():  # a fork's copy
            return
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self.process.wait()
