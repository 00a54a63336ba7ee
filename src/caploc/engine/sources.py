"""What heads hand on over texts that stand in for them, read when it is asked for."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch.nn import functional

from caploc.engine.asks import Ask, Source
from caploc.engine.encoding import RequestEncoder
from caploc.engine.memory import BatchSizer
from caploc.errors import BadOption
from caploc.models.knockout import record_outputs
from caploc.models.loading import CutModel
from caploc.models.substitutes import Substitute

SHARE = 4  # of the memory beside the weights one part is for what stands in
WORDS = ("all", "last", "changed")
Tokens = tuple[int, ...]
Key = tuple[tuple[Tokens, ...], bool, str | None, Tokens]


class SourceReader:
    """Reads sources on the intact model, one text after another, and keeps the latest."""

    def __init__(self, loaded: CutModel, encoder: RequestEncoder, sizer: BatchSizer) -> None:
        self.loaded, self.encoder, self.sizer = loaded, encoder, sizer
        self.keys: WeakKeyDictionary[Source, Key] = WeakKeyDictionary()
        self.kept: OrderedDict[Key, Substitute] = OrderedDict()
        self.due = 0  # tokens read that no answer has paid for

    @cached_property
    def room(self) -> int:
        """The bytes that may be kept."""
        return self.sizer.budget() // SHARE

    def portions(self, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
        """Part asks so that what their sources hand on fits into the room, each source whole."""
        part, taken, by_source = list[Ask](), 0, dict[Source, list[Ask]]()
        for ask in asks:
            if ask.source is None or not ask.knocked_out.any():
                part.append(ask)
            else:
                by_source.setdefault(ask.source, []).append(ask)
        for source, members in by_source.items():
            size = self.read(source).bytes
            if part and taken + size > self.room:
                yield part
                part, taken = [], 0
            part, taken = part + members, taken + size
        yield part

    def read(self, source: Source) -> Substitute:
        """Return what heads hand on over a source.

        Raises:
            BadOption: if a corrupted prompt is not as long as the clean one, or a position is none
                of theirs.
        """
        if source not in self.keys:
            texts = tuple(self.encoder.context(text) for text in source.texts)
            clean = () if source.clean is None else self.encoder.context(source.clean)
            self.keys[source] = texts, source.mean, source.positions, clean
        key = self.keys[source]
        if key not in self.kept:
            self.kept[key] = self._record(*key)
            while len(self.kept) > 1 and sum(each.bytes for each in self.kept.values()) > self.room:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    def pay(self) -> int:
        """Return how many tokens were read that were not paid for yet."""
        due, self.due = self.due, 0
        return due

    def _record(
        self, texts: tuple[Tokens, ...], mean: bool, positions: str | None, clean: Tokens
    ) -> Substitute:
        model = self.loaded
        self.due += sum(map(len, texts))
        chosen = None if positions is None else choose_positions(positions, clean, texts[0])
        outputs = record_outputs(
            model.model, model.projections, model.grid, texts, per_position=not mean
        )
        if mean:
            means = [each if each is None else each[None] for each in outputs.means]
            return Substitute(means, torch.tensor([True]))
        values = [each if each is None else each[0] for each in outputs.values]
        if chosen is None:
            return Substitute(values, torch.ones(len(texts[0]), dtype=torch.bool))
        # an entry on either side, for the positions that are left as they are
        first, last = min(chosen, default=0), max(chosen, default=-1)
        padding = 0, 0, 0, 0, 1, 1
        patched = [
            each if each is None else functional.pad(each[first : last + 1], padding)
            for each in values
        ]
        taken = [position in chosen for position in range(first - 1, last + 2)]
        return Substitute(patched, torch.tensor(taken), first - 1)


def choose_positions(asked: str, clean: Tokens, corrupted: Tokens) -> set[int]:
    """Find the positions of a prompt that are patched: see `parse_positions`.

    Raises BadOption if the prompts are not of one length, or have no such position.
    """
    if len(clean) != len(corrupted):
        raise BadOption(
            f"A corrupted prompt has {len(corrupted)} tokens and the prompt itself {len(clean)}; "
            "they must be of one length, or no position of one is that of the other."
        )
    if asked == "changed":
        pairs = zip(clean, corrupted, strict=True)
        return {place for place, (one, other) in enumerate(pairs) if one != other}
    if asked == "all":
        return set(range(len(clean)))
    wanted = [len(clean) - 1] if asked == "last" else parse_positions(asked)
    if outside := [place for place in wanted if not -len(clean) <= place < len(clean)]:
        raise BadOption(
            f"--positions names {outside[0]}, and a prompt has {len(clean)} tokens; name positions "
            f"from {-len(clean)} to {len(clean) - 1}."
        )
    return {place % len(clean) for place in wanted}


def parse_positions(text: str) -> list[int]:
    """Read numbers such as `-2,-1`, which count from 0, or from the end if negative.

    Raises BadOption if they are none, and no word.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if text not in WORDS and not found:
        raise BadOption(
            f"--positions is {', '.join(WORDS)} or numbers such as -2,-1; got {text!r}."
        )
    return found
