"""A group of asks as it travels: each text and each mask once, masks as bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caploc.engine import Ask
from caploc.tasks.requests import Request


@dataclass(frozen=True, slots=True)
class Bundle:
    """Asks; `asked` holds each one's key and its places in `requests` and `masks`."""

    requests: tuple[Request, ...]
    masks: tuple[bytes, ...]  # packed bits, most significant first; 1 is knocked out
    parts: int  # of a mask
    asked: tuple[tuple[tuple[int, int], int, int], ...]

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> "Bundle":
        """Pack asks."""
        requests: dict[Request, int] = {}
        masks: dict[bytes, int] = {}
        asked = [
            (
                ask.key,
                requests.setdefault(ask.request, len(requests)),
                masks.setdefault(np.packbits(ask.knocked_out).tobytes(), len(masks)),
            )
            for ask in asks
        ]
        parts = asks[0].knocked_out.size if asks else 0
        return cls(tuple(requests), tuple(masks), parts, tuple(asked))

    def asks(self) -> list[Ask]:
        """The asks, in their order."""
        masks = [
            np.unpackbits(np.frombuffer(bits, np.uint8), count=self.parts).astype(bool)
            for bits in self.masks
        ]
        return [Ask(key, self.requests[text], masks[mask]) for key, text, mask in self.asked]
