"""Plain data as JSON and back, type by exact type; nothing else is ever built.

None, bool, str, float and small int are themselves in JSON. All else is a list that starts with
the name of its type: `["list", 1, 2]`, `["dict", key, value, key, value]`, `["int", "0x1ff..."]`.
"""

import builtins
import datetime as times
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from caploc.sandbox.inside.frames import Malformed

# What each side does with what is not plain data.
Other = Callable[[Any], Any]

# Beyond these, numbers travel in hexadecimal: reading long decimal ones takes quadratic time.
SMALL = 2**63

EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
# Types that may travel themselves, as in `isinstance_of(value, int)` or `Counter` by name.
TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range,
        Counter, OrderedDict, defaultdict, deque, Decimal, Fraction, times.date, times.datetime,
        times.time, times.timedelta, *EXCEPTIONS.values(),
    )
} | {"NoneType": type(None)}  # fmt: skip
TYPE_NAMES = {each: name for name, each in TYPES.items()}


def encode(value: Any, other: Other) -> Any:
    """What JSON may hold for a value; `other` answers for what is not plain.

    Raises:
        RecursionError: if it is nested too deeply, or holds itself.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["int", hex(value)]
    if kind in ENCODERS:
        return [kind.__name__, *ENCODERS[kind](value, other)]
    if isinstance(value, type) and value in TYPE_NAMES:
        return ["type", TYPE_NAMES[value]]
    for base, read in BASES:
        if isinstance(value, base):
            return encode(read(value), other)
    return other(value)


def decode(raw: Any, other: Other) -> Any:
    """The value that `encode` was given, in exact types; `other` reads what was not plain.

    Raises:
        Malformed: if it says anything that `encode` would not.
    """
    try:
        return read(raw, other)
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed("a value that is not plain data") from error


def read(raw: Any, other: Other) -> Any:
    """`decode`, with any exception."""
    if not isinstance(raw, list | dict):
        return raw
    if isinstance(raw, dict):
        raise TypeError("JSON objects are not used")
    if raw[0] in DECODERS:
        return DECODERS[raw[0]](raw[1:], other)
    return other(raw)


def encode_all(values: Iterable[Any], other: Other) -> list[Any]:
    """Each value encoded."""
    return [encode(value, other) for value in values]


def encode_pairs(mapping: dict[Any, Any], other: Other) -> list[Any]:
    """Keys and values in turn."""
    return [encode(each, other) for pair in mapping.items() for each in pair]


def read_all(raw: Sequence[Any], other: Other) -> Iterable[Any]:
    """Each value decoded."""
    return (read(each, other) for each in raw)


def read_pairs(raw: Sequence[Any], other: Other) -> dict[Any, Any]:
    """The mapping of keys and values in turn."""
    values = list(read_all(raw, other))
    return dict(zip(values[::2], values[1::2], strict=True))


def encode_default(mapping: defaultdict[Any, Any], other: Other) -> list[Any]:
    """A defaultdict: the name of its factory if that is a plain type, then its pairs."""
    factory = mapping.default_factory
    name = TYPE_NAMES.get(factory) if isinstance(factory, type) else None
    return [name, *encode_pairs(mapping, other)]


def read_default(raw: Sequence[Any], other: Other) -> defaultdict[Any, Any]:
    """A defaultdict whose factory is a plain type or none."""
    factory = None if raw[0] is None else TYPES[raw[0]]
    return defaultdict(factory, read_pairs(raw[1:], other))


def read_counter(raw: Sequence[Any], other: Other) -> "Counter[Any]":
    """A Counter that says exactly what was said, zeros and all."""
    counter: Counter[Any] = Counter()
    dict.update(counter, read_pairs(raw, other))
    return counter


ENCODERS: dict[type, Callable[[Any, Other], Iterable[Any]]] = {
    list: encode_all,
    tuple: encode_all,
    set: encode_all,
    frozenset: encode_all,
    dict: encode_pairs,
    Counter: encode_pairs,
    OrderedDict: encode_pairs,
    defaultdict: encode_default,
    deque: lambda value, other: [value.maxlen, *encode_all(value, other)],
    bytes: lambda value, other: [value.hex()],
    bytearray: lambda value, other: [value.hex()],
    complex: lambda value, other: [value.real, value.imag],
    range: lambda value, other: encode_all((value.start, value.stop, value.step), other),
    Decimal: lambda value, other: [str(value)],
    Fraction: lambda value, other: encode_all(value.as_integer_ratio(), other),
    times.date: lambda value, other: [value.isoformat()],
    times.datetime: lambda value, other: [value.isoformat()],
    times.time: lambda value, other: [value.isoformat()],
    times.timedelta: lambda value, other: [value.days, value.seconds, value.microseconds],
}
DECODERS: dict[str, Callable[[Sequence[Any], Other], Any]] = {
    "int": lambda raw, other: int(only(raw), 16),
    "type": lambda raw, other: TYPES[only(raw)],
    "list": lambda raw, other: list(read_all(raw, other)),
    "tuple": lambda raw, other: tuple(read_all(raw, other)),
    "set": lambda raw, other: set(read_all(raw, other)),
    "frozenset": lambda raw, other: frozenset(read_all(raw, other)),
    "dict": read_pairs,
    "Counter": read_counter,
    "OrderedDict": lambda raw, other: OrderedDict(read_pairs(raw, other)),
    "defaultdict": read_default,
    "deque": lambda raw, other: deque(read_all(raw[1:], other), raw[0]),
    "bytes": lambda raw, other: bytes.fromhex(only(raw)),
    "bytearray": lambda raw, other: bytearray.fromhex(only(raw)),
    "complex": lambda raw, other: complex(*raw),
    "range": lambda raw, other: range(*read_all(raw, other)),
    "Decimal": lambda raw, other: Decimal(only(raw)),
    # Whole numbers only: Fraction("1e999999999") would fill the memory.
    "Fraction": lambda raw, other: Fraction(*map(operator.index, read_all(raw, other))),
    "date": lambda raw, other: times.date.fromisoformat(only(raw)),
    "datetime": lambda raw, other: times.datetime.fromisoformat(only(raw)),
    "time": lambda raw, other: times.time.fromisoformat(only(raw)),
    "timedelta": lambda raw, other: times.timedelta(*raw),
}
# Values of a type derived from a plain one count as that one. What they say is read with the
# plain type's own methods, so that an honest namedtuple or IntEnum is what its owner means.
BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (list, lambda value: list(list.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (dict, lambda value: dict(dict.items(value))),
)


def only(raw: Sequence[Any]) -> str:
    """The one text of an encoded value."""
    (text,) = raw
    if type(text) is not str:
        raise TypeError("a text was expected")
    return text
