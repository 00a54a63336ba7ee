"""What a knocked-out model lost, in a few words: the capability, or the ability to answer."""

from collections.abc import Mapping

from caploc.report.reading import inline
from caploc.report.standing import percent
from caploc.result import Failures, Share

LOST = {
    "capability": "lost the capability",
    "speech": "lost the ability to answer",
    "mixed": "lost both content and form",
}
MOST = 3  # kinds of answers that are named


def lost(failures: Failures | None) -> str:
    """`lost the capability: 58 % wrong content, 25 % format`; empty where nothing was lost."""
    words = LOST.get(failures.verdict or "") if failures else None
    if failures is None or words is None:
        return ""
    shares = harm(failures.categories)
    first = sorted(shares, key=lambda kind: -shares[kind])[:MOST]
    parts = ", ".join(f"{percent(shares[kind])} {inline(kind)}" for kind in first)
    return f"{words}: {parts}" if parts else words


def harm(kinds: Mapping[str, Share]) -> dict[str, float]:
    """The shares of the kinds of answers that are not right."""
    return {kind: part.share for kind, part in kinds.items() if kind != "right" and part.share}
