"""How often answers change though nothing else did: the same rows, asked in other batches.

In bfloat16 and float16 the last digits of a sum depend on the order of its terms, and so on the
batch that a row is in; where two answers are nearly tied, that decides between them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from caploc import designs
from caploc.measurement import Meter
from caploc.progress import Progress
from caploc.result import Noise
from caploc.search import Found, column_mask
from caploc.store import Row

ROUNDED = ("bfloat16", "float16")  # number formats in which it is worth asking
REPEATED = 50  # rows


def measure_noise(
    intact: Sequence[Row], again: Meter, heads: int, seed: int, progress: Progress
) -> Noise | None:
    """Ask some of the intact rows once more, in another order; None if none could be scored."""
    scored = [row for row in intact if not math.isnan(row.outcome)]
    order = designs.generator(seed + designs.REPEATS).permutation(len(scored))[:REPEATED]
    first = [scored[number] for number in order]
    if not first:
        return None
    examples = [row.number for row in first]
    second = again.under(column_mask(heads, []), examples, progress, "noise of rounding")
    both = zip(first, second, strict=True)
    change = np.abs([one.outcome - other.outcome for one, other in both])
    change = change[np.isfinite(change)]
    if not len(change):
        return None
    return Noise(rows=len(change), changed=int((change > 0).sum()), floor=float(change.mean()))


def above_noise(found: Found, noise: Noise | None) -> Found:
    """Name no head whose effect is as small as what changes by rounding alone; say so."""
    if noise is None:
        return found
    kept = [c for c in found.chosen if abs(found.estimate.effect[c]) > noise.floor]
    if dropped := len(found.chosen) - len(kept):
        heads = "One head is" if dropped == 1 else f"{dropped} heads are"
        note = (
            f"{heads} not named for an effect no larger than what rounding does: asked again in "
            f"other batches, {noise.changed} of {noise.rows} intact answers changed. Use "
            "--dtype float32 to see smaller effects."
        )
        return replace(found, chosen=kept, notes=[note, *found.notes])
    return found
