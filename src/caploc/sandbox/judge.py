"""Judge and program, two processes: the test code calls the program's functions from afar.

What comes back from the program is plain data in exact builtin types, or a `Remote`: something
only the program can look into. A Remote equals itself and nothing else, whatever the program says.
Nothing that the program's process says is trusted; it holds no secret, and never sees a test.
"""

import ast
import builtins
import importlib
import operator
import os
import socket
import sys
import traceback
import types
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from caploc.sandbox import protocol
from caploc.sandbox.protocol import EXCEPTIONS, Malformed, decode, encode

TESTS = "<tests>"
LONGEST_DETAIL = 10_000
# What a `map` or a generator of the tests takes for the end of its input, in silence.
SILENT = (StopIteration, StopAsyncIteration, GeneratorExit)


def serve_tests(channel_file: int, report_file: int) -> None:
    """Be the judge: read text and tests, judge, report, and end at once."""
    with socket.socket(fileno=report_file) as driver, socket.socket(fileno=channel_file) as channel:
        protocol.send(driver, protocol.receive(channel))  # both are isolated
        request = protocol.receive(driver)
        reason, detail = judge_program(request["text"], request["tests"], Link(channel))
        protocol.send(driver, {"reason": reason, "detail": detail[:LONGEST_DETAIL]})
    os._exit(0)


def judge_program(text: str, tests: str, link: "Link") -> tuple[str, str]:
    """Run the program, then its tests; return one of `caploc.sandbox.pool.REASONS`, and detail.

    Or "lost" where the program's process ended; why is for the one who started it to tell.
    """
    try:
        reason, detail = run_tests(text, tests, link)
    except MemoryError:
        reason, detail = "memory", "the tests ran out of memory"
    # Even if the tests caught the exception and went on.
    if link.trouble == "refused":
        return "refused", "the program sent something that is not plain data"
    return (link.trouble, "") if link.trouble else (reason, detail)


