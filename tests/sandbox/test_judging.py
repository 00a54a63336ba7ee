"""What tests may ask of a program, and which verdict comes of it."""

import pytest

# A program, and below the line its tests.
NODE = """
class Node:
    def __init__(self, value):
        self.value, self.left, self.items = value, None, [1]
    def total(self):
        return self.value + (self.left.total() if self.left else 0)
    def __len__(self):
        return 7
    def __getitem__(self, key):
        return key * 2
    def __str__(self):
        return f"<{self.value}>"
def depth(node):
    return 0 if node is None else 1 + depth(node.left)
root = Node(5)
"""
PASSING = {
    "a check of the entry point": """
def add(a, b):
    return a + b
---
def check(candidate):
    assert candidate(1, b=2) == 3

check(add)
""",
    "helpers of the program": """
def poly(xs, x):
    return sum(c * x**i for i, c in enumerate(xs))
def zero(xs):
    return -xs[0] / xs[1]
---
import math
def check(candidate):
    assert math.fabs(poly([1, 2], candidate([1, 2]))) < 1e-9
check(zero)
""",
    "modules that the program imported": """
import math
half = 0.5
---
assert math.sqrt(0.25) == half
""",
    "types that the program imported": """
from collections import Counter
def count(word): return Counter(word)
---
assert count('aab') == Counter(a=2, b=1) == {'a': 2, 'b': 1} and type(count('')) is Counter
""",
    "a function with a builtin's name": """
def sum(a, b):
    return 6
---
assert sum(10, 15) == 6
""",
    "data of the program": """
table = {'a': [1, (2, 3)]}
---
assert table['a'][1] == (2, 3)
""",
    "data that changes": """
count = 0
def bump():
    global count
    count += 1
---
bump(); bump()
assert count == 2
""",
    "a name that appears later": """
def make():
    global late
    late = 3
---
make()
assert late == 3
""",
    "objects": NODE
    + """
---
root.left = Node(2)
assert depth(root) == 2 and root.total() == 7 and root.left.value == 2
assert isinstance(root.left, Node) and not isinstance(3, Node)
assert root.left is root.left
assert root != 5 and root == root and root != Node(5) and [root] == [root]
assert len(root) == 7 and root[4] == 8 and str(root) == '<5>' and bool(root)
""",
    "objects inside plain data": NODE
    + """
def values(nodes): return [node.value for node in nodes['all']]
---
assert values({'all': (Node(1), root)}) == [1, 5]
""",
    "builtin exceptions": """
def f(x):
    raise ValueError('odd', x)
---
try:
    f(3)
except ValueError as error:
    assert error.args == ('odd', 3)
else:
    assert 0
""",
    "exceptions derived from them": """
class Odd(KeyError): pass
def f(x):
    raise Odd(x)
---
try:
    f(3)
except LookupError:
    pass
else:
    assert 0
""",
    "exceptions that take more than a text": """
def f(): return b'\\xff'.decode()
---
try:
    f()
except UnicodeDecodeError as error:
    assert error.start == 0
else:
    assert 0
""",
    "generators": """
def squares():
    n = 0
    while True:
        yield n * n
        n += 1
---
import itertools
assert list(itertools.islice(squares(), 4)) == [0, 1, 4, 9]
""",
    "maps and zips": """
def f(xs): return map(str, xs)
def g(xs): return zip(xs, xs)
---
assert list(f([1, 2])) == ['1', '2'] and dict(g([1])) == {1: 1} and next(f([7])) == '7'
assert 2 in g([1]) or (1, 1) in g([1])
""",
    "functions that make functions": """
def adder(n):
    return lambda x: x + n
---
assert adder(2)(3) == 5
""",
    "arguments changed in place": """
def f(xs, table, *, seen):
    xs.append(4); xs[0][0] = 'x'; table['k'] = 1; seen |= {9}
---
xs, table, seen = [[1], 2], {}, {8}
row = xs[0]
assert f(xs, table, seen=seen) is None
assert xs == [['x'], 2, 4] and table == {'k': 1} and seen == {8, 9}
""",
    "parts of arguments keep their identity": """
def f(grid):
    grid[1][0] = 5
---
grid = [[1], [2]]
row = grid[1]
f(grid)
assert row == [5] and grid[1] is row
""",
    "namedtuples and enums": """
from collections import namedtuple
from enum import IntEnum
class E(IntEnum):
    A = 1
P = namedtuple('P', 'x y')
def f(): return P(1, E.A)
---
assert f() == (1, 1)
""",
    "dataclasses": """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class P:
    x: int
def f(): return P(3)
---
assert f().x == 3
""",
    "long numbers, infinities and odd text": """
def f(x): return x
---
for x in (3 ** 20000, float('inf'), -0.0, '\\ud800', b'\\0', 1j, None, range(3)):
    assert f(x) == x and type(f(x)) is type(x)
""",
    "no main": """
def f(): return 1
if __name__ == '__main__':
    print(input())
---
assert f() == 1
""",
    "printing": """
print('hello')
def f():
    print('x')
    return 1
---
print('y')
assert f() == 1
""",
    "a temporary directory": """
import os
def f():
    open('a.txt', 'w').write('hi')
    return open('a.txt').read(), os.listdir()
---
assert f() == ('hi', ['a.txt'])
import os
assert os.listdir() == []
""",
    "threads": """
from concurrent.futures import ThreadPoolExecutor
def f(): return list(ThreadPoolExecutor(2).map(abs, [-1, 2]))
---
assert f() == [1, 2]
""",
    "asynchronous code": """
import asyncio
async def g():
    await asyncio.sleep(0)
    return 3
def f(): return asyncio.run(g())
---
assert f() == 3
""",
    "nothing at all": """
---

""",
}


