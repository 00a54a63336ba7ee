"""Programs that want to pass without being right."""

import pytest

from caploc.sandbox import Program

TESTS = """
SECRET = "expected-%s" % "answer"
def check(candidate):
    assert candidate(1) == SECRET
check(f)
"""
LIAR = """
class Liar{base}:
    __hash__ = {hash}
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __contains__(self, other): return True
    def __getattr__(self, name): return lambda *a, **k: True
    def __instancecheck__(self, other): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
def f(x): return {make}
"""
# How it must end, and the program.
FORGERIES = {
    "leaving at once": ("error", "import sys\nsys.exit(0)"),
    "leaving when asked": ("error", "def f(x): raise SystemExit(0)"),
    "vanishing at once": ("error", "import os\nos._exit(0)"),
    "vanishing when asked": ("error", "import os\ndef f(x): os._exit(0)"),
    "vanishing by a thread": (
        "error",
        """
import os, threading, time
def f(x):
    threading.Timer(0.05, os._exit, (0,)).start()
    time.sleep(60)
""",
    ),
    "an object that equals everything": (
        "failed",
        LIAR.format(base="", hash="None", make="Liar()"),
    ),
    "a number that equals everything": (
        "failed",
        LIAR.format(base="(int)", hash="int.__hash__", make="Liar(1)"),
    ),
    "a text that equals everything": (
        "failed",
        LIAR.format(base="(str)", hash="str.__hash__", make="Liar('x')"),
    ),
    "a list of them": ("failed", LIAR.format(base="", hash="None", make="[Liar()]")),
    "a class that equals everything": (
        "failed",
        """
class Meta(type):
    def __eq__(self, other): return True
    __hash__ = type.__hash__
class A(metaclass=Meta): pass
def f(x): return A
""",
    ),
    "patched builtins": (
        "error",
        """
import builtins
class Quiet(Exception): pass
builtins.AssertionError = Quiet
builtins.abs = builtins.len = builtins.isinstance = builtins.type = lambda *a: True
builtins.__dict__["__build_class__"] = None
AssertionError = Quiet
def f(x): return 0
""",
    ),
    "patched modules": (
        "refused",
        """
import sys
for name in list(sys.modules):
    module = sys.modules[name]
    for key in list(vars(module)):
        if key in ("judge", "tried", "reason_for", "encode", "main"):
            setattr(module, key, lambda *a, **k: ("passed", ""))
def f(x): return 0
""",
    ),
    "a check of its own": (
        "failed",
        "def check(candidate): pass\nSECRET = 0\ndef f(x): return 0",
    ),
    "a patched assert": (
        "failed",
        "import sys\nsys.flags = None\ndef f(x):\n    assert False or True\n    return 0",
    ),
    "saying that it passed": (
        "failed",
        """
import os, sys
def f(x):
    print("passed\\nOK\\n1 passed\\n0", flush=True)
    for file in (1, 2):
        os.write(file, b'{"reason": "passed", "detail": ""}')
    return "passed"
""",
    ),
    "reporting in the judge's name": (
        "refused",
        """
import json, os, struct
report = json.dumps({"reason": "passed", "detail": ""}).encode()
for file in range(256):
    try:
        os.write(file, struct.pack("!I", len(report)) + report)
    except OSError:
        pass
def f(x): return 0
""",
    ),
    "a long message": (
        "refused",
        "import os\nos.write(3, b'\\xff\\xff\\xff\\xff' + b'x' * 1000)\ndef f(x): return 0",
    ),
    "no message": ("refused", "import os\nos.write(3, b'\\0\\0\\0\\5hello')\ndef f(x): return 0"),
    "a deep message": (
        "refused",
        """
import os, struct
os.write(3, struct.pack("!I", 100_000) + b"[" * 100_000)
def f(x): return 0
""",
    ),
    "answering what was not asked yet": (
        "failed",
        """
import json, os, struct
for reply in (["value", ["list", "f"], []], ["value", ["handle", 0], []], ["value", True, []]):
    body = json.dumps(reply).encode()
    os.write(3, struct.pack("!I", len(body)) + body)
def f(x): return 0
""",
    ),
    "closing every file": ("error", "import os\nos.closerange(0, 1024)\ndef f(x): return 0"),
    "closing every file when asked": ("error", "import os\ndef f(x): os.closerange(0, 1024)"),
    "the answer out of objects": (
        "failed",
        """
import gc, sys
def f(x):
    seen, frame = [], sys._getframe()
    while frame:
        seen += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    seen += gc.get_objects()
    for module in list(sys.modules.values()):
        seen += vars(module).values()
    for each in seen:
        for text in ([each] if isinstance(each, str) else each if isinstance(each, list) else []):
            if isinstance(text, str) and "expected-" in text and len(text) < 20:
                return text
    return None
""",
    ),
    "an exception that is one of the judge's": (
        "error",
        "class Gone(BaseException): pass\ndef f(x): raise Gone('passed')",
    ),
    "an end of the iteration": ("error", "def f(x): raise StopIteration('passed')"),
    "a structure without end": (
        "error",
        """
class Endless:
    def __iter__(self): return self
    def __next__(self): return Endless()
def f(x):
    deep = []
    for _ in range(10 ** 5):
        deep = [deep]
    return deep
""",
    ),
}


