"""The planner: which tokens are shared, in what order rows run, and how many at a time in memory.

The planning is pure: it sees token ids, the depth of each mask's first cut and sizes in bytes, and
no model. What memory there is, what a model takes of it, and what to do when it was too little, is
below it. docs/engine.md explains the rules and shows a batch over time.

A *prompt* here is a row's tokens before anything is said, whatever the mask; its *own* tokens are
those after the prefix it shares with other prompts. A *depth* is a layer at which a pass can start.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from jaxtyping import Int
from transformers import PreTrainedModel

from caploc.errors import OutOfMemory
from caploc.models.placement import free_memory, input_device
from caploc.models.projections import stated, text_config

Tokens = Sequence[int]

# A shared prefix is another pass, and rows wait for their mask's turn: what it must save before it
# is worth looking after, in tokens of a mask, and the shortest that is.
UPKEEP, SHORTEST = 256, 16
MARGIN = 1.2  # a record must save this many times what it costs
# Shares of the memory for records, and for running rows' keys, which have both without records.
RECORDS, KEPT = 0.35, 0.5


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row: the prompt and the mask of these numbers. `number` is the asker's own."""

    number: int
    prompt: int
    mask: int


@dataclass(frozen=True)
class MemorySizes:
    """What a model takes, in bytes, and what there is.

    It is a rough guess: what runs out of memory all the same is planned again with half of it.
    """

    layers: int
    token: int  # keys and values of a token, in all layers
    residual: int  # a token's residual stream
    passing: int  # of a token while a pass reads it, its logits included
    memory: int  # to be used for all of it
    most_rows: int
    most_tokens: int  # of one pass; more make it no faster

    def record(self, tokens: int) -> int:
        """Count what a record of so many tokens takes: their keys, and the residual stream."""
        return tokens * (self.token + self.residual * self.layers)


