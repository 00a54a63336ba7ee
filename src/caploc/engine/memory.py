"""Memory: what there is, what a model takes of it, and what to do when it was too little."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from transformers import PreTrainedModel

from caploc.engine.planning import MemorySizes
from caploc.errors import OutOfMemory
from caploc.models.placement import Team, free_memory, input_device
from caploc.models.projections import stated

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
        team: Team | None = None,
    ) -> None:
        """Size for this model; `rows` and `memory` (bytes beside the weights) set limits.

        Of a `team` that shares the model, the process with least memory decides.
        """
        self.model, self.memory, self.team = model, memory, team
        self.devices = model_devices(model)
        self.device = input_device(model)
        self.most = rows or MOST_ROWS.get(self.device.type, 64)
        shape = DecoderShape.of(model)
        self.token_bytes = shape.layers * shape.keys + shape.working  # of a row
        self.scored_bytes = bytes_per_scored_token(model)
        self.caution = 1  # doubled whenever a batch did not fit

    def budget(self) -> int:
        share = CUDA_SHARE if self.device.type == "cuda" else SHARE
        most = self.memory or share * min(free_memory(device) for device in self.devices)
        return int((self.team.least(float(most)) if self.team else most) / self.caution)

    def sizes(self, drafted: int = 0) -> MemorySizes:
        """Measure what the planner needs; a step drafts at most so many tokens for a row."""
        shape, device = DecoderShape.of(self.model), self.device.type
        return MemorySizes(
            layers=shape.layers,
            keys=shape.keys,
            residual=shape.residual,
            working=shape.working,
            scores=shape.heads * SCORES.get(device, SCORES_ELSEWHERE),
            logits=bytes_per_scored_token(self.model),
            memory=self.budget(),
            most_rows=self.most,
            most_tokens=self.most_tokens(),
            drafted=drafted,
            alone=PASS.get(device, PASS_ELSEWHERE),
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

    def batches(
        self, items: Sequence[T], size: Callable[[T], tuple[int, int]]
    ) -> Iterator[list[T]]:
        """Cut `items`, longest first, into batches; the size is asked anew for each.

        `size` gives an item's tokens, and how many of them keep their logits.
        """
        done = 0
        while done < len(items):
            batch = list(items[done : done + self.rows(*size(items[done]))])
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
        if self.team is not None:  # the others do not know, and wait for this one
            raise OutOfMemory(
                f"A batch did not fit into the memory of process {self.team.rank}; start again "
                f"with fewer rows at a time (--batch-size {max(1, self.most // 4)})."
            ) from error
        if smallest or not self.budget():  # nothing is left to halve
            raise OutOfMemory(
                f"Not even one row fits into the memory of {self.device}; use a smaller "
                "dtype (--dtype bfloat16), fewer examples in the prompt, or a larger device."
            ) from error
        self.caution *= 2


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


def bytes_per_scored_token(model: PreTrainedModel) -> int:
    """Count the bytes of one position's logits, as the model gives them and in float32."""
    return int(model.config.get_text_config().vocab_size) * (model.dtype.itemsize + 4)
