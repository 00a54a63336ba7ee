"""By how much a choice that was made and judged on the same examples flatters itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

CONFIDENCE = 0.95

Found = Float[np.ndarray, "sets found"]
Fresh = Float[np.ndarray, "sets fresh"]


def mean_loss(losses: Float[np.ndarray, " examples"]) -> tuple[float, float]:
    """Mean over the examples scored, and its standard error; NaN where there are too few."""
    scored = losses[np.isfinite(losses)]
    if not scored.size:
        return float("nan"), float("nan")
    error = scored.std(ddof=1) / scored.size**0.5 if scored.size > 1 else float("nan")
    return float(scored.mean()), float(error)


def excess(
    found: Float[np.ndarray, " found"], fresh: Float[np.ndarray, " fresh"]
) -> dict[str, float] | None:
    """Mean loss on the examples of the choice less that on fresh ones, with its interval.

    The standard error is `sqrt(s1²/n1 + s2²/n2)`, the 95 % interval Welch's; None with fewer than
    two scored examples of either kind.
    """
    found, fresh = found[np.isfinite(found)], fresh[np.isfinite(fresh)]
    if min(found.size, fresh.size) < 2:
        return None
    value = float(found.mean() - fresh.mean())
    shares = [values.var(ddof=1) / values.size for values in (found, fresh)]
    stderr = float(sum(shares) ** 0.5)
    half = 0.0
    if stderr > 0:
        parts = zip(shares, (found.size, fresh.size), strict=True)
        freedom = sum(shares) ** 2 / sum(share**2 / (size - 1) for share, size in parts)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * stderr
    return {"value": value, "stderr": stderr, "low": value - half, "high": value + half}


def optimism(found: Found, fresh: Fresh, chosen: int) -> dict[str, float] | None:
    """How much more the chosen set costs where it was found and chosen than on fresh examples.

    Three things add up in it: heads were fitted to these examples, a set was chosen on them, and
    they may be others than most. None without fresh examples.
    """
    return excess(found[chosen], fresh[chosen])


def choosing(found: Found, fresh: Fresh, chosen: int) -> dict[str, float] | None:
    """The part of the optimism that choosing alone adds.

    The chosen set's loss less the mean loss of all sets, example by example, on the examples of
    the choice and on fresh ones: the sets share examples and fits, so only the choice is left.
    None with a single set, or without fresh examples.
    """
    if len(found) < 2:
        return None
    return excess(*(losses[chosen] - losses.mean(axis=0) for losses in (found, fresh)))


def notes(told: dict[str, Any]) -> list[str]:
    """What a reader should know of the choice, in sentences; the weightiest first."""
    best = told["settings"][told["chosen"]]
    sentences = [tie_note(told), flattery(told, best)]
    if best["drop"] is None or best["drop"] <= 0:
        sentences[0] = (
            "No setting found heads that lower the score when knocked out together: none is named."
        )
    if not told["checked_on"]:
        sentences.append(
            "No fresh examples were left to tell how much the choice among "
            f"{count(told['settings'])} flatters itself."
        )
    return [sentence for sentence in (*sentences, thinned(told)) if sentence]


def tie_note(told: dict[str, Any]) -> str:
    """Say that other heads cost the same, so that the drop did not choose between them."""
    tried = told["settings"]
    best = tried[told["chosen"]]
    same = [setting for setting in tried if setting["drop"] == best["drop"]]
    sets = {frozenset(setting["heads"]) for setting in same}
    if len(sets) < 2:
        return ""
    return (
        f"{len(same)} of {count(tried)} found heads that cost as much as those named, in "
        f"{len(sets)} different sets: the fewest masks, then the lowest rate, decided between "
        "them, and a few heads that break everything may hide what the others do."
    )


def flattery(told: dict[str, Any], best: dict[str, Any]) -> str:
    """The drop is beyond doubt larger where the heads were chosen than elsewhere."""
    surplus = told["optimism"]
    if surplus is None or not surplus["low"] > 0:
        return ""
    return (
        f"The heads named lower the score by {best['drop']:.3f} on the {told['chosen_on']} "
        f"examples that they were found and chosen on, by {best['held_out_drop']:.3f} on "
        f"{told['checked_on']} others: the choice among {count(told['settings'])} flatters itself "
        f"by {surplus['value']:.3f} (95 % interval {surplus['low']:.3f} to {surplus['high']:.3f})."
    )


def thinned(told: dict[str, Any]) -> str:
    """The budget bought some of the settings only."""
    tried = told["settings"]
    if len(tried) == told["offered"]:
        return ""
    masks = sorted({setting["masks"] for setting in tried})
    rates = sorted({setting["rate"] for setting in tried})
    return (
        f"The budget bought {len(tried)} of {told['offered']} settings: "
        f"{', '.join(map(str, masks))} masks at rates of {', '.join(f'{r:.3g}' for r in rates)}."
    )


def count(tried: Sequence[dict[str, Any]]) -> str:
    """How many settings, in words that fit one as well."""
    return f"{len(tried)} settings" if len(tried) > 1 else "one setting"
