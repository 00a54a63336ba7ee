"""The process of the program under judgement: it runs the text, then does what it is asked to.

Nothing that this process says is trusted; it holds no secret, and never sees a test.
"""

import operator
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from caploc.sandbox.inside import frames, plain

NAME = "program"
# Whose contents may change in a call; what was sent in them is compared with what they hold then.
MUTABLE = {
    "list", "dict", "set", "deque", "bytearray", "Counter", "OrderedDict", "defaultdict", "tuple",
}  # fmt: skip


def run(channel: socket.socket) -> None:
    """Serve the judge until it leaves."""
    served = Served()
    while True:
        try:
            request = frames.receive(channel)
        except (frames.Gone, frames.Malformed):
            return
        frames.send(channel, served.answer(request))


class Served:
    """The program's own world, and the objects in it that the judge has heard of."""

    def __init__(self) -> None:
        """An empty module, in which the text will run."""
        self.module = types.ModuleType(NAME)
        self.objects: list[Any] = []
        self.keys: dict[int, int] = {}

    def answer(self, request: list[Any]) -> list[Any]:
        """Do one thing and say how it went: `["value", value, changes]` or `["raise", ...]`."""
        operation, arguments, named = request
        try:
            given = [plain.read(each, self.found) for each in arguments]
            given_named = {name: plain.read(each, self.found) for name, each in named.items()}
            if operation in ("load", "fetch"):
                return ["value", getattr(self, operation)(*given), []]
            result = OPERATIONS[operation](*given, **given_named)
            changes = self.changes([*arguments, *named.values()], [*given, *given_named.values()])
            return ["value", plain.encode(result, self.handle), changes]
        except BaseException as error:  # whatever it is, the judge decides what it means
            return self.raised(error)

    def load(self, text: str) -> list[str]:
        """Run the program's text; the names it leaves behind."""
        sys.modules[NAME] = self.module
        exec(compile(text, f"<{NAME}>", "exec"), self.module.__dict__)
        return ["list", *map(str, self.module.__dict__)]

    def fetch(self, name: str) -> Any:
        """The global of this name, encoded.

        Raises:
            NameError: if there is none.
        """
        if name not in self.module.__dict__:
            raise NameError(f"name {name!r} is not defined")
        return plain.encode(self.module.__dict__[name], self.handle)

    def handle(self, value: Any) -> list[Any]:
        """Something that is not plain data: a module by its name, else a number to call it by."""
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if id(value) not in self.keys:
            self.keys[id(value)] = len(self.objects)
            self.objects.append(value)
        return ["handle", self.keys[id(value)]]

    def found(self, raw: list[Any]) -> Any:
        """What a number stands for."""
        _, key = raw
        return self.objects[key]

    def changes(self, sent: list[Any], held: list[Any]) -> list[Any]:
        """For each argument that the call changed: its position and what it holds now."""
        changed = []
        for at, (raw, value) in enumerate(zip(sent, held, strict=True)):
            if isinstance(raw, list) and raw[0] in MUTABLE:
                now = plain.encode(value, self.handle)
                if now != raw:
                    changed.append([at, now])
        return changed

    def raised(self, error: BaseException) -> list[Any]:
        """An exception: the builtin types that it is, nearest first, and its arguments."""
        names = [each.__name__ for each in type(error).__mro__ if each in plain.TYPE_NAMES]
        try:
            arguments = plain.encode_all(error.args, self.handle)
        except BaseException:
            arguments = []
        return ["raise", type(error).__name__, names, arguments]


def call(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Call it."""
    return function(*arguments, **named)


def is_instance(kind: Any, value: Any) -> bool:
    """Whether a value is of a class of the program."""
    return isinstance(value, kind)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call,
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "put": operator.setitem,
    "iterate": iter,
    "next": next,
    "length": len,
    "truth": bool,
    "text": str,
    "show": repr,
    "is_instance": is_instance,
}


def main(channel_file: int) -> None:
    """Serve over an open socket, then end at once."""
    with socket.socket(fileno=channel_file) as channel:
        run(channel)
    os._exit(0)