def run_tests(text: str, tests: str, link: "Link") -> tuple[str, str]:
    """Return reason and detail, unless the program's process is in trouble."""
    try:
        tree = ast.parse(tests, TESTS)
        code = compile(tree, TESTS, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        return "error", f"the tests cannot be read: {describe(error)}"
    try:
        names = set(map(str, link.ask("load", text)))
        exec(code, Names(link, names if name_only_builtins(tree) else set()))
    except Malformed as error:
        return "refused", str(error)
    except BaseException as error:  # SystemExit too: nothing but reaching the end is a pass
        lines = dict(enumerate(tests.splitlines(), 1))
        frames = traceback.walk_tb(error.__traceback__)
        numbers = [line for frame, line in frames if frame.f_code.co_filename == TESTS]
        where = "".join(f"{lines[line].strip()}: " for line in numbers[-1:] if line in lines)
        failed = isinstance(error, AssertionError) and error is not link.raised
        reason = "memory" if isinstance(error, MemoryError) else "failed" if failed else "error"
        return reason, where + describe(error)
    return "passed", ""


def describe(error: BaseException) -> str:
    """Return type and text of an exception, in one line."""
    kind = "".join(getattr(error, "__notes__", [])[:1]) or type(error).__name__
    try:
        text = str(error)
    except BaseException:  # an argument may be an object of the program's
        text = ""
    return f"{kind}: {text}" if text else kind


def name_only_builtins(tree: ast.AST) -> bool:
    """Tell whether all that the tests take from elsewhere has the name of a builtin."""
    taken, own = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                own.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                own |= {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.Name(id=name, ctx=ast.Load()):
                taken.add(name)
            case ast.Name(id=name):
                own.add(name)
    return all(hasattr(builtins, name) for name in taken - own)


class Link:
    """Asks the program's process to do things."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._known: dict[int, Remote] = {}
        # "lost" once the program's process is gone, "refused" once it sent something malformed.
        # What the tests do afterwards counts no more.
        self.trouble = ""
        self.raised: BaseException | None = None  # the last exception that the program raised

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        """Have something done there; return the result, and change arguments as it changed them.

        What the program raises is raised here, as the nearest builtin type.
        """
        encoded = [encode(each, self._send) for each in arguments]
        encoded_named = {name: encode(each, self._send) for name, each in named.items()}
        try:
            reply = self._exchange([operation, encoded, encoded_named])
            return self._understand(operation, reply, [*arguments, *named.values()])
        except Malformed:
            self.trouble = "refused"
            raise

    def _exchange(self, request: list[Any]) -> Any:
        if self.trouble:
            raise ConnectionError
        try:
            protocol.send(self._channel, request)
            return protocol.receive(self._channel)
        except OSError:
            self.trouble = "lost"
            raise

    def _understand(self, operation: str, reply: Any, arguments: list[Any]) -> Any:
        match reply:
            case ["value", raw, list(changes)]:
                result = decode(raw, self.receive)
                for change in changes:
                    match change:
                        case [int(at), now] if 0 <= at < len(arguments):
                            mirror(arguments[at], decode(now, self.receive))
                        case _:
                            raise Malformed("a change of no known form")
                return result
            case ["raise", str(name), list(names), list(raw)]:
                error = as_builtin(name, names, [decode(each, self.receive) for each in raw])
                ends = operation == "next" and isinstance(error, StopIteration)
                if isinstance(error, SILENT) and not ends:
                    error = RuntimeError(f"the program raised {name}")
                self.raised = error
                raise error
        raise Malformed("an answer of no known form")

    def _send(self, value: Any) -> list[Any]:
        if type(value) is Remote:
            return ["handle", object.__getattribute__(value, "_Remote__key")]
        raise Malformed(f"the tests hand the program a {type(value).__name__}, not plain data")

    def receive(self, raw: list[Any]) -> Any:
        """Return the one Remote of a number, or our own module of a name."""
        match raw:
            case ["handle", int(key)] if key >= 0:
                return self._known.setdefault(key, Remote(self, key))
            case ["module", str(name)] if name in sys.stdlib_module_names and name[0] != "_":
                return importlib.import_module(name)
        raise Malformed("a value of no known type")


def forward(operation: str) -> Any:
    """Return a method that has an operation done where the object lives."""

    def method(self: "Remote", /, *arguments: Any, **named: Any) -> Any:
        link: Link = object.__getattribute__(self, "_Remote__link")
        return link.ask(operation, self, *arguments, **named)

    return method


class Remote:
    """Something that lives in the program's process: a function, a class, an object."""

    __slots__ = ("__key", "__link")
    __link: Link

    def __init__(self, link: Link, key: int) -> None:
        object.__setattr__(self, "_Remote__link", link)
        object.__setattr__(self, "_Remote__key", key)

    __call__, __getattr__, __setattr__ = forward("call"), forward("getattr"), forward("setattr")
    __getitem__, __setitem__ = forward("getitem"), forward("setitem")
    # Python itself refuses an answer that is no iterator, whole number, truth value or text.
    __iter__, __next__ = forward("iter"), forward("next")
    __len__, __bool__ = forward("len"), forward("bool")
    __str__, __repr__ = forward("str"), forward("repr")

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and self.__link.ask("isinstance", value, self) is True

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an object of the program cannot be copied")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def as_builtin(name: str, names: list[Any], arguments: list[Any]) -> BaseException:
    """Return an exception of the first builtin type in `names`; Exception for none.

    A type that takes other arguments than these gives way to the next.
    """
    for each in names:
        if isinstance(each, str) and each in EXCEPTIONS:
            with suppress(TypeError, ValueError):
                error = EXCEPTIONS[each](*arguments)
                if each != name:
                    error.add_note(name)
                return error
    plain = [str(each) for each in arguments if type(each) is not Remote]
    return Exception(f"{name}: {', '.join(plain)}")


def mirror(old: Any, new: Any) -> Any:
    """Make a mutable value hold what the new one holds, and its parts likewise; else the new one.

    Parts keep their identity: `row = grid[0]` sees what happened to the grid.
    """
    match old if type(old) is type(new) else None:
        case list() | deque() | bytearray():
            kept = len(old) == len(new)
            values = [mirror(*pair) for pair in zip(old, new, strict=True)] if kept else list(new)
            old.clear()
            old.extend(values)
        case dict():
            pairs = {key: mirror(old.get(key), value) for key, value in new.items()}
            dict.clear(old)
            dict.update(old, pairs)
        case set():
            old.clear()
            old.update(new)
        case tuple() if len(old) == len(new):
            return tuple(mirror(*pair) for pair in zip(old, new, strict=True))
        case _:
            return new
    return old


class Names(dict[str, Any]):
    """The globals of the tests: what they do not define is the program's.

    A builtin stays the builtin, even if the program has a global of its name: else it could
    redefine `abs` or `sorted`. Only tests that name nothing else of the program, as in
    `assert sum(10, 15) == 6`, mean the program's.
    """

    def __init__(self, link: Link, hiding: set[str]) -> None:
        """Look names up over the link; those in `hiding` hide builtins."""
        super().__init__(__name__="tests", __builtins__=builtins)
        self._link, self._hiding = link, hiding

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") or (hasattr(builtins, name) and name not in self._hiding):
            raise KeyError(name)
        return self._link.ask("fetch", name)


PROGRAM = "program"
# Whose contents may change in a call; what was sent in them is compared with what they hold then.
MUTABLE = "list dict set deque bytearray Counter OrderedDict defaultdict tuple".split()
OPERATIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        operator.call, operator.getitem, operator.setitem, getattr, setattr, iter, next, len, bool,
        str, repr, isinstance,
    )
}  # fmt: skip


