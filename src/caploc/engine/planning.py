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
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from jaxtyping import Int
from transformers import PreTrainedModel

from caploc.errors import OutOfMemory
from caploc.models.placement import free_memory, input_device
from caploc.models.projections import stated

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
class DecoderShape:
    """A decoder's size, in bytes of its own dtype."""

    layers: int
    heads: int  # of a layer
    keys: int  # keys and values of one token in one layer
    residual: int  # one token's residual stream
    working: int  # of one token while a layer reads it

    @classmethod
    def of(cls, model: PreTrainedModel) -> "DecoderShape":
        """Read the sizes from the config; of a model that processes share, this one's part."""
        config: Any = model.config.get_text_config()
        hidden, size = config.hidden_size, model.dtype.itemsize
        heads = largest(config, "num_attention_heads") or 1
        groups = largest(config, "num_key_value_heads") or heads
        width, read = head_widths(config)
        processes = getattr(model, "_tp_size", None) or 1
        heads, groups = heads // processes, max(1, groups // processes)
        working = RESIDUALS * hidden + QUERIES * heads * width + INNER * inner_size(config)
        keys = groups * (width + read) * size
        return cls(config.num_hidden_layers, heads, keys, hidden * size, working * size)


@dataclass(frozen=True)
class MemorySizes(DecoderShape):
    """What a model takes, in bytes, and what there is."""

    scores: int  # of one token's attention to another, all heads of a layer
    logits: int  # of one read position
    memory: int  # to be used for all of it
    most_rows: int
    most_tokens: int  # of one pass; more make it no faster


@dataclass(frozen=True, slots=True)
class PlanStage:
    """Rows that run in this order, after these prompts have been recorded at these depths.

    One that `waits` begins when all rows before it are done: it starts from their answers.
    """

    rows: tuple[PlannedRow, ...]
    recorded: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do. `prefix[p]` is the number in `prefixes` of prompt p's prefix, None for none.

    `prefix_depths` are where the prefixes' own records can be started from.
    """

    prefixes: tuple[tuple[int, ...], ...]
    prefix: tuple[int | None, ...]
    prefix_depths: tuple[int, ...]
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


def spaced_depths(tokens: int, memory: float, sizes: MemorySizes) -> tuple[int, ...]:
    """Choose depths, evenly apart: as many as the memory for so many tokens' records allows."""
    every = 1
    while every < sizes.layers:
        depths = tuple(range(every, sizes.layers, every))
        if tokens * record_bytes(depths, sizes) <= memory:
            return depths
        every *= 2
    return ()