def parted(case):
    """A program and its tests."""
    text, _, tests = case.partition("---\n")
    return text, tests


@pytest.mark.parametrize("case", PASSING.values(), ids=PASSING)
def test_a_right_program_passes(default, case):
    verdict = default.verdict(*parted(case))
    assert verdict.passed and (verdict.reason, verdict.detail) == ("passed", ""), verdict


# How it ends, what is said, and the program with its tests.
FAILING = {
    "a wrong answer": (
        "failed",
        "assert f(1) == 2: AssertionError",
        """
def f(x): return x
---
y = 1
assert f(1) == 2
""",
    ),
    "a message": (
        "failed",
        "assert f(1) == 2, 'not two': AssertionError: not two",
        """
def f(x): return x
---
assert f(1) == 2, 'not two'
""",
    ),
    "nearly the type": (
        "failed",
        "assert f() ==",
        """
def f(): return [1]
---
assert f() == (1,)
""",
    ),
    "an iterator instead of a list": (
        "failed",
        "assert f()",
        """
def f(): return map(str, [1])
---
assert f() == ['1']
""",
    ),
    "a missing function": (
        "error",
        "name 'f' is not defined",
        """
def g(x): return x
---
assert f(1) == 1
""",
    ),
    "an exception": (
        "error",
        "ZeroDivisionError: division by zero",
        """
def f(x): return 1 / 0
---
assert f(1) == 1
""",
    ),
    "an exception of its own": (
        "error",
        "Odd: no",
        """
class Odd(Exception): pass
def f(x): raise Odd('no')
---
f(1)
""",
    ),
    "an assertion of its own": (
        "error",
        "AssertionError: mine",
        """
def f(x): assert False, 'mine'
---
f(1)
""",
    ),
    "no Python": (
        "error",
        "SyntaxError",
        """
def f(x: return
---
f(1)
""",
    ),
    "a null byte": (
        "error",
        "null bytes",
        """
x = 1\0
---

""",
    ),
    "half a character": (
        "error",
        "UnicodeEncodeError",
        """
x = '\ud800'
---

""",
    ),
    "deeply nested": (
        "error",
        "",
        "(" * 10_000,
    ),
    "tests that cannot be read": (
        "error",
        "the tests cannot be read",
        """
---
assert (
""",
    ),
    "tests that end themselves": (
        "error",
        "SystemExit: 0",
        """
---
raise SystemExit(0)
""",
    ),
    "tests that vanish": (
        "error",
        "the test code ended itself",
        """
---
import os
os._exit(0)
""",
    ),
    "tests that hand over functions": (
        "refused",
        "a function, not plain data",
        """
def f(g): return g(1)
---
assert f(lambda x: x) == 1
""",
    ),
    "endless recursion": (
        "error",
        "RecursionError",
        """
def f(x): return f(x)
---
f(1)
""",
    ),
    "reading from nobody": (
        "error",
        "EOFError",
        """
x = input()
---

""",
    ),
    "modules that are not there": (
        "error",
        "No module named 'numpy'",
        """
import numpy
---

""",
    ),
    "something that holds itself": (
        "error",
        "RecursionError",
        """
def f():
    x = []
    x.append(x)
    return x
---
assert f() == []
""",
    ),
    "a crash": (
        "killed",
        "the program was ended by SIGSEGV",
        """
import ctypes
ctypes.string_at(0)
---

""",
    ),
    "objects that cannot be copied": (
        "error",
        "cannot be copied",
        """
class A: pass
a = A()
---
import copy
copy.deepcopy(a)
""",
    ),
    "ordering objects": (
        "error",
        "TypeError",
        """
class A:
    def __lt__(self, other): return True
a = A()
---
assert a < 3
""",
    ),
}


@pytest.mark.parametrize("reason, said, case", FAILING.values(), ids=FAILING)
def test_a_wrong_program_does_not(default, reason, said, case):
    verdict = default.verdict(*parted(case))
    assert not verdict.passed
    assert verdict.reason == reason
    assert said in verdict.detail and len(verdict.detail) <= 200 and verdict.detail.isprintable()


def test_details_are_harmless_on_a_terminal(default):
    verdict = default.verdict("raise ValueError('\\x1b[31mred\\n' + 'x' * 999)", "")
    assert verdict.detail.startswith("ValueError: \N{REPLACEMENT CHARACTER}[31mred x")
    assert len(verdict.detail) == 200


def test_what_is_too_long_is_refused(default):
    assert default.verdict("#" * (2**21 + 1)).reason == "refused"
    assert default.verdict("", "#" * (2**21 + 1)).reason == "refused"
    assert default.verdict("#" * 2**21, "#\n" * 2**20).passed


def test_verdicts_do_not_depend_on_the_order_of_sets_or_on_chance(default):
    text = "import random\ndef f(x): return list({'a', 'b', 'c', 'd', x}), random.random(), hash(x)"
    first = default.verdict(text, "assert f('e') == 0, repr(f('e'))").detail
    from_another = default.verdict(text, "assert f('e')  == 0, repr(f('e'))").detail
    assert first.split("AssertionError")[1] == from_another.split("AssertionError")[1] != ""
