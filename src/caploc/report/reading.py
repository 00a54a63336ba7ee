"""Make any text safe to show, and write counts and lists."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NAMES_SHOWN = 8  # a sentence with more head names than this is no longer read

# Control codes, invisible characters and those that reverse the direction of reading. The joiners
# U+200C and U+200D are left alone: Persian and emoji need them.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: Any) -> str:
    """Return the text with each unseen character drawn: `\\x00` as ␀, U+202E as ⟨U+202E⟩.

    Line breaks and tabs stay. Also takes out lone surrogates, which no file can hold.
    """
    return UNSEEN.sub(_draw, "" if text is None else str(text))


def inline(text: Any) -> str:
    """Return the text on one line, as names are shown: `visible`, and ␊ for a line break."""
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def called(name: Any) -> str:
    """Return the name of a task or model as a sentence calls it: of a path, its last part."""
    text = inline(name)
    return text.rstrip("/").rsplit("/", 1)[-1] or text if text.startswith("/") else text


def called_apart(names: Iterable[str]) -> dict[str, str]:
    """What each of several names is called; paths that end alike by as much as tells them apart."""
    parts = {name: [inline(part) for part in str(name).rstrip("/").split("/")] for name in names}
    short = {name: called(name) for name in parts}
    found = {}
    for name, own in parts.items():
        twins = [parts[one] for one in parts if one != name and short[one] == short[name]]
        size = 1
        while size < len(own) and any(twin[-size:] == own[-size:] for twin in twins):
            size += 1
        found[name] = "/".join(own[-size:]) if twins else short[name]
    return found


def _draw(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def numeral(count: int) -> str:
    """Write a count: a word up to ten, digits above."""
    return NUMERALS[count] if 0 <= count < len(NUMERALS) else f"{count:,}"


def counted(count: float, noun: str) -> str:
    """Write `1 row` or `2 rows`, with thousands set apart."""
    return f"{count:,.0f} {noun}" if count == 1 else f"{count:,.0f} {noun}s"


def name_list(names: Sequence[str], limit: int = NAMES_SHOWN) -> str:
    """Write `a, b and c`; past `limit` names, the first ones and how many more there are."""
    shown = [inline(name) for name in names]
    if len(shown) > limit:
        shown = [*shown[: limit - 2], f"{len(names) - limit + 2} more"]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def clipped(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Shorten the text to about `limit` characters and say how many were left out."""
    if len(text) <= limit:
        return text
    left_out = f"[… {len(text) - limit:,} characters left out …]"
    return f"{left_out}\n{text[-limit:]}" if keep_end else f"{text[:limit]}\n{left_out}"


def finite_numbers(values: Iterable[float | None]) -> list[float]:
    """Return the numbers among the values that can be placed on an axis."""
    return [value for value in values if value is not None and math.isfinite(value)]
