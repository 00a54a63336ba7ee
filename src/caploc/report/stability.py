"""Would more rows change the answer? What another run of the same kind would be likely to name."""

import numpy as np
from jaxtyping import Float

from caploc.designs import generator
from caploc.result import Result

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # rows of the other run, as multiples of this one's
DRAWS = 2_000
NORMAL_WIDTH = 1.959964  # standard errors on either side of a 95 % interval
BY_EFFECT = ("css", "csb", "css-search", "csb-search", "one-shot")  # name the strongest alone


def stability(result: Result, *, seed: int = 0) -> list[tuple[float, float]]:
    """The share of the named heads that a run of other rows would be expected to name again.

    Of another run with `f` times the rows, the effect of head i is taken as normal about this
    one's, with variance `s_i² (1 + 1/f)`: `s_i²` for what this run leaves open, and `s_i² / f` for
    the other's own error. It names as many heads, those of the lowest effects. With `f` growing,
    what remains is this run's own doubt.

    Returns:
        Pairs of factor and share, for `FACTORS`; empty where heads are not named by their effects
        alone, or where effects have no intervals.
    """
    if result.method.name not in BY_EFFECT:
        return []
    measured = [entry for entry in result.heads if entry.effect is not None]
    columns = [[getattr(e, field) for e in measured] for field in ("effect", "low", "high")]
    named = np.array([entry.head in result.top for entry in measured], dtype=bool)
    if not named.any() or any(value is None for column in columns for value in column):
        return []
    effect, low, high = (np.array(column, dtype=float) for column in columns)
    return named_again(effect, (high - low) / (2 * NORMAL_WIDTH), named, seed=seed)


def named_again(
    effect: Float[np.ndarray, " heads"],
    stderr: Float[np.ndarray, " heads"],
    named: np.ndarray,
    *,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """For each factor the expected share of the heads `named` (True) that are named again."""
    count = int(named.sum())
    noise = generator(seed).standard_normal((DRAWS, len(effect)))
    shares = []
    for factor in FACTORS:
        seen = effect + noise * stderr * np.sqrt(1 + 1 / factor)
        first = np.argpartition(seen, count - 1, axis=1)[:, :count]
        shares.append((factor, float(named[first].mean())))
    return shares
