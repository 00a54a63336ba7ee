"""Who answers a workload: the paper's procedure, three ways of plain transformers, and caploc."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import plain
from caploc.components import Mask
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.tasks.task import Generated
from clock import Seconds, Stopwatch
from plain import Past, Prompt, Reading, Responses

T = TypeVar("T")
Row = Prompt | Reading


LOOP_BATCH = 16  # examples in a call of the hook loop
PREFIXED = "hook loop with prefix cache"


@dataclass(frozen=True)
class Run:
    """A contender's answers, the seconds they took, and the tokens it ran through the model.

    `scaled` says how the seconds were reckoned from fewer rows; empty where they were measured.
    """

    responses: Responses
    seconds: Seconds
    forward_tokens: int
    scaled: str = ""


class Contender(Protocol):
    """Whatever answers asks."""

    name: str

    def run(self, asks: Sequence[Ask]) -> Run:
        """Answer them all, from nothing: no work of an earlier run is left over."""
        ...


class Batched:
    """Plain transformers with hooks: batches of one mask (a loop), or of rows each with its own."""

    def __init__(self, loaded: LoadedModel, *, one_mask: bool, batch: int = LOOP_BATCH) -> None:
        """Answer with this model, so many rows in a batch."""
        self.loaded, self.one_mask, self.batch = loaded, one_mask, batch
        self.name = "hook loop" if one_mask else "rows"

    def run(self, asks: Sequence[Ask]) -> Run:
        """Generations and readings, batch by batch."""
        watch = Stopwatch()
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        prompts, readings = plain.prompts(tokenizer, asks), plain.readings(tokenizer, asks)
        past, again = self.sharing([*prompts, *readings])
        responses: Responses = {}
        for spoken in plain.batches(prompts, self.batch, one_mask=self.one_mask):
            responses |= self.halving(
                lambda part: plain.generate(model, tokenizer, part, past(part)), spoken
            )
        for read in plain.batches(readings, self.batch, one_mask=self.one_mask):
            responses |= self.halving(lambda part: plain.score(model, part, past(part)), read)
        return Run(responses, watch.read(), tokens_run(prompts, readings, responses) - again)

    def sharing(self, rows: Sequence[Row]) -> tuple[Callable[[Sequence[Row]], Past], int]:
        """What the model has read of a batch when its turn comes, and the tokens saved by that.

        The function is called while the batch's heads are cut. Here nothing is read before.
        """
        return lambda batch: plain.NOTHING, 0

    def halving(self, work: Callable[[list[Any]], Responses], batch: list[Any]) -> Responses:
        """Do the work under the batch's masks, in halves where memory does not do."""
        masks = np.stack([row.mask for row in batch[: 1 if self.one_mask else None]])
        try:
            with knocked_out(self.loaded.projections, self.loaded.grid, torch.from_numpy(masks)):
                return work(batch)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
        torch.cuda.empty_cache()
        half = len(batch) // 2
        return self.halving(work, batch[:half]) | self.halving(work, batch[half:])


class Prefixed(Batched):
    """The hook loop, but what all prompts begin with is read once for each mask.

    As transformers documents it: `generate` goes on from a copy of the prefix's cache.
    """

    def __init__(self, loaded: LoadedModel, *, batch: int = LOOP_BATCH) -> None:
        """Answer with this model, so many rows in a batch."""
        super().__init__(loaded, one_mask=True, batch=batch)
        self.name = PREFIXED

    def sharing(self, rows: Sequence[Row]) -> tuple[Callable[[Sequence[Row]], Past], int]:
        """The prefix under the batch's mask, read when the mask is first met."""
        tokens = plain.shared(rows)
        under = lru_cache(None)(lambda mask: plain.prefilled(self.loaded.model, tokens))
        masks = {row.mask.tobytes() for row in rows}
        return lambda batch: under(batch[0].mask.tobytes()), len(tokens) * (len(rows) - len(masks))