def record_bytes(depths: Sequence[int], sizes: MemorySizes) -> int:
    """Count a recorded token's bytes: the residual at each depth, and the keys of all layers."""
    return sizes.residual * len(depths) + sizes.keys * sizes.layers


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
        sizes = self.sizes
        each = sizes.working + sizes.logits + sizes.scores * max(self.work.lengths, default=0)
        rest = (1 - RECORDS - KEPT) * sizes.memory
        return max(self.longest, min(sizes.most_tokens, int(rest / each)))

    def plan(self) -> BatchPlan:
        depths, stages = self.prefix_depths(), tuple(self.in_turn())
        recorded = bool(depths) or any(stage.recorded for stage in stages)
        slots = self.slots(recorded)
        return BatchPlan(
            self.prefixes,
            self.prefix,
            depths,
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
        wanted, sizes, tokens = self.work.wanted, self.sizes, self.tokens
        if not wanted:
            return 1
        memory = (KEPT if recorded else KEPT + RECORDS) * sizes.memory
        token, shared = sizes.keys * sizes.layers, max(self.before)
        longest = max(self.own[row.prompt] for row in wanted) + self.work.answers
        each = token * longest + sizes.working + sizes.logits
        each += sizes.scores * (longest + shared)
        # The intact prefix, the one before, and those that one pass reads for several masks.
        several = min(max(shared, tokens), shared * len({row.mask for row in wanted}))
        spare = token * (2 * shared + several)
        readers = Counter((row.mask, self.prefix[row.prompt]) for row in wanted)
        slots, taken = 0, spare
        # At worst the masks that run together are those with fewest rows.
        for count in sorted(readers.values()):
            taken += token * shared
            slots += max(0, min(count, int((memory - taken) / each)))
            taken += count * each
        return max(1, min(sizes.most_rows, slots))

    def prefix_depths(self) -> tuple[int, ...]:
        """Choose depths at which the intact prefixes' residual stream is kept."""
        pairs = {(self.prefix[row.prompt], row.mask) for row in self.work.wanted}
        skipped = sum(self.work.cuts[mask] for number, mask in pairs if number is not None)
        if not self.prefixes or skipped < MARGIN * self.sizes.layers * len(self.prefixes):
            return ()
        return spaced_depths(max(map(len, self.prefixes)), self.memory, self.sizes)

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
                depths = spaced_depths(
                    sum(map(self.recorded_tokens, worth)), self.memory, self.sizes
                )
                rows.sort(key=lambda row: (cuts[row.mask], row.mask, own[row.prompt], row.prompt))
                yield PlanStage(tuple(rows), tuple(sorted(worth)) if depths else (), depths)

    def blocks(self, rows: Iterable[PlannedRow], worth: set[int]) -> Iterator[PlanStage]:
        """Order rows without a prefix: stages of as many prompts as can be recorded."""
        by_prompt: dict[int, list[PlannedRow]] = defaultdict(list)
        for row in rows:
            by_prompt[row.prompt].append(row)
        prompts = sorted(by_prompt, key=lambda prompt: (-self.own[prompt], prompt))
        depths = spaced_depths(max(map(self.recorded_tokens, prompts)), self.memory, self.sizes)
        cuts, own = self.work.cuts, self.own
        while prompts:
            block = self.first_block(prompts, depths)
            prompts = prompts[len(block) :]
            chosen = [row for prompt in block for row in by_prompt[prompt]]
            chosen.sort(key=lambda row: (cuts[row.mask], -own[row.prompt], row.prompt, row.mask))
            recorded = tuple(prompt for prompt in block if prompt in worth) if depths else ()
            yield PlanStage(tuple(chosen), recorded, depths if recorded else ())

    def first_block(self, prompts: Sequence[int], depths: Sequence[int]) -> Sequence[int]:
        """Take as many of the prompts as can be recorded together; at least one."""
        size = 0
        for count, prompt in enumerate(prompts):
            size += self.recorded_tokens(prompt) * record_bytes(depths, self.sizes)
            if count and size > self.memory:
                return prompts[:count]
        return prompts

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
# Vectors alive per token while a layer runs: of the residual stream's size, of all heads' queries
# (rotated, grouped and padded ones among them), and of the feed-forward block's inner size.
RESIDUALS, QUERIES, INNER = 4, 6, 4
# Bytes of one attention weight on its way through a softmax. The CPU's kernel keeps none of them,
# only the bias that says which tokens are read.
SCORES = {"cpu": 4}
SCORES_ELSEWHERE = 12


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
        self.shape = shape = DecoderShape.of(model)
        self.token_bytes = shape.layers * shape.keys + shape.working  # of a row
        # one position's logits, as the model gives them and in float32
        self.scored_bytes = model.config.get_text_config().vocab_size * (model.dtype.itemsize + 4)
        self.caution = 1  # doubled whenever a batch did not fit

    def budget(self) -> int:
        share = CUDA_SHARE if self.device.type == "cuda" else SHARE
        most = self.memory or share * min(free_memory(device) for device in self.devices)
        return int(most / self.caution)

    def sizes(self) -> MemorySizes:
        """Measure what the planner needs."""
        device = self.device.type
        return MemorySizes(
            **vars(self.shape),
            scores=self.shape.heads * SCORES.get(device, SCORES_ELSEWHERE),
            logits=self.scored_bytes,
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
        each = self.token_bytes * max(length, 1) + self.scored_bytes * scored
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


def head_widths(config: Any) -> tuple[int, int]:
    """Count the values of a head's key and of its value, as attention is handed them."""
    plain, rotated = largest(config, "qk_nope_head_dim"), largest(config, "qk_rope_head_dim")
    if plain and rotated:  # latent attention; the config's `head_dim` is of the rotated part alone
        return plain + rotated, largest(config, "v_head_dim") or plain
    heads = largest(config, "num_attention_heads") or 1
    width = largest(config, "head_dim") or config.hidden_size // heads
    return width, width


def model_devices(model: PreTrainedModel) -> list[torch.device]:
    """Find the devices that layers run on; weights that wait elsewhere come to the first."""
    spread = getattr(model, "hf_device_map", None) or {}
    found = {input_device(model)} | {
        torch.device("cuda", where) for where in spread.values() if isinstance(where, int)
    }
    return sorted(found, key=str)


def inner_size(config: Any) -> int:
    """Count one token's values inside a feed-forward block, those of all its experts included."""
    names = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    plain = next((size for name in names if (size := largest(config, name))), 0)
    plain = plain or 4 * config.hidden_size
    expert = largest(config, "moe_intermediate_size") or plain
    return int(max(plain, expert * (largest(config, "num_experts_per_tok") or 0)))


def largest(config: Any, name: str) -> int | None:
    """Return the largest of a size that some configs give for each layer."""
    return max(stated(config, name), default=None)
