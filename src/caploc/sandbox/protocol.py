"""What driver, worker, judge and program tell each other, and the limits they are given.

A message is four bytes of length, then JSON. In it None, bool, str, float and small int are
themselves; all else is a list that starts with the name of its type: `["list", 1, 2]`,
`["dict", key, value, key, value]`, `["int", "0x1ff..."]`. Nothing but these types, exactly, is
ever built from one.
"""

import builtins
import datetime as times
import json
import operator
import os
import socket
import subprocess
import tomllib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, Literal

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use; its test code may use as much once more. Each is positive."""

    cpu_seconds: float = 10.0  # processor time, rounded up to whole seconds
    wall_seconds: float = 30.0  # time by the clock, program and tests together
    memory_bytes: int = 512 * MIB  # address space; below 64 MiB Python itself does not start
    output_bytes: int = 4 * MIB  # what program and tests may print, together
    processes: int = 32  # processes and threads at once
    file_bytes: int = 16 * MIB  # size of its temporary directory, and of any one file in it


# What stands around a program beside the system-call filter and the limits, strongest first:
# namespaces (users, processes, network, files, messages and host name of its own), the kernel's own
# limits on paths, or nothing, so that the filter lets no file be written.
Profile = Literal["namespaces", "landlock", "filter"]
PROFILES: tuple[Profile, ...] = ("namespaces", "landlock", "filter")


# Tables of system calls, and what arguments they may have.
CALLS: dict[str, dict[str, Any]]
CALLS = tomllib.loads(Path(__file__).with_name("calls.toml").read_text("utf-8"))


def remove_folder(folder: str) -> None:
    """Remove a program's temporary directory, whatever it left there and however deep; or none."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)


HEADER = 4  # bytes, which hold a message's length
# The most that one message may hold. What is larger is refused before it is read.
LONGEST = 16 * MIB
CHUNK = 1 << 16  # of what is read at once


class Malformed(Exception):
    """What came, or is to be sent, is no plain data; the text says why."""


def send(connection: socket.socket, message: Any) -> None:
    """Send one message; raises OSError if the other side is gone."""
    body = json.dumps(message, separators=(",", ":")).encode()
    connection.sendall(len(body).to_bytes(HEADER) + body)


def receive(connection: socket.socket) -> Any:
    """Wait for one message; raises ConnectionError at the end, Malformed if what came is none."""
    length = int.from_bytes(receive_bytes(connection, HEADER))
    if length > LONGEST:
        raise Malformed(f"a message of {length} bytes; {LONGEST} are allowed")
    try:
        return json.loads(receive_bytes(connection, length))
    except (ValueError, RecursionError) as error:
        raise Malformed("a message that is not JSON") from error


def receive_bytes(connection: socket.socket, count: int) -> bytearray:
    """Read so many bytes; raises ConnectionError if the other side closes before."""
    body = bytearray()
    while len(body) < count:
        part = connection.recv(min(count - len(body), CHUNK))
        if not part:
            raise ConnectionError
        body += part
    return body


