"""The judge's hold on the program, against one that lies."""

import copy
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.sandbox import protocol
from caploc.sandbox.judge import Link, Remote, judge_program, mirror

PARTS = st.recursive(
    st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(0, 3), inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 3))
    ),
)


@given(PARTS, PARTS)
def test_a_mirror_shows_the_new_value_and_stays_the_old_object(old, new):
    expected = copy.deepcopy(new)
    parts = [old] if isinstance(old, list) else []
    shown = mirror(old, new)
    assert shown == expected
    if type(old) is type(new) and isinstance(old, list | dict | set):
        assert shown is old
    for part in parts:
        if type(new) is list:
            assert part == expected


class Liar:
    """Answers a judge with whatever was prepared, one reply a request."""

    def __init__(self, *replies):
        self.heard = []
        self.ours, self.theirs = socket.socketpair()
        self.thread = threading.Thread(target=self.answer, args=(replies,))
        self.thread.start()

    def answer(self, replies):
        with self.theirs, suppress(ConnectionError):
            for reply in replies:
                self.heard.append(protocol.receive(self.theirs))
                if isinstance(reply, bytes):
                    self.theirs.sendall(reply)
                else:
                    protocol.send(self.theirs, reply)

    def judge(self, tests):
        with self.ours:
            verdict = judge_program("the text", tests, Link(self.ours))
        self.thread.join()
        return verdict


LOADED = ["value", ["list", "f", "abs", "check", "sorted", "list"], []]
FUNCTION = ["value", ["handle", 0], []]


@pytest.mark.parametrize(
    "reply",
    [
        None, True, [], ["value"], ["value", 1], ["value", 1, {}], ["value", 1, [[5, 2]]],
        ["value", 1, [["0", 2]]], ["value", 1, [[-1, 2]]], ["value", ["handle", -1], []],
        ["value", ["handle", "0"], []], ["value", ["module", "os.path"], []],
        ["value", ["module", "__main__"], []], ["value", ["module", "numpy"], []],
        ["value", ["pickle", "x"], []], ["raise"], ["raise", "A", "B", []], ["raise", 1, [], []],
        ["raise", "A", [], [["x"]]], {"reason": "passed", "detail": ""}, "passed",
        b"\xff\xff\xff\xff", b"\0\0\0\1[", b"\0\0\0\2\xff\xff",
    ],
)  # fmt: skip
def test_a_malformed_reply_is_refused_even_if_the_tests_go_on(reply):
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert Liar(LOADED, FUNCTION, reply).judge(tests)[0] == "refused"
    assert Liar(reply).judge(tests)[0] == "refused"


def test_an_end_is_noticed_even_if_the_tests_go_on():
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert Liar(LOADED, FUNCTION).judge(tests)[0] == "lost"
    assert Liar(LOADED).judge(tests)[0] == "lost"
    assert Liar().judge(tests)[0] == "lost"


@pytest.mark.parametrize(
    "names",
    [
        ["SystemExit"], ["KeyboardInterrupt"], ["GeneratorExit"], ["StopIteration"],
        ["AssertionError"], ["eval"], ["int"], [1, None], [], ["UnicodeDecodeError", "ValueError"],
        ["ExceptionGroup"],
    ],
)  # fmt: skip
def test_no_exception_is_a_pass(names):
    raised = ["raise", "Odd", names, ["text", ["handle", 3]]]
    assert Liar(LOADED, FUNCTION, raised).judge("f(1)")[0] in ("error", "lost")
    assert Liar(raised).judge("f(1)")[0] in ("error", "lost")


def test_a_handle_equals_nothing_but_itself():
    with socket.socket() as unused:
        link = Link(unused)
    one, same, other = (link.receive(["handle", key]) for key in (0, 0, 1))
    assert one is same and one == same and one != other
    for plain in (None, 0, True, "", [], one.__class__):
        assert one != plain and plain != one and [one] != [plain]
    assert type(one) is Remote and len({one, same, other}) == 2


def test_the_program_learns_arguments_and_no_expectations():
    liar = Liar(LOADED, FUNCTION, ["value", 5, []])
    assert liar.judge("secret = 42\nassert f([1, 'a']) == secret == 42")[0] == "failed"
    heard = [["load", ["the text"], {}], ["fetch", ["f"], {}]]
    assert liar.heard == [*heard, ["call", [["handle", 0], ["list", 1, "a"]], {}]]


def test_builtins_of_the_tests_are_not_the_programs():
    liar = Liar(LOADED, FUNCTION, ["value", 0, []])
    tests = "def check(it):\n    assert abs(it(1) - 2) < 1e-6 or sorted([2, 1]) == 0\ncheck(f)"
    assert liar.judge(tests)[0] == "failed"
    assert [request[0] for request in liar.heard] == ["load", "fetch", "call"]
