"""The judge's side of the program: its functions and objects, called from afar.

What comes back is plain data in exact builtin types, or a `Remote`: something only the program
can look into. A Remote equals itself and nothing else, whatever the program says.
"""

import builtins
import importlib
import socket
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from caploc.sandbox.inside import frames, plain

# What a `map` or a generator of the tests takes for the end of its input, in silence.
SILENT = (StopIteration, StopAsyncIteration, GeneratorExit)


class Unfit(Exception):
    """The tests hand the program something that is not plain data."""


class Link:
    """Asks the program's process to do things.

    Attributes:
        names: the program's globals after it ran.
        trouble: None; or "lost" once the program's process is gone, or "refused" once it sent
            something malformed. What the tests do afterwards counts no more.
        raised: the last exception that the program raised.
    """

    def __init__(self, channel: socket.socket) -> None:
        """Speak over an open socket."""
        self._channel = channel
        self._known: dict[int, Remote] = {}
        self.names: frozenset[str] = frozenset()
        self.trouble: str | None = None
        self.raised: BaseException | None = None

    def load(self, text: str) -> None:
        """Have the program's text run.

        Raises:
            BaseException: what the program raised.
        """
        self.names = frozenset(map(str, self.ask("load", text)))

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Do something there; the result, and the arguments changed as they were there.

        Raises:
            BaseException: what the program raised, as the nearest builtin type.
            frames.Gone: if its process is gone.
            frames.Malformed: if the answer is none.
            Unfit: if an argument is not plain data.
        """
        encoded = plain.encode_all(arguments, self.sent)
        encoded_named = {name: plain.encode(each, self.sent) for name, each in named.items()}
        reply = self._exchange([operation, encoded, encoded_named])
        try:
            return self._understood(operation, reply, [*arguments, *named.values()])
        except frames.Malformed:
            self.trouble = "refused"
            raise

    def _exchange(self, request: list[Any]) -> Any:
        if self.trouble:
            raise frames.Gone
        try:
            frames.send(self._channel, request)
            return frames.receive(self._channel)
        except (frames.Gone, OSError) as error:
            self.trouble = "lost"
            raise frames.Gone from error
        except frames.Malformed:
            self.trouble = "refused"
            raise

    def _understood(self, operation: str, reply: Any, arguments: list[Any]) -> Any:
        match reply:
            case ["value", raw, list(changes)]:
                result = plain.decode(raw, self.received)
                for change in changes:
                    self._change(change, arguments)
                return result
            case ["raise", str(name), list(names), list(raw)]:
                given = [plain.decode(each, self.received) for each in raw]
                error = as_builtin(name, names, given)
                ends = operation == "next" and isinstance(error, StopIteration)
                if isinstance(error, SILENT) and not ends:
                    error = RuntimeError(f"the program raised {name}")
                self.raised = error
                raise error
        raise frames.Malformed("an answer of no known form")

    def _change(self, change: Any, arguments: list[Any]) -> None:
        match change:
            case [int(at), raw] if 0 <= at < len(arguments):
                mirror(arguments[at], plain.decode(raw, self.received))
            case _:
                raise frames.Malformed("a change of no known form")

    def sent(self, value: Any) -> list[Any]:
        """A Remote by its number."""
        if type(value) is Remote:
            return ["handle", number(value)]
        raise Unfit(f"the tests hand the program a {type(value).__name__}, not plain data")

    def received(self, raw: list[Any]) -> Any:
        """The one Remote of a number, or our own module of a name."""
        match raw:
            case ["handle", int(key)] if key >= 0:
                return self._known.setdefault(key, Remote(self, key))
            case ["module", str(name)] if name in sys.stdlib_module_names and name[0] != "_":
                return importlib.import_module(name)
        raise frames.Malformed("a value of no known type")


class Remote:
    """Something that lives in the program's process: a function, a class, an object."""

    __slots__ = ("__key", "__link")

    def __init__(self, link: Link, key: int) -> None:
        """The program's object number `key`."""
        object.__setattr__(self, "_Remote__link", link)
        object.__setattr__(self, "_Remote__key", key)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self.__link.ask("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return self.__link.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__link.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self.__link.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__link.ask("put", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        return iter_of(self.__link.ask("iterate", self))

    def __next__(self) -> Any:
        return self.__link.ask("next", self)

    def __len__(self) -> int:
        length: int = self.__link.ask("length", self)
        return length

    def __bool__(self) -> bool:
        return self.__link.ask("truth", self) is True

    def __str__(self) -> str:
        return str(self.__link.ask("text", self))

    def __repr__(self) -> str:
        return str(self.__link.ask("show", self))

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and self.__link.ask("is_instance", self, value) is True

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an object of the program cannot be copied")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def number(remote: Remote) -> int:
    """What the program calls it by."""
    key: int = object.__getattribute__(remote, "_Remote__key")
    return key


def iter_of(answer: Any) -> Iterator[Any]:
    """The iterator that an object's __iter__ gave.

    Raises:
        TypeError: if it is none.
    """
    if type(answer) is Remote:
        return answer
    raise TypeError("iter() returned something that is not an iterator")


def as_builtin(name: str, names: list[Any], arguments: list[Any]) -> BaseException:
    """An exception of the first builtin type in `names`; Exception for none.

    A type that takes other arguments than these gives way to the next.
    """
    for each in names:
        kind = plain.EXCEPTIONS.get(each) if isinstance(each, str) else None
        if kind is not None:
            try:
                error = kind(*arguments)
            except (TypeError, ValueError):
                continue
            if each != name:
                error.add_note(name)
            return error
    plain_ones = [str(each) for each in arguments if type(each) is not Remote]
    return Exception(f"{name}: {', '.join(plain_ones)}")


def mirror(old: Any, new: Any) -> Any:
    """Make a mutable value hold what the new one holds, and its parts likewise; else the new one.

    Parts keep their identity: `row = grid[0]` sees what happened to the grid.
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, list | deque):
        kept = len(old) == len(new)
        values = [mirror(*pair) for pair in zip(old, new, strict=True)] if kept else list(new)
        old.clear()
        old.extend(values)
    elif isinstance(old, dict):
        pairs = {key: mirror(old.get(key), value) for key, value in new.items()}
        dict.clear(old)
        dict.update(old, pairs)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, tuple) and len(old) == len(new):
        return tuple(mirror(*pair) for pair in zip(old, new, strict=True))
    else:
        return new
    return old


class Names(dict[str, Any]):
    """The globals of the tests: what they do not define is the program's.

    A builtin stays the builtin, even if the program has a global of its name: else it could
    redefine `abs` or `sorted`. Only tests that name nothing else of the program, as in
    `assert sum(10, 15) == 6`, mean the program's.
    """

    def __init__(self, link: Link, *, override: bool) -> None:
        """Look names up over the link; `override` lets the program's hide builtins."""
        super().__init__(__name__="tests", __builtins__=builtins)
        self._link = link
        self._override = override

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        builtin = hasattr(builtins, name)
        if builtin and not (self._override and name in self._link.names):
            raise KeyError(name)
        return self._found(name)

    def _found(self, name: str) -> Any:
        try:
            return self._link.ask("fetch", name)
        except NameError as error:
            raise KeyError(name) from error
