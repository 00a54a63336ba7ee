"""transformers' continuous batching with a mask for every request: paged keys, shared by mask.

A step is one packed sequence of tokens of many requests. Each token carries the number of its
request's mask, and the packed engine's own hooks cut by the row of a table. Blocks of keys are
found again by what they hold; here also by the mask that they were computed under.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from hashlib import blake2b
from operator import or_
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from caploc.engine.asks import Answer, Ask, MaskNumbers, NumberedMask
from caploc.engine.encoding import Settings, Stops, TokenizedPrompt, group_prompts
from caploc.engine.memory import BatchSizer, DecoderShape
from caploc.engine.packed import tabulate_left
from caploc.engine.plain import moves_rotary
from caploc.engine.proving import Continued, Limit, ProvenBackend, gives_plain_tokens
from caploc.errors import OutOfMemory, RunFailed
from caploc.models.cutting import MaskTable, PackedCut
from caploc.models.loading import CutModel
from caploc.tasks.task import Generate, Generated

try:
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache_allocators import cache_allocator
except ImportError:  # an older transformers keeps blocks otherwise
    cache_allocator = None  # type: ignore[assignment]

PAGED = "paged"
NO_LIKELIHOOD = "continues texts, and gives no log-probabilities of given ones"
PAGE, GPU_PAGE = 16, 256  # tokens of a block; flash attention reads blocks of 256
# Without flash attention each token of a step is held against all keys of the step, so that more
# of them cost more than the passes they save.
MOST_KEYS, PASS_TOKENS = 2048, 512
GPU_SHARE = 0.85  # of the free memory, for keys


def missing_api() -> str | None:
    """Say what is missing of transformers, as the end of a sentence; None if nothing is."""
    if cache_allocator is not None:
        return None
    return f"needs transformers 5.23 or later, and {transformers.__version__} is installed"


@contextmanager
def salted(salt: int) -> Iterator[None]:
    """Make the first block of a sequence the child of a block of this number, for a block."""
    plain = cache_allocator.compute_block_hash

    def compute(parent_hash: int | None, tokens: list[int]) -> int:
        return int(plain(salt if parent_hash is None else parent_hash, tokens))

    cache_allocator.compute_block_hash = compute
    try:
        yield
    finally:
        cache_allocator.compute_block_hash = plain


def salt_blocks(cache: Any, salt: Callable[[str], int]) -> None:
    """Have a cache share blocks only among requests of one salt, by the request's id."""
    search, mark = cache.search_prefix_match, cache.mark_complete_blocks

    def search_salted(request_id: str, prompt_ids: list[int]) -> int:
        with salted(salt(request_id)):
            return int(search(request_id, prompt_ids))

    def mark_salted(state: Any, complete_blocks: dict[str, int]) -> None:
        with salted(salt(state.request_id)):
            mark(state, complete_blocks)

    cache.search_prefix_match, cache.mark_complete_blocks = search_salted, mark_salted