def serve_program(channel_file: int) -> None:
    """Be the program: run its text when told to, do what the judge asks, end when it leaves."""
    with socket.socket(fileno=channel_file) as channel, suppress(ConnectionError, Malformed):
        protocol.send(channel, "isolated")
        candidate = ProgramServer()
        while True:
            protocol.send(channel, candidate.answer(protocol.receive(channel)))
    os._exit(0)


class ProgramServer:
    """The program's own module, empty at first, and the objects that the judge has heard of."""

    def __init__(self) -> None:
        self.module = types.ModuleType(PROGRAM)
        self.objects: dict[int, Any] = {}  # by number
        fetch = self.module.__dict__.__getitem__
        self.operations = {**OPERATIONS, "load": self.load, "fetch": fetch}

    def answer(self, request: list[Any]) -> list[Any]:
        """Do one thing and say how it went: `["value", value, changes]` or `["raise", ...]`."""
        operation, arguments, named = request
        try:
            sent = [*arguments, *named.values()]
            # What is no plain data is a handle: the number of an object.
            given = [decode(raw, lambda raw: self.objects[raw[1]]) for raw in sent]
            by_name = dict(zip(named, given[len(arguments) :], strict=True))
            result = self.operations[operation](*given[: len(arguments)], **by_name)
            changes = []
            for at, raw in enumerate(sent):
                if isinstance(raw, list) and raw[0] in MUTABLE:
                    now = encode(given[at], self.handle)
                    if now != raw:
                        changes.append([at, now])
            return ["value", encode(result, self.handle), changes]
        except BaseException as error:  # whatever it is, the judge decides what it means
            # The builtin types that it is, nearest first, and its arguments.
            names = [each.__name__ for each in type(error).__mro__ if each in protocol.TYPE_NAMES]
            try:
                encoded = [encode(each, self.handle) for each in error.args]
            except BaseException:
                encoded = []
            return ["raise", type(error).__name__, names, encoded]

    def load(self, text: str) -> list[str]:
        """Run the program's text; return the names it leaves behind."""
        sys.modules[PROGRAM] = self.module
        exec(compile(text, f"<{PROGRAM}>", "exec"), self.module.__dict__)
        return [str(name) for name in self.module.__dict__]

    def handle(self, value: Any) -> list[Any]:
        """Encode what is not plain data: a module by its name, else a number to call it by."""
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        self.objects[id(value)] = value
        return ["handle", id(value)]
