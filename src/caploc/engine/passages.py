"""Texts to be scored, as trees of tokens: what choices share is read once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from caploc.engine.wording import Span


@dataclass(frozen=True, slots=True)
class Target:
    """A span's own tokens, and the places in its passage whose predictions are scored."""

    span: int
    places: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(eq=False)
class Passage:
    """Spans that begin alike, in one pass: each token of the tree stands once.

    `parents[i]` is the place of the token before token i (-1: none). Parents stand before their
    children.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    @property
    def depths(self) -> list[int]:
        """How many tokens stand before each on its branch."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    @property
    def stem(self) -> int:
        """Tokens before the first branch and before the first prediction that is scored."""
        straight = 0
        while straight < len(self.parents) and self.parents[straight] == straight - 1:
            straight += 1
        branches = min((p + 1 for p in self.parents[straight:]), default=straight)
        return min(straight, branches, *(target.places[0] for target in self.targets))

    def after(self, count: int) -> "Passage":
        """The passage without its first `count` tokens, which are part of its stem."""
        targets = [
            Target(t.span, tuple(place - count for place in t.places), t.tokens)
            for t in self.targets
        ]
        parents = [max(parent - count, -1) for parent in self.parents[count:]]
        return Passage(self.tokens[count:], parents, targets)

    def tree(self) -> Bool[Tensor, "length length"] | None:
        """Which tokens each token reads; None if the passage has no branches."""
        if all(parent == place - 1 for place, parent in enumerate(self.parents)):
            return None
        seen = np.eye(len(self.tokens), dtype=bool)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                seen[place] |= seen[parent]
        return torch.tensor(seen)


def passages(spans: Sequence[Span]) -> list[Passage]:
    """One passage for each first token; spans that begin with the same tokens share them."""
    found: dict[int, Passage] = {}
    children: dict[tuple[int, int, int], int] = {}  # (first token, parent, token) -> place
    for number, span in enumerate(spans):
        root = span.inputs[0]
        passage = found.setdefault(root, Passage())
        path, parent = [], -1
        for token in span.inputs:
            place = children.get((root, parent, token))
            if place is None:
                place = children[root, parent, token] = len(passage.tokens)
                passage.tokens.append(token)
                passage.parents.append(parent)
            path.append(place)
            parent = place
        places = tuple(path[-len(span.continuation) :])
        passage.targets.append(Target(number, places, span.continuation))
    return list(found.values())