def salt_of(mask: NumberedMask) -> int:
    """Number a mask by a digest of what it knocks out, in 64 bits."""
    return int.from_bytes(blake2b(mask.heads.numpy().tobytes(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class PagedRow:
    """A text to continue under the mask of a number, until `stops` says that it is over."""

    tokens: tuple[int, ...]
    mask: int
    stops: Stops | Limit

    @property
    def place(self) -> tuple[int, tuple[int, ...]]:
        """Where it stands in the queue."""
        return self.mask, self.tokens


@dataclass
class PagedRun:
    """Continues rows, all in one cache of paged keys that is gone afterwards."""

    loaded: CutModel
    sizer: BatchSizer
    rows: Sequence[PagedRow]
    masks: Sequence[NumberedMask]
    shares: bool  # blocks of keys, among rows of one mask
    salts: bool  # and not with those of other masks
    logprobs: bool = False  # whether those of the tokens said are wanted
    cost: list[int] = field(init=False)  # tokens run for each row

    def __post_init__(self) -> None:
        self.cost = [0] * len(self.rows)
        left = tabulate_left(self.masks, self.loaded.model.dtype)
        self.table = MaskTable(left.to(self.loaded.device))
        self.layers = reduce(or_, (mask.layers for mask in self.masks), 0)

    def run(self) -> Iterator[list[tuple[int, Continued]]]:
        """Yield numbers of rows that are over, with what they said, after each step."""
        model: Any = self.loaded.model
        usual = model.config._attn_implementation
        cut = PackedCut(self.loaded.projections, self.loaded.grid)
        try:
            processor = self.processor()
            still_open = len(self.rows)
            while still_open:
                done = self.step(processor, cut)
                still_open -= len(done)
                yield done
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise OutOfMemory(
                f"The keys of {self.sizer.most} rows do not fit into the memory of "
                f"{self.loaded.device}; start again with fewer (--batch-size "
                f"{max(1, self.sizer.most // 4)}), or with --engine packed."
            ) from error
        finally:
            cut.remove()
            if model.config._attn_implementation != usual:
                model.set_attn_implementation(usual)

    def processor(self) -> Any:
        """Make transformers ready to run the rows, which wait in its queue, step by step."""
        model: Any = self.loaded.model
        manager = model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0), self.config()
        )
        processor = manager._create_batch_processor()
        manager.batch_processor = processor
        salts = [salt_of(mask) if self.salts else 0 for mask in self.masks]
        salt_blocks(processor.cache, lambda number: salts[self.rows[int(number)].mask])
        # one mask after another, so that a mask's blocks are still there for its other rows
        for number, row in sorted(enumerate(self.rows), key=lambda each: each[1].place):
            manager.add_request(
                list(row.tokens), request_id=str(number), max_new_tokens=row.stops.limit
            )
        size = processor.cache.max_batch_tokens
        # its address stays, so that a captured graph that is run again reads this step's owners
        self.owners = torch.zeros(size, dtype=torch.long, device=self.loaded.device)
        return processor

    def config(self) -> "ContinuousBatchingConfig":
        """Size the cache: on a GPU by its free memory, elsewhere by the rows."""
        device, half = self.loaded.device.type, self.loaded.model.dtype.itemsize == 2
        same: dict[str, Any] = {
            "allow_block_sharing": self.shares,
            "max_requests_per_batch": self.sizer.most,
            # two steps under way would write their owners into one place
            "use_async_batching": False,
            "return_logprobs": self.logprobs,
        }
        if device == "cuda":
            return ContinuousBatchingConfig(
                page_size=GPU_PAGE,
                max_memory_percent=GPU_SHARE,
                auto_switch_to_flash=half,
                **same,
            )
        lengths = [len(row.tokens) + row.stops.limit for row in self.rows]
        shape = DecoderShape.of(self.loaded.model)
        fit = self.sizer.budget() // (shape.layers * shape.keys)
        keys = max(2 * max(lengths), min(sum(lengths), MOST_KEYS, fit))
        return ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=math.ceil(keys / PAGE) + len(lengths),
            max_batch_tokens=PASS_TOKENS,
            auto_switch_to_flash=False,
            **same,
        )

    @torch.inference_mode()
    def step(self, processor: Any, cut: PackedCut) -> list[tuple[int, Continued]]:
        """Run one step; return the rows that it ended."""
        if not processor.prepare_next_batch():
            raise RunFailed(
                "transformers' continuous batching has nothing to run, and rows are open; take "
                "--engine packed."
            )
        io = processor.inputs_and_outputs
        batch = list(io.requests_in_batch)
        owners: list[int] = []
        for each in batch:
            number = int(each.state.request_id)
            self.cost[number] += each.query_length
            owners += [self.rows[number].mask] * each.query_length
        self.owners[: len(owners)] = torch.tensor(owners, device=self.owners.device)
        own = self.owners[: io.num_q_tokens]  # a captured graph pads
        with cut.cutting(self.table, own, own, self.layers):
            processor._generation_step(self.loaded.model)
        processor.update_batch()
        said = [each for each in batch if each.has_new_token]
        return [over for each in said for over in self.ended(processor, each)]

    def ended(self, processor: Any, each: Any) -> Iterator[tuple[int, Continued]]:
        """Take a row off whose last token ended it."""
        state, number = each.state, int(each.state.request_id)
        row = self.rows[number]
        # a request that had to make room goes on as a longer prompt
        said = [*state.initial_tokens, *state.generated_tokens][len(row.tokens) :]
        if row.stops.over(said):
            processor.scheduler.finish_request(state.request_id)
            yield number, Continued(said, list(state.logprobs))


class PagedBackend(ProvenBackend):
    """Continues texts greedily, each under its mask, by transformers' continuous batching."""

    name = PAGED

    @cached_property
    def trouble(self) -> str | None:
        """Say why it does not serve this model, as the end of a sentence; None if it does."""
        if missing := missing_api():
            return missing
        if self.loaded.team is not None:
            return "answers in one process, and several share the model"
        if moves_rotary(self.loaded.model):
            return "does not know rotary positions that depend on the longest row"
        if not self.loaded.model._can_set_attn_implementation():
            return "cannot exchange this model's attention"
        page = GPU_PAGE if self.loaded.device.type == "cuda" else PAGE
        return gives_plain_tokens(self.loaded, self.continued, page)

    def continued(
        self, prompts: Sequence[tuple[int, ...]], masks: MaskNumbers, numbers: Sequence[int]
    ) -> list[Continued]:
        """Continue prompts by a few tokens, each under its mask, with their log-probabilities."""
        rows = [PagedRow(*pair, Limit()) for pair in zip(prompts, numbers, strict=True)]
        run = self.run(rows, masks, logprobs=True)
        found = dict(over for batch in run.run() for over in batch)
        return [found[number] for number in range(len(rows))]

    def run(self, rows: Sequence[PagedRow], masks: MaskNumbers, logprobs: bool = False) -> PagedRun:
        """Be ready to continue rows, each under the mask of its number."""
        kept = self.shares, self.salts
        return PagedRun(self.loaded, self.sizer, rows, masks.all, *kept, logprobs)

    def refusal(self, ask: Ask) -> str | None:
        if not isinstance(ask.request, Generate):
            return NO_LIKELIHOOD
        return super().refusal(ask)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; the seconds are left for others to fill in."""
        masks = MaskNumbers(self.grid)
        asked: dict[tuple[Settings, TokenizedPrompt, int], list[Ask]] = {}
        for settings, members in group_prompts(self.encoder, list(asks)).items():
            for ask, prompt in members:
                key = settings, prompt, masks.number(ask.knocked_out)
                asked.setdefault(key, []).append(ask)
        rows = [
            PagedRow(prompt.tokens, mask, self.stopping(settings))
            for settings, prompt, mask in asked
        ]
        every = list(asked.items())
        run = self.run(rows, masks)
        for batch in run.run() if rows else ():
            answers: list[Answer] = []
            for number, said in batch:
                (_, prompt, _), askers = every[number]
                text = self.encoder.cut(said.tokens, prompt.stops)
                response = Generated(text, len(said.tokens))
                cost, alone = run.cost[number] / len(askers), len(prompt.tokens) + len(said.tokens)
                answers += [Answer(ask.key, response, 0.0, cost, alone) for ask in askers]
            yield answers
