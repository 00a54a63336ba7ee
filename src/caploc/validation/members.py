"""What each named head does: alone, and within the set of all of them.

The two are effects of different kinds, and need not be alike: a head whose work another one takes
over does nothing alone, and much once that one is gone as well.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc.recovery import paired
from caploc.search import column_mask
from caploc.validation.check import Check
from caploc.validation.comparison import number


@dataclass(frozen=True)
class Effect:
    """A mean change of the outcome and its 95 % interval; NaN where it could not be told."""

    effect: float
    low: float
    high: float

    @classmethod
    def between(
        cls, before: Float[np.ndarray, " examples"], after: Float[np.ndarray, " examples"]
    ) -> "Effect":
        """Compare two outcomes of the same examples, as far as both could be scored.

        Where these are right or wrong, nothing exceeds what the score before can change.
        """
        both = np.isfinite(before) & np.isfinite(after)
        if not both.any():
            return cls(np.nan, np.nan, np.nan)
        before, after = before[both], after[both]
        binary = bool(np.isin([before, after], (0.0, 1.0)).all())
        effect, low, high, _ = paired(after - before, binary=binary)
        if binary:
            level = float(before.mean())
            low, high = np.clip([low, high], -level, 1 - level).tolist()
        return cls(effect, low, high)


@dataclass(frozen=True)
class Member:
    """A named head's effect alone, and its share of what all named heads do together."""

    column: int
    alone: Effect
    within: Effect


def measure_members(check: Check, chosen: Sequence[int]) -> list[Member]:
    """Knock out each head alone, and all but each, on the examples of a check."""
    if not chosen:
        return []
    sets = [(), tuple(chosen), *((column,) for column in chosen)]
    sets += [tuple(other for other in chosen if other != column) for column in chosen]
    masks = np.stack([column_mask(check.grid.size, columns) for columns in sets])
    intact, whole, *rest = check.outcomes(masks, "members of the set")
    alone, without = rest[: len(chosen)], rest[len(chosen) :]
    return [
        Member(column, Effect.between(intact, one), Effect.between(others, whole))
        for column, one, others in zip(chosen, alone, without, strict=True)
    ]


def drop_idle_members(check: Check, chosen: Sequence[int]) -> list[int]:
    """The set without heads that add nothing to it beyond doubt, the one that adds least first."""
    kept = list(chosen)
    while len(kept) > 1:
        doubtful = [member for member in measure_members(check, kept) if not member.within.high < 0]
        if not doubtful:
            break
        kept.remove(max(reversed(doubtful), key=lambda member: member.within.effect).column)
    return kept


def describe_members(check: Check, members: Sequence[Member]) -> dict[str, Any]:
    """The members as `result.json` keeps them."""
    return {
        "fresh": check.fresh,
        "examples": len(check.examples),
        "heads": [
            {
                "head": str(check.grid.heads[member.column]),
                "alone": written(member.alone),
                "within": written(member.within),
            }
            for member in members
        ],
    }


def written(effect: Effect) -> dict[str, float | None]:
    """An effect with None for what is not known."""
    return {name: number(value) for name, value in asdict(effect).items()}
