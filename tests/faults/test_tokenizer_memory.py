"""What a tokenizer holds is given back with it."""

import ctypes
import gc
import sys

import pytest

from caploc.models.loading import load_tokenizer

MB = 1e6
NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class Arenas(ctypes.Structure):
    """`struct mallinfo2` of glibc; `uordblks` are the bytes in use."""

    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]


def in_use():
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Arenas
    gc.collect()
    return library.mallinfo2().uordblks / MB


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="glibc alone says what is in use",
)
@pytest.mark.slow
def test_a_tokenizer_leaves_nothing_behind():
    sizes = []
    for turn in range(4):
        tokenizer = load_tokenizer("demo")
        for text in range(800):
            tokenizer(" ".join(f"w{text * word % 997}" for word in range(20)))
        del tokenizer
        if turn:  # the first loads libraries
            sizes.append(in_use())
    assert max(sizes) - sizes[0] < 1.0, sizes