@dataclass(frozen=True, slots=True)
class PlanStage:
    """Rows that run in this order, after these prompts have been recorded.

    One that `waits` begins when all rows before it are done: it starts from their answers.
    """

    rows: tuple[PlannedRow, ...]
    recorded: tuple[int, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do. `prefix[p]` is the number in `prefixes` of prompt p's prefix, None for none.

    With `deep` the prefixes' own records can be started from at any depth.
    """

    prefixes: tuple[tuple[int, ...], ...]
    prefix: tuple[int | None, ...]
    deep: bool
    stages: tuple[PlanStage, ...]
    slots: int  # rows that run at the same time, at most
    tokens: int  # most tokens of one pass that reads
    rows: int  # and most rows
    smallest: bool  # less memory would not make it any smaller

    def shared(self, prompt: int) -> int:
        """Count the tokens of a prompt's prefix."""
        number = self.prefix[prompt]
        return 0 if number is None else len(self.prefixes[number])


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What is to be planned.

    `stems` are each prompt's tokens that may be shared, `lengths` how many tokens a pass over the
    whole prompt has, `answers` how many more a row may come to say, `cuts` each mask's first
    knocked-out layer (the number of layers if none is). Rows whose numbers are in `first` are
    answered before the others.
    """

    stems: Sequence[Tokens]
    lengths: Sequence[int]
    answers: int
    cuts: Sequence[int]
    wanted: Sequence[PlannedRow]
    first: Collection[int] = ()


def plan_batches(work: PlannedWork, sizes: MemorySizes) -> BatchPlan:
    """Plan rows: find shared prefixes, then the order and how many run at a time."""
    groups = shared_prefixes(work.stems)
    prefixes = tuple(tuple(work.stems[members[0]][:length]) for length, members in groups if length)
    prefix: list[int | None] = [None] * len(work.stems)
    for number, (_, members) in enumerate(group for group in groups if group[0]):
        for prompt in members:
            prefix[prompt] = number
    return BatchPlanner(work, sizes, prefixes, tuple(prefix)).plan()


def shared_prefixes(stems: Sequence[Tokens]) -> list[tuple[int, list[int]]]:
    """Group stems, each group with the length of its shared prefix (0: none).

    The grouping that saves most tokens of a mask: a group's prefix is read once, at a price, and
    each member's rest. Stems that share a prefix are neighbours when sorted, so that the best
    grouping of the first n comes from the best ones of fewer and every choice of the last group.
    """
    order = sorted(range(len(stems)), key=lambda n: tuple(stems[n]))
    shared = [
        min(shared_length(stems[a], stems[b]), len(stems[a]) - 1, len(stems[b]) - 1)
        for a, b in zip(order, order[1:], strict=False)
    ]
    saved, starts = np.zeros(len(order) + 1), [0] * (len(order) + 1)
    least = np.full(len(order), max(map(len, stems), default=0))  # shared by stems from each on
    for end in range(1, len(order) + 1):
        if end > 1:
            np.minimum(least[: end - 1], shared[end - 2], out=least[: end - 1])
        spared = np.arange(end - 1, -1, -1)  # members that need not read the prefix
        total = saved[:end] + gain(least[:end], spared)
        starts[end] = int(total.argmax())
        saved[end] = total[starts[end]]
    groups, end = [], len(order)
    while end:
        start = starts[end]
        length = min(shared[start : end - 1], default=0)
        worth = bool(gain(np.array([length]), np.array([end - start - 1]))[0])
        groups.append((length if worth else 0, order[start:end]))
        end = start
    return groups[::-1]


def gain(
    length: Int[np.ndarray, " groups"], spared: Int[np.ndarray, " groups"]
) -> Int[np.ndarray, " groups"]:
    """Count the tokens a mask saves with such prefixes; `spared` members need not read theirs."""
    return np.where(length >= SHORTEST, np.maximum(length * spared - UPKEEP, 0), 0)


def shared_length(first: Tokens, second: Tokens) -> int:
    """Count the tokens that two texts begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


class BatchPlanner:
    """Plans rows whose prefixes are known."""

    def __init__(
        self,
        work: PlannedWork,
        sizes: MemorySizes,
        prefixes: tuple[tuple[int, ...], ...],
        prefix: tuple[int | None, ...],
    ) -> None:
        self.work, self.sizes, self.prefixes, self.prefix = work, sizes, prefixes, prefix
        self.before = [len(prefixes[n]) if n is not None else 0 for n in prefix]
        self.own = [n - shared for n, shared in zip(work.lengths, self.before, strict=True)]
        self.memory = RECORDS * sizes.memory / 2  # for the records of prompts, and of prefixes

    @cached_property
    def longest(self) -> int:
        return max([1, *self.own, *map(len, self.prefixes)])

    @cached_property
    def tokens(self) -> int:
        """The most tokens of a pass: what memory allows, but the longest row must fit."""
        fitting = int((1 - RECORDS - KEPT) * self.sizes.memory / self.sizes.passing)
        return max(self.longest, min(self.sizes.most_tokens, fitting))

    def plan(self) -> BatchPlan:
        deep, stages = self.deep(), tuple(self.in_turn())
        recorded = deep or any(stage.recorded for stage in stages)
        slots = self.slots(recorded)
        return BatchPlan(
            self.prefixes,
            self.prefix,
            deep,
            stages,
            slots,
            self.tokens,
            self.sizes.most_rows,
            smallest=slots == 1 and self.tokens == self.longest and not recorded,
        )

    def slots(self, recorded: bool) -> int:
        """Count rows that can run at a time with their own keys and their masks' prefixes.

        Each has room for the longest answer; where prompts are `recorded`, keys have less memory.
        """
        wanted, token = self.work.wanted, self.sizes.token
        if not wanted:
            return 1
        memory = (KEPT if recorded else KEPT + RECORDS) * self.sizes.memory
        own = max(self.own[row.prompt] for row in wanted) + self.work.answers
        shared = max(self.before)
        readings = len({(row.mask, self.prefix[row.prompt]) for row in wanted})
        each = token * (own + shared * readings / len(wanted))
        # the intact prefix, and the one before
        fitting = int((memory - 2 * token * shared) / each)
        return max(1, min(self.sizes.most_rows, len(wanted), fitting))

    def deep(self) -> bool:
        """Tell whether the intact prefixes' residual streams are worth keeping, and fit."""
        pairs = {(self.prefix[row.prompt], row.mask) for row in self.work.wanted}
        skipped = sum(self.work.cuts[mask] for number, mask in pairs if number is not None)
        if not self.prefixes or skipped < MARGIN * self.sizes.layers * len(self.prefixes):
            return False
        return self.fits(max(map(len, self.prefixes)))

    def fits(self, tokens: int) -> bool:
        """Tell whether records of so many tokens fit into the memory for them."""
        return self.sizes.record(tokens) <= self.memory

    def in_turn(self) -> Iterator[PlanStage]:
        """Order stages: rows in `first` as one, longest prompts first, then all others."""
        early = [row for row in self.work.wanted if row.number in self.work.first]
        late = [row for row in self.work.wanted if row.number not in self.work.first]
        if early:
            early.sort(
                key=lambda row: (self.prefix[row.prompt] or 0, -self.own[row.prompt], row.prompt)
            )
            yield PlanStage(tuple(early))
        for number, stage in enumerate(self.stages(late)):
            yield replace(stage, waits=bool(early) and number == 0)

    def stages(self, wanted: Iterable[PlannedRow]) -> Iterator[PlanStage]:
        """Order rows.

        With a prefix the rows of one mask stay together, so that its prefix is read once; all
        prompts are recorded at once, or none if memory does not allow it. Without, prompts are
        taken in blocks that fit, and the rows of one prompt stay together. In both, masks that cut
        low come first: they break more, and a broken row says more.
        """
        by_prefix: dict[int | None, list[PlannedRow]] = defaultdict(list)
        for row in wanted:
            by_prefix[self.prefix[row.prompt]].append(row)
        cuts, own = self.work.cuts, self.own
        for number in sorted(by_prefix, key=lambda number: (number is None, number)):
            rows = by_prefix[number]
            worth = self.worth_recording(rows)
            if number is None:
                yield from self.blocks(rows, worth)
            else:
                fits = self.fits(sum(map(self.recorded_tokens, worth)))
                rows.sort(key=lambda row: (cuts[row.mask], row.mask, own[row.prompt], row.prompt))
                yield PlanStage(tuple(rows), tuple(sorted(worth)) if fits else ())

    def blocks(self, rows: Iterable[PlannedRow], worth: set[int]) -> Iterator[PlanStage]:
        """Order rows without a prefix: stages of as many prompts as can be recorded."""
        by_prompt: dict[int, list[PlannedRow]] = defaultdict(list)
        for row in rows:
            by_prompt[row.prompt].append(row)
        prompts = sorted(by_prompt, key=lambda prompt: (-self.own[prompt], prompt))
        fits = self.fits(max(map(self.recorded_tokens, prompts)))
        cuts, own = self.work.cuts, self.own
        while prompts:
            block = self.first_block(prompts) if fits else prompts
            prompts = prompts[len(block) :]
            chosen = [row for prompt in block for row in by_prompt[prompt]]
            chosen.sort(key=lambda row: (cuts[row.mask], -own[row.prompt], row.prompt, row.mask))
            recorded = tuple(prompt for prompt in block if prompt in worth) if fits else ()
            yield PlanStage(tuple(chosen), recorded)

    def first_block(self, prompts: Sequence[int]) -> Sequence[int]:
        """Take as many of the prompts as can be recorded together; at least one."""
        tokens = accumulate(map(self.recorded_tokens, prompts))
        return prompts[: max(1, sum(map(self.fits, tokens)))]

    def recorded_tokens(self, prompt: int) -> int:
        """Count the tokens of a prompt's record: its own and its answer."""
        return self.own[prompt] + self.work.answers

    def worth_recording(self, rows: Iterable[PlannedRow]) -> set[int]:
        """Find prompts whose rows would skip more layers than recording takes."""
        skipped: Counter[int] = Counter()
        for row in rows:
            skipped[row.prompt] += self.work.cuts[row.mask]
        least = MARGIN * self.sizes.layers
        return {prompt for prompt, layers in skipped.items() if layers >= least}


T = TypeVar("T")
R = TypeVar("R")
SHARE = 0.5  # of the free memory; the rest is for other processes, and for what is not foreseen
CUDA_SHARE = 0.95  # a GPU is rarely shared; what runs out of memory is planned again with less
MOST_ROWS = {"cpu": 256, "mps": 128, "cuda": 1024}
MOST_TOKENS = {"cpu": 2048, "mps": 4096, "cuda": 16384}  # of a pass; more make it no faster
# Most multiplications of a pass on a CPU: half a second to a second on two cores, so that answers
# are handed on that often. A pass of fewer tokens than the least would spend its time on reading
# weights.
CPU_PRODUCTS, CPU_LEAST_TOKENS = 7.5e10, 512
# Tokens through all layers that cost about as much as a pass of its own does: rows that could start
# deeper join a pass while they lose no more than this, and it sets the price of a draft. On a CPU
# measured (SmolLM2); elsewhere the tokens that are multiplied while the weights are read once, of a
# GPU with 200 operations for each byte.
PASS, PASS_ELSEWHERE = {"cpu": 24.0}, 200.0
WORKING = 32  # vectors as wide as the residual stream, alive for a token while a layer runs


class BatchSizer:
    """Decides the rows of a batch from their lengths; shrinks for good after out-of-memory."""

    def __init__(
        self,
        model: PreTrainedModel,
        rows: int | None = None,
        memory: int | None = None,
    ) -> None:
        """Size for this model; `rows` and `memory` (bytes beside the weights) set limits."""
        self.model, self.memory = model, memory
        self.devices = model_devices(model)
        self.device = input_device(model)
        self.most = rows or MOST_ROWS.get(self.device.type, 64)
        config: Any = text_config(model)
        size, self.layers = model.dtype.itemsize, config.num_hidden_layers
        self.residual = config.hidden_size * size
        self.token = self.layers * key_size(config) * size
        # one position's logits, as the model gives them and in float32
        self.scored_bytes = config.vocab_size * (size + 4)
        self.caution = 1  # doubled whenever a batch did not fit

    def budget(self) -> int:
        share = CUDA_SHARE if self.device.type == "cuda" else SHARE
        most = self.memory or share * min(free_memory(device) for device in self.devices)
        return int(most / self.caution)

    def sizes(self) -> MemorySizes:
        """Measure what the planner needs."""
        return MemorySizes(
            layers=self.layers,
            token=self.token,
            residual=self.residual,
            passing=WORKING * self.residual + self.scored_bytes,
            memory=self.budget(),
            most_rows=self.most,
            most_tokens=self.most_tokens(),
        )

    def most_tokens(self) -> int:
        """Choose the tokens of a pass beyond which it gets no faster, or lasts too long."""
        most = MOST_TOKENS.get(self.device.type, 4096)
        if self.device.type != "cpu":
            return most
        return max(CPU_LEAST_TOKENS, min(most, int(CPU_PRODUCTS / self.model.num_parameters())))

    def rows(self, length: int, scored: int = 1) -> int:
        """Count rows that fit when each has `length` tokens, `scored` of them with logits."""
        each = (self.token + WORKING * self.residual) * max(length, 1) + self.scored_bytes * scored
        return int(max(1, min(self.most, self.budget() // each)))

    def batches(self, items: Sequence[T], length: int, scored: int = 1) -> Iterator[list[T]]:
        """Cut items of so many tokens each, `scored` of them with logits, into batches that fit."""
        done = 0
        while done < len(items):
            batch = list(items[done : done + self.rows(length, scored)])
            done += len(batch)
            yield batch

    def run(self, work: Callable[[list[T]], list[R]], batch: list[T]) -> list[R]:
        """Do the work, in halves if the batch does not fit."""
        try:
            return work(batch)
        except Exception as error:
            self.shrink(error, smallest=len(batch) == 1)
        # Outside the handler: the failed batch's tensors are held by the exception until here.
        clear_device_cache(garbage_collection=True)
        half = len(batch) // 2
        return self.run(work, batch[:half]) + self.run(work, batch[half:])

    def shrink(self, error: Exception, *, smallest: bool) -> None:
        """Take half from now on, if the error says that memory ran out; otherwise raise it."""
        if not should_reduce_batch_size(error):
            raise error
        if smallest or not self.budget():  # nothing is left to halve
            raise OutOfMemory(
                f"Not even one row fits into the memory of {self.device}; use a smaller "
                "dtype (--dtype bfloat16), fewer examples in the prompt, or a larger device."
            ) from error
        self.caution *= 2


def key_size(config: Any) -> int:
    """Count the values of a token's keys and values in a layer, as far as the config says it."""
    heads = largest(config, "num_attention_heads") or 1
    width = largest(config, "head_dim") or config.hidden_size // heads
    return 2 * width * (largest(config, "num_key_value_heads") or heads)


def model_devices(model: PreTrainedModel) -> list[torch.device]:
    """Find the devices that layers run on; weights that wait elsewhere come to the first."""
    spread = getattr(model, "hf_device_map", None) or {}
    found = {input_device(model)} | {
        torch.device("cuda", where) for where in spread.values() if isinstance(where, int)
    }
    return sorted(found, key=str)


def largest(config: Any, name: str) -> int | None:
    """Return the largest of a size that some configs give for each layer."""
    return max(stated(config, name), default=None)
