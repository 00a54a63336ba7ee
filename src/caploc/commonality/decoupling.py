"""What located neurons follow, from how alike the sets of base items and of their partners are.

With J the mean IoU of the sets of base items and of an arm's partners (see `contrasts`),

    commonality effect = J_SC - J_DD      content effect = J_CD - J_DD
    individual effect  = J_SS - J_SC

That capabilities, and not single facts, can be located would show as a large first and a third near
0: rewording an item keeps no more neurons than putting other content into it. The effects are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from caploc.commonality.contrasts import ARMS
from caploc.commonality.intervals import Interval, mean_interval, paired_interval
from caploc.commonality.result import Result
from caploc.errors import BadData

Similarity = Float64[np.ndarray, " items"]


@dataclass(frozen=True)
class Decoupling(Result):
    """Mean IoU of each arm, and the effects, with paired bootstrap intervals over base items.

    Only base items whose IoU is known in all four arms count; `items` is their number and
    `undefined` that of the others (no neuron located for either item of a pair).
    """

    items: int
    undefined: int
    similarity: dict[str, Interval]
    commonality: Interval
    individual: Interval
    content: Interval


def decoupling(similarity: Mapping[str, Similarity], *, seed: int = 0) -> Decoupling:
    """The effects from each arm's IoU with the base, item by item (`overlap.jaccards`).

    Raises:
        BadData: if an arm is missing, there is another, or they differ in length.
    """
    if sorted(similarity) != sorted(ARMS):
        raise BadData(
            f"The arms must be {', '.join(ARMS)}; got {', '.join(sorted(similarity)) or 'none'}."
        )
    sizes = {arm: len(similarity[arm]) for arm in ARMS}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{arm} {size}" for arm, size in sizes.items())
        raise BadData(f"Every arm needs one IoU a base item; got {told}.")
    table = np.stack([similarity[arm] for arm in ARMS])
    known = ~np.isnan(table).any(axis=0)
    arms = dict(zip(ARMS, table[:, known], strict=True))
    return Decoupling(
        items=int(known.sum()),
        undefined=int((~known).sum()),
        similarity={arm: mean_interval(each, seed=seed) for arm, each in arms.items()},
        commonality=paired_interval(arms["SC"], arms["DD"], seed=seed),
        individual=paired_interval(arms["SS"], arms["SC"], seed=seed),
        content=paired_interval(arms["CD"], arms["DD"], seed=seed),
    )