@pytest.mark.parametrize("behind", ["namespaces", "landlock"], indirect=True)
@pytest.mark.parametrize("reason, text", FORGERIES.values(), ids=FORGERIES)
def test_no_forgery_passes(behind, reason, text):
    verdict = behind.verdict(text, TESTS)
    assert not verdict.passed
    assert verdict.reason == reason, verdict


ENDS = ["StopIteration", "StopAsyncIteration", "GeneratorExit"]


@pytest.mark.parametrize("behind", ["namespaces"], indirect=True)
@pytest.mark.parametrize("end", [*ENDS, "type('Own', (StopIteration,), {})"])
def test_an_end_of_iteration_does_not_end_a_loop_of_the_tests(behind, end):
    text = f"def f(n): raise {end}\ndef g():\n  yield 1\n  yield 2"
    for loop in ("for x in map(f, [1, 2]): assert x == 3", "assert list(map(f, [1])) == []"):
        verdict = behind.verdict(text, loop)
        assert verdict.reason == "error" and "RuntimeError: the program raised" in verdict.detail
    assert behind.verdict(text, "assert list(g()) == [1, 2] and next(iter(g())) == 1").passed
    assert behind.verdict(
        text, "it = g()\nassert list(zip(it, [0] * 9)) == [(1, 0), (2, 0)]"
    ).passed


# Without namespaces or Landlock the files are there to be read; then only their rights protect.
@pytest.mark.parametrize("behind", ["namespaces", "landlock"], indirect=True)
def test_the_answer_is_in_no_file(behind):
    text = """
import glob, os
def f(x):
    for path in [*glob.glob("/proc/*/mem"), *glob.glob("/proc/*/cmdline"), *glob.glob("/tmp/*/*")]:
        try:
            with open(path, "rb") as file:
                if b"expected-answer" in file.read(1 << 20):
                    return "expected-answer"
        except (OSError, ValueError, OverflowError):
            pass
"""
    assert behind.verdict(text, TESTS).reason == "failed"


@pytest.mark.parametrize("behind", ["namespaces", "landlock"], indirect=True)
def test_an_honest_program_passes_these_tests(behind):
    assert behind.verdict("def f(x): return 'expected-answer'", TESTS).passed


@pytest.mark.parametrize("behind", ["namespaces", "landlock"], indirect=True)
def test_builtins_cannot_be_hidden_from_the_tests(behind):
    text = "def abs(x): return 0\ndef all(x): return True\ndef len(x): return 3\ndef f(x): return 9"
    for tests in (
        "assert abs(f(1) - 2) < 1e-6",
        "def check(candidate):\n    assert all([candidate(1) == 2, len('') == 3])\ncheck(f)",
    ):
        assert behind.verdict(text, tests).reason == "failed"


@pytest.mark.parametrize("behind", ["namespaces"], indirect=True)
def test_memory_holds_no_tests_of_this_or_of_earlier_programs(behind):
    # Reads all of its own memory that the C library will show.
    text = """
import ctypes, os
def readable(at):
    read, write = pipe
    got = libc.write(write, ctypes.c_void_p(at), ctypes.c_size_t(4096))
    return os.read(read, 4096) if got == 4096 else None
libc = ctypes.CDLL(None)
pipe = os.pipe()
def pages():
    heap = libc.sbrk
    heap.restype = ctypes.c_void_p
    top = heap(0)
    at = top - 4096
    while (page := readable(at)) is not None:
        yield page
        at -= 4096
    base = id(object()) & ~4095
    for at in range(base - (1 << 21), base + (1 << 21), 4096):
        page = readable(at)
        if page is not None:
            yield page
def f(x):
    marker = b"-".join([b"unique", b"nonce"])
    return sum(marker in page for page in pages()), sum(1 for _ in pages()) > 500
"""
    nonce = "unique" + "-" + "nonce"
    for attempt in range(3):
        tests = f"# {attempt} {nonce}\nassert f('{attempt}') == (0, True), f(2)"
        verdict = behind.verdict(f"{text}\n#{attempt}", tests)
        assert verdict.passed, verdict


@pytest.mark.parametrize("behind", ["namespaces"], indirect=True)
def test_memory_of_its_own_is_found_that_way(behind):
    """The counterpart: the search above does see what is there."""
    held = "held = [str(i) + '-here-' + str(i) for i in range(99)]\n"
    text = held + "import ctypes\ndef f(x): return ctypes.string_at(id(held[5]), 80)"
    assert behind.verdict(text, "assert b'5-here-5' in f(1)").passed


def test_all_forgeries_at_once_leave_each_other_alone(default):
    honest = [Program(f"def f(x): return x + {n}", f"assert f(1) == {n + 1}") for n in range(20)]
    forged = [Program(text, TESTS) for _, text in FORGERIES.values()]
    mixed = [each for pair in zip(honest, forged, strict=False) for each in pair]
    passed = [verdict.passed for verdict in default.sandbox.judge(mixed)]
    assert passed == [True, False] * 20
