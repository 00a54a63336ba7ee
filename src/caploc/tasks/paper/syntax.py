"""Whether an answer is Python, for programs that come without tests. Nothing is run."""

import ast
import re
import warnings
from typing import Any

FENCE = re.compile(r"```(?:python|py)?[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
LONGEST = 20_000  # characters of a program that is read


def score_syntax(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the answer holds a program that parses: what a fence encloses, else all of it."""
    fenced = FENCE.search(results[0])
    text = fenced[1] if fenced else results[0]
    return {"parses": float(bool(text.strip()) and parses(text[:LONGEST]))}


def parses(text: str) -> bool:
    """Ask whether a text is a Python program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash that is no escape warns
            return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
