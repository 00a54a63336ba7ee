"""A grid gives every part of a model that can be knocked out its column in a mask.

Parts are attention heads (`heads.HeadGrid`) or feed-forward neurons (`neurons.NeuronGrid`).
"""

from itertools import accumulate

import numpy as np
from jaxtyping import Bool

Mask = Bool[np.ndarray, " parts"]  # True is knocked out, here and everywhere
Masks = Bool[np.ndarray, "masks parts"]


class Grid:
    """The parts of a model, layer by layer."""

    @property
    def per_layer(self) -> tuple[int, ...]:
        """Number of parts of each layer; 0 for a layer that has none."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of parts, which is the width of a mask."""
        return sum(self.per_layer)

    @property
    def layers(self) -> int:
        """Number of layers, those without parts included."""
        return len(self.per_layer)

    @property
    def layer_slices(self) -> list[slice]:
        """The columns of each layer."""
        ends = list(accumulate(self.per_layer))
        return [slice(end - count, end) for end, count in zip(ends, self.per_layer, strict=True)]
