"""The located neurons that controls do not locate too.

Averaged over enough items any stable score gives the same set again and again, also for neurons
that are high on all text. So sets located on text of no capability, on answers put elsewhere, or by
how large activations are, are held against the located one, and taken out of it. The procedure is
ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caploc.commonality.layers import Chosen, Unchecked
from caploc.commonality.overlap import Rates, chance, rates
from caploc.commonality.result import Result
from caploc.errors import BadData
from caploc.grid import Grid
from caploc.sharing import Chance


@dataclass(frozen=True)
class Control(Result):
    """What the located set, the reference, has in common with that of one control."""

    rates: Rates
    chance: Chance


@dataclass(frozen=True)
class Specific(Result):
    """The located neurons that no control has: `count` of `located`, a share of them.

    `share` is None if nothing was located.
    """

    chosen: Chosen
    count: int
    located: int
    share: float | None
    controls: dict[str, Control]


def specific(located: Chosen, controls: Mapping[str, Unchecked], grid: Grid[Any]) -> Specific:
    """Hold a located set against each control's, and take all of theirs out of it.

    Raises:
        BadData: if a control's set is of another model.
        BadOption: if the grid is not that of so many neurons.
    """
    for name, control in controls.items():
        if control.shape != located.shape:
            raise BadData(
                f"The set of the control {name!r} is over {len(control):,} neurons and the located "
                f"one over {len(located):,}; locate both in one model."
            )
    chosen = located.copy()
    for control in controls.values():
        chosen &= ~control
    count, before = int(np.count_nonzero(chosen)), int(np.count_nonzero(located))
    return Specific(
        chosen=chosen,
        count=count,
        located=before,
        share=count / before if before else None,
        controls={
            name: Control(rates(located, each), chance(located, each, grid))
            for name, each in controls.items()
        },
    )
