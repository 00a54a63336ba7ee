"""What a knocked-out model lost, in a few words: the capability, or the ability to answer."""

from collections.abc import Mapping
from typing import Any

from caploc.report.reading import at, inline, number_at
from caploc.report.standing import percent

LOST = {
    "capability": "lost the capability",
    "speech": "lost the ability to answer",
    "mixed": "lost both content and form",
}
MOST = 3  # kinds of answers that are named


def lost(failures: Any) -> str:
    """`lost the capability: 58 % wrong content, 25 % format`; empty where nothing was lost."""
    words = LOST.get(str(at(failures, "verdict")))
    if words is None:
        return ""
    kinds = at(failures, "categories")
    shares = {} if not isinstance(kinds, Mapping) else dict(harm(kinds))
    first = sorted(shares, key=lambda kind: -shares[kind])[:MOST]
    parts = ", ".join(f"{percent(shares[kind])} {inline(kind)}" for kind in first)
    return f"{words}: {parts}" if parts else words


def harm(kinds: Mapping[str, Any]) -> dict[str, float]:
    """The shares of the kinds of answers that are not right."""
    found = {kind: number_at(part, "share") for kind, part in kinds.items() if kind != "right"}
    return {kind: share for kind, share in found.items() if share}