class Reference:
    """The paper's procedure: reload the model for every mask, zero weights, one prompt at a time.

    Timed on a few masks and rows: the seconds are those of a load times all masks, and of a row
    times all rows.
    """

    name = "reference"

    def __init__(self, loaded: LoadedModel, masks: int, rows: int) -> None:
        """Time `masks` masks with `rows` rows each."""
        self.loaded, self.masks, self.rows = loaded, masks, rows

    def run(self, asks: Sequence[Ask]) -> Run:
        """Answer the rows of the sample; scale the seconds up to all."""
        by_mask: dict[bytes, list[list[Ask]]] = {}
        for row in rows_of(asks):
            by_mask.setdefault(row[0].knocked_out.tobytes(), []).append(row)
        loading, answering = Seconds(), Seconds()
        responses: Responses = {}
        sampled = timed_tokens = 0
        chosen = spread(list(by_mask.values()), self.masks)
        for number, rows in enumerate(chosen):
            watch = Stopwatch()
            model = self.reloaded(rows[0][0].knocked_out)
            loading += watch.read()
            # another mask, other rows, so that short and long ones all have their turn
            for row in spread(rows[number:] + rows[:number], self.rows):
                watch = Stopwatch()
                said, tokens = self.answered(model, row)
                answering += watch.read()
                responses |= said
                timed_tokens += tokens
                sampled += 1
        total = sum(len(rows) for rows in by_mask.values())
        whole = loading * (len(by_mask) / len(chosen)) + answering * (total / sampled)
        everything = len(chosen) == len(by_mask) and sampled == total
        scaled = "" if everything else f"scaled from {len(chosen)} masks, {sampled} rows"
        return Run(responses, whole, round(timed_tokens * total / sampled), scaled)

    def reloaded(self, mask: Mask) -> Any:
        """The model from its files, the mask's columns of the output projections zeroed."""
        grid, intact = self.loaded.grid, self.loaded.model
        place = str(intact.name_or_path)
        model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=intact.dtype)
        model.eval()
        names = {module: name for name, module in intact.named_modules()}
        with torch.no_grad():
            for projection, columns in zip(self.loaded.projections, grid.layer_slices, strict=True):
                if projection is not None and mask[columns].any():
                    weight: Any = model.get_submodule(names[projection]).weight
                    per_head = weight.unflatten(1, (columns.stop - columns.start, -1))
                    per_head[:, torch.from_numpy(mask[columns])] = 0
        return model

    def answered(self, model: Any, row: list[Ask]) -> tuple[Responses, int]:
        """One row, one prompt at a time."""
        tokenizer = self.loaded.tokenizer
        prompts, readings = plain.prompts(tokenizer, row), plain.readings(tokenizer, row)
        responses: Responses = {}
        for prompt in prompts:
            responses |= plain.generate(model, tokenizer, [prompt])
        for reading in readings:
            responses |= plain.score(model, [reading])
        return responses, tokens_run(prompts, readings, responses)


class Caploc:
    """The engine under test."""

    name = "caploc"

    def __init__(self, loaded: LoadedModel) -> None:
        """Answer with this model, which no other contender touches."""
        self.loaded = loaded
        self.packed: PackedModel | None = None  # of the run before

    def run(self, asks: Sequence[Ask]) -> Run:
        """Answer with an engine made anew, before the clock starts, so that nothing is kept."""
        engine = BatchEngine(self.loaded)
        self.packed = engine.packed
        watch = Stopwatch()
        answers = [answer for batch in engine.answer(asks) for answer in batch]
        seconds = watch.read()
        responses = {answer.key: answer.response for answer in answers}
        return Run(responses, seconds, round(sum(a.forward_tokens for a in answers)))


def tokens_run(prompts: Sequence[Prompt], readings: Sequence[Reading], responses: Responses) -> int:
    """Tokens that had to run through the model, padding not counted."""
    said = sum(len(answer.said) for answer in responses.values() if isinstance(answer, Generated))
    read = [*(len(row.tokens) for row in prompts), *(len(row.tokens) for row in readings)]
    return said + sum(read)


def rows_of(asks: Sequence[Ask]) -> list[list[Ask]]:
    """The asks of each row of measurement together."""
    rows: dict[int, list[Ask]] = {}
    for ask in asks:
        rows.setdefault(ask.key[0], []).append(ask)
    return list(rows.values())


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spread."""
    chosen = np.linspace(0, len(items), min(count, len(items)), endpoint=False).astype(int)
    return [items[index] for index in chosen]