# Beyond these, numbers travel in hexadecimal: reading long decimal ones takes quadratic time.
SMALL = 2**63
EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
# Types that may travel themselves, as in `isinstance(value, int)` or `Counter` by name.
TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range,
        Counter, OrderedDict, defaultdict, deque, Decimal, Fraction, times.date, times.datetime,
        times.time, times.timedelta, *EXCEPTIONS.values(),
    )
} | {"NoneType": type(None)}  # fmt: skip
TYPE_NAMES = {each: name for name, each in TYPES.items()}


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return what JSON may hold for a value; `other` answers for what is not plain.

    A value of a type derived from a plain one counts as that one, and what it says is read with the
    plain type's own methods, so that an honest namedtuple or IntEnum is what its owner means.
    Raises RecursionError for what is nested too deeply, or holds itself.
    """
    if value is None or type(value) is bool:
        return value
    for base in SCALARS:
        if isinstance(value, base):
            value = getattr(base, f"__{base.__name__}__")(value)
            return value if base is not int or abs(value) < SMALL else ["int", hex(value)]
    if isinstance(value, type) and value in TYPE_NAMES:
        return ["type", TYPE_NAMES[value]]
    for form in [type(value)] if type(value) in FORMS else BASES:
        if isinstance(value, form):
            return [form.__name__, *(encode(part, other) for part in FORMS[form][0](value))]
    return other(value)


def decode(raw: Any, other: Callable[[Any], Any]) -> Any:
    """Return the value that `encode` was given; `other` reads what was not plain.

    Raises Malformed for anything that `encode` would not say.
    """
    if isinstance(raw, dict):
        raise Malformed("JSON objects are not used")
    if not isinstance(raw, list):
        return raw
    try:
        name, *parts = raw
        if name not in BUILDERS:
            return other(raw)
        return BUILDERS[name](*(decode(part, other) for part in parts))
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed("a value that is not plain data") from error


def pair(*parts: Any) -> dict[Any, Any]:
    """Return the mapping of keys and values in turn."""
    return dict(zip(parts[::2], parts[1::2], strict=True))


def flatten(mapping: dict[Any, Any]) -> Iterable[Any]:
    """Return keys and values in turn."""
    return chain.from_iterable(dict.items(mapping))


def build_default(factory: Any, *parts: Any) -> defaultdict[Any, Any]:
    """Build a defaultdict; raises TypeError if its factory is neither a plain type nor None."""
    if factory is not None and factory not in TYPE_NAMES:
        raise TypeError("a factory that is no plain type")
    return defaultdict(factory, pair(*parts))


def take_default_apart(mapping: defaultdict[Any, Any]) -> Iterable[Any]:
    """Return the factory if that is a plain type, else None; then keys and values in turn."""
    factory = mapping.default_factory
    plain = isinstance(factory, type) and factory in TYPE_NAMES
    return factory if plain else None, *flatten(mapping)


# Type → what takes a value apart into plain parts, and what builds one of such parts, which a liar
# may have chosen: where they do not fit it raises.
FORMS: dict[type, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    list: (list.__iter__, lambda *parts: list(parts)),
    tuple: (tuple.__iter__, lambda *parts: parts),
    set: (set.__iter__, lambda *parts: set(parts)),
    frozenset: (frozenset.__iter__, lambda *parts: frozenset(parts)),
    dict: (flatten, pair),
    Counter: (flatten, lambda *parts: Counter(pair(*parts))),
    OrderedDict: (flatten, lambda *parts: OrderedDict(pair(*parts))),
    defaultdict: (take_default_apart, build_default),
    deque: (lambda value: (value.maxlen, *value), lambda most, *parts: deque(parts, most)),
    bytes: (lambda value: [bytes.hex(value)], bytes.fromhex),
    bytearray: (lambda value: [value.hex()], bytearray.fromhex),
    complex: (lambda value: (complex.real.__get__(value), complex.imag.__get__(value)), complex),
    range: (lambda value: (value.start, value.stop, value.step), range),
    # A text only, and whole numbers only: Fraction("1e999999999") would fill the memory.
    Decimal: (lambda value: [str(value)], lambda text: Decimal(str.__str__(text))),
    Fraction: (Fraction.as_integer_ratio, lambda *parts: Fraction(*map(operator.index, parts))),
    times.date: (lambda value: [value.isoformat()], times.date.fromisoformat),
    times.datetime: (lambda value: [value.isoformat()], times.datetime.fromisoformat),
    times.time: (lambda value: [value.isoformat()], times.time.fromisoformat),
    times.timedelta: (lambda it: (it.days, it.seconds, it.microseconds), times.timedelta),
}
BUILDERS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "type": lambda name: TYPES[name],
    **{kind.__name__: build for kind, (_, build) in FORMS.items()},
}
# Scalars that JSON knows, and plain types that others are derived from.
SCALARS = (int, float, str)
BASES = (complex, bytes, tuple, list, set, frozenset, dict)
