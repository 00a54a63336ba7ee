"""Asks that want log-probabilities."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from caploc.engine import plain
from caploc.engine.asks import Ask
from caploc.engine.memory import BatchSizer
from caploc.engine.packed import PackedModel
from caploc.engine.padding import Padding
from caploc.engine.passages import Passage, passages
from caploc.engine.planning import Wanted, Work, plan
from caploc.engine.rows import Done, Masks, to_the_end
from caploc.engine.scoring import Judged, Scorer
from caploc.engine.wording import Span, Wording
from caploc.models.loading import CutModel
from caploc.tasks.requests import Generate, Scored


class Likelihood:
    """Answers asks that want log-probabilities; those of one row of measurement share a passage."""

    def __init__(
        self, loaded: CutModel, wording: Wording, sizer: BatchSizer, packed: PackedModel | None
    ) -> None:
        """Answer with packed rows where `packed` is given."""
        self.loaded, self.wording, self.sizer, self.packed = loaded, wording, sizer, packed
        self.padding = Padding(loaded, left=False)

    def answer(self, asks: Sequence[Ask]) -> Iterator[list[Done]]:
        """Answer every ask once."""
        rows: dict[tuple[int, bytes], list[Ask]] = defaultdict(list)
        for ask in asks:
            if self.spans(ask):
                rows[ask.key[0], ask.knocked_out.tobytes()].append(ask)
        # an empty text has nothing to be read
        yield [Open(ask, ()).done() for ask in asks if not self.spans(ask)]
        packed: list[list[Ask]] = []
        others: list[list[Ask]] = []
        for members in rows.values():
            (packed if self.packs(members) else others).append(members)
        yield from self.packed_rows(packed)
        yield from self.plain_rows([ask for members in others for ask in members])

    def packs(self, asks: Sequence[Ask]) -> bool:
        """Whether packed rows can serve them."""
        longest = self.packed.longest if self.packed else 0
        return all(len(span.inputs) <= longest for ask in asks for span in self.spans(ask))

    def spans(self, ask: Ask) -> tuple[Span, ...]:
        """What must be read to answer an ask."""
        assert not isinstance(ask.request, Generate)
        return self.wording.spans(ask.request)

    def packed_rows(self, rows: Sequence[list[Ask]]) -> Iterator[list[Done]]:
        """Answer with packed rows, a passage for each row and mask."""
        masks, texts = Masks(self.loaded.grid), list[Passage]()
        known: dict[tuple[Span, ...], list[int]] = {}
        asked: dict[tuple[int, int], list[list[Open]]] = defaultdict(list)  # (passage, mask)
        for members in rows:
            opened = [Open(ask, self.spans(ask)) for ask in members]
            spans = tuple(span for one in opened for span in one.spans)
            owners = [one for one in opened for _ in one.spans]
            if spans not in known:
                found = passages(spans)
                known[spans] = list(range(len(texts), len(texts) + len(found)))
                texts += found
            mask = masks.number(members[0].knocked_out)
            for number in known[spans]:
                asked[number, mask].append(owners)
        wanted = [Wanted(number, *pair) for number, pair in enumerate(asked)]
        for batch in self.run(texts, masks, wanted):
            done: list[Done] = []
            for judged in batch:
                readers = asked[judged.wanted.prompt, judged.wanted.mask]
                for owners in readers:
                    done += self.taken(owners, judged, len(readers))
            yield done

    def taken(self, owners: Sequence["Open"], judged: Judged, readers: int) -> Iterator[Done]:
        """Hand a row's results to the asks that wait for them; yield those that are complete."""
        cost = judged.cost / readers / len(judged.spans)
        for span, logprob, greedy in judged.spans:
            one = owners[span]
            one.take(logprob, greedy, cost)
            if not one.missing:
                yield one.done()

    def run(
        self, texts: Sequence[Passage], masks: Masks, rows: Sequence[Wanted]
    ) -> Iterator[list[Judged]]:
        """Run rows of passages to their end."""
        packed = self.packed
        assert packed is not None or not rows

        def scorer(still_open: Sequence[Wanted]) -> Scorer:
            assert packed is not None
            work = Work(
                stems=[text.tokens[: text.stem] for text in texts],
                lengths=[len(text.tokens) for text in texts],
                answers=0,
                cuts=[mask.cut for mask in masks.all],
                wanted=still_open,
            )
            planned = plan(work, self.sizer.sizes())
            return Scorer(packed, planned, texts, masks.all)

        return to_the_end(rows, scorer, self.sizer)

    def plain_rows(self, asks: Sequence[Ask]) -> Iterator[list[Done]]:
        """Answer with plain forward passes; spans that read the same under one mask share one."""
        readings: dict[tuple[tuple[int, ...], bytes], tuple[plain.Reading, list[Open]]] = {}
        for ask in asks:
            one = Open(ask, self.spans(ask))
            for span in one.spans:
                key = span.inputs, ask.knocked_out.tobytes()
                empty = plain.Reading(span.inputs, ask.knocked_out, []), list[Open]()
                reading, owners = readings.setdefault(key, empty)
                reading.wanted.append(span.continuation)
                owners.append(one)
        for alike in self.padding.groups(readings.values(), lambda pair: pair[0].inputs):
            for batch in self.sizer.batches(alike, self.size):
                yield list(self.scored(batch))

    def size(self, pair: tuple[plain.Reading, list["Open"]]) -> tuple[int, int]:
        """Tokens of a reading, and how many of them keep their logits."""
        return len(pair[0].inputs), max(map(len, pair[0].wanted))

    def scored(self, batch: list[tuple[plain.Reading, list["Open"]]]) -> Iterator[Done]:
        """Read a batch in one forward pass; yield the asks that are complete."""
        readings = [reading for reading, _ in batch]
        results = self.sizer.run(lambda part: plain.score(self.loaded, part), readings)
        for (reading, owners), scores in zip(batch, results, strict=True):
            for one, (logprob, greedy) in zip(owners, scores, strict=True):
                one.take(logprob, greedy, len(reading.inputs) / len(owners))
                if not one.missing:
                    yield one.done()


class Open:
    """An ask some of whose spans are still out."""

    def __init__(self, ask: Ask, spans: tuple[Span, ...]) -> None:
        """Wait for all spans."""
        self.ask, self.spans, self.missing = ask, spans, len(spans)
        self.logprob, self.greedy, self.cost = 0.0, True, 0.0

    def take(self, logprob: float, greedy: bool, cost: float) -> None:
        """One span's result."""
        self.logprob, self.greedy = self.logprob + logprob, self.greedy and greedy
        self.cost, self.missing = self.cost + cost, self.missing - 1

    def done(self) -> Done:
        """The response."""
        tokens = sum(len(span.continuation) for span in self.spans)
        alone = sum(len(span.inputs) for span in self.spans)
        return Done(self.ask, Scored(self.logprob, self.greedy, tokens), self.cost, alone)
