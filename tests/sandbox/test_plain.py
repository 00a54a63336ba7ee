"""What travels between program and judge: plain data, whole, and nothing but plain data."""

import datetime as times
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.sandbox import protocol


def refuse(value):
    raise protocol.Malformed(f"{value!r} is not plain")


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=st.just(times.UTC) | st.none())
    | st.times()
    | st.timedeltas()
    | st.sampled_from([int, str, dict, Counter, ValueError, type(None)])
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text()) | st.frozensets(st.binary())
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.dictionaries(KEYS, inner).map(lambda pairs: defaultdict(list, pairs))
        | st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 5))
        | st.sets(KEYS)
        | st.frozensets(KEYS)
        | st.lists(KEYS).map(Counter)
        | st.binary().map(bytearray)
    ),
    max_leaves=12,
)


def travelled(value):
    return protocol.decode(json.loads(json.dumps(protocol.encode(value, refuse))), refuse)


def exactly_equal(left, right):
    """Equal, with equal types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return exactly_equal(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple | deque):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(exactly_equal(*pair) for pair in pairs)
    return left == right


@given(VALUES)
def test_plain_data_arrives_as_it_left(value):
    assert exactly_equal(travelled(value), value)


def test_attributes_that_equality_does_not_see_arrive_too():
    assert travelled(deque([1], 3)).maxlen == 3
    assert travelled(defaultdict(int, {1: 2}))["new"] == 0
    assert travelled(defaultdict(lambda: 1)).default_factory is None
    assert math.copysign(1, travelled(-0.0)) == -1
    assert math.isnan(travelled(math.nan)) and travelled(math.inf) == math.inf
    assert travelled(Counter({"a": 0, "b": -2})) == {"a": 0, "b": -2}
    assert "a" in travelled(Counter({"a": 0}))
    assert travelled(7 ** (10**5)) == 7 ** (10**5)  # more digits than Python turns into text


def test_types_derived_from_plain_ones_arrive_as_those():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Word(str):
        __slots__ = ()

    class Level(IntEnum):
        LOW = 1

    Point = namedtuple("Point", "x y")
    for value, expected in [
        (Liar(3), 3), (Word("a"), "a"), (Level.LOW, 1), (Point(1, [2]), (1, [2])),
        (type("Listed", (list,), {})([1]), [1]), (type("Frozen", (frozenset,), {})([1]), {1}),
    ]:  # fmt: skip
        arrived = travelled(value)
        assert arrived == expected
        assert type(arrived) in (int, str, tuple, list, frozenset)


def test_what_holds_itself_is_refused_and_does_not_hang():
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        protocol.encode(endless, refuse)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*protocol.BUILDERS, *protocol.TYPES, "handle", "module", "__class__"])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda tag, each: [tag, each], st.sampled_from(list(protocol.BUILDERS)), inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=10,
)  # fmt: skip
EXACT = {type(None), bool, int, float, str, complex, bytes, bytearray, range, Decimal, Fraction,
         times.date, times.datetime, times.time, times.timedelta, type}  # fmt: skip


def all_exact(value):
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if type(value) in (list, tuple, set, frozenset, deque):
        return all(map(all_exact, value))
    return type(value) in EXACT


@given(JSON)
def test_whatever_is_sent_becomes_exact_plain_data_or_nothing(raw):
    try:
        value = protocol.decode(raw, refuse)
    except protocol.Malformed:
        return
    assert all_exact(value)


@pytest.mark.parametrize(
    "raw",
    [
        [], ["list", {}], ["dict", 1], ["dict", ["list"], 1], ["set", ["list", 1]], ["int", 5],
        ["int", "0x1", 3], ["type", "object"], ["type", "eval"], ["type"], ["range", "a"],
        ["range", 1, 2, 0], ["Fraction", 1, 0], ["Fraction", "1e999999999", 1], ["bytes", "xyz"],
        ["Decimal", "one"], ["Decimal", 1.5], ["date", "2020-13-01"], ["timedelta", 1e99, 0, 0],
        ["deque", "x"], ["defaultdict", "eval"], ["complex", "a", "b"], ["unknown", 1], [["list"]],
        {"list": 1}, ["list", ["list", ["unknown"]]],
    ],
)  # fmt: skip
def test_what_no_honest_side_would_send_is_malformed(raw):
    with pytest.raises(protocol.Malformed):
        protocol.decode(raw, refuse)


def test_deep_nesting_is_malformed():
    raw = 1
    for _ in range(100_000):
        raw = ["list", raw]
    with pytest.raises(protocol.Malformed):
        protocol.decode(raw, refuse)
    while isinstance(raw, list):  # taken apart by hand: the garbage collector recurses
        raw = raw[1]
