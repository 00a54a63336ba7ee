"""vLLM's side of `--engine vllm`: each request of a batch under a head mask of its own.

vLLM loads this in every process that it starts (entry point `vllm.general_plugins`). What attention
hands to its output projection is multiplied by a table's row of the token's request. Table and
owners keep their addresses, and the cut is an operation that neither torch.compile nor a captured
graph looks into; both read what was written before the step. It leans on the insides of vLLM 0.32.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from caploc.process import MASKED_VLLM

Cut = frozenset[tuple[int, int]]  # (layer, head) of each head knocked out


class MaskBoard:
    """Which token of the flat batch belongs to which mask, and what each mask leaves of each head.

    A process of tensor parallelism has the heads from `first` on. Row 0 of a table cuts nothing.
    """

    def __init__(self, requests: int, tokens: int) -> None:
        # on the device that models are built on
        self.owner = torch.zeros(tokens, dtype=torch.int32)
        self.requests = requests
        self.tables: dict[int, tuple[int, torch.Tensor]] = {}  # layer -> (first head, table)
        self.free, self.rows = list(range(1, requests + 1)), dict[Cut, int]()

    def add_layer(self, layer: int, first: int, heads: int) -> None:
        self.tables[layer] = first, torch.ones(self.requests + 1, heads)

    def row(self, mask: Cut, needed: set[Cut]) -> int:
        """Return a mask's row; it takes that of one not needed if all are taken."""
        if not mask:
            return 0
        if mask not in self.rows:
            if not self.free:  # as many rows as a step has requests, so one is not needed
                self.free.append(self.rows.pop(next(m for m in self.rows if m not in needed)))
            self.rows[mask] = row = self.free.pop()
            for layer, (first, table) in self.tables.items():
                left = np.ones(table.shape[1], dtype=np.float32)
                for cut, head in mask:
                    if cut == layer and 0 <= head - first < len(left):
                        left[head - first] = 0.0
                table[row].copy_(torch.from_numpy(left))
        return self.rows[mask]

    def assign(self, masks: Sequence[Cut], counts: Any) -> None:
        """Take the masks of a batch's requests in its order, and how many tokens each has in it."""
        needed = set(masks)
        owner = np.repeat([self.row(mask, needed) for mask in masks], counts).astype(np.int32)
        self.owner[: len(owner)].copy_(torch.from_numpy(owner))
        self.owner[len(owner) :].zero_()  # what pads a captured graph's batch

    def cut(self, mixed: torch.Tensor, layer: int) -> torch.Tensor:
        """Multiply what heads hand on, tokens by all heads' values, by what is left of them."""
        left = self.tables[layer][1].index_select(0, self.owner[: mixed.shape[0]])
        per_head = mixed.view(*left.shape, -1) * left.unsqueeze(-1).to(mixed.dtype)
        return per_head.view(mixed.shape)


boards = list[MaskBoard]()  # this process's, once a model is built


def mask_in(params: Any) -> Cut:
    """Read what a request brings."""
    brought = (params and params.extra_args and params.extra_args.get(MASKED_VLLM)) or ()
    return frozenset((int(layer), int(head)) for layer, head in brought)


def register() -> None:
    """Change vLLM in this process, if caploc started it; else leave it alone."""
    if os.environ.get(MASKED_VLLM) is None:
        return
    from vllm.model_executor.layers.attention import Attention

    if hasattr(Attention, MASKED_VLLM):
        return
    setattr(Attention, MASKED_VLLM, True)
    _cut_attention(Attention)
    _tell_compile_cache()
    _follow_batches()


def _cut_attention(attention: Any) -> None:
    """Have each attention layer hand on what the masks leave."""
    from vllm.config import get_current_vllm_config
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.models.utils import extract_layer_index

    @torch.library.custom_op("caploc::cut", mutates_args=())
    def cut(mixed: torch.Tensor, layer: int) -> torch.Tensor:
        return boards[0].cut(mixed, layer)

    cut.register_fake(lambda mixed, layer: torch.empty_like(mixed))
    build, forward = attention.__init__, attention.forward

    def build_masked(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        limits = get_current_vllm_config().scheduler_config
        if not boards:
            boards.append(MaskBoard(limits.max_num_seqs, limits.max_num_batched_tokens))
        self.number = extract_layer_index(self.layer_name)
        # `num_heads` are this process's
        first = get_tensor_model_parallel_rank() * self.num_heads
        boards[0].add_layer(self.number, first, self.num_heads)

    def forward_masked(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        handed: torch.Tensor = torch.ops.caploc.cut(forward(self, *args, **kwargs), self.number)
        return handed

    attention.__init__, attention.forward = build_masked, forward_masked


def _tell_compile_cache() -> None:
    """Keep compiled graphs with the cut apart from those without: their cache knows no plugins."""
    from vllm.config import VllmConfig

    plain: Any = VllmConfig.compute_hash

    def compute_hash(self: Any) -> str:
        return hashlib.sha256((plain(self) + MASKED_VLLM).encode()).hexdigest()[:10]

    VllmConfig.compute_hash = compute_hash


def _follow_batches() -> None:
    """Assign masks where either of vLLM's model runners lays out the flat batch."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as NewRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as OldRunner

    old: Any = OldRunner
    new: Any = NewRunner
    prepare_old, add, prepare_new = old._prepare_inputs, new.add_requests, new.prepare_inputs

    def prepare_old_masked(self: Any, scheduler_output: Any, counts: Any) -> Any:
        requests = [self.requests[number] for number in self.input_batch.req_ids]
        boards[0].assign([mask_in(each.sampling_params) for each in requests], counts)
        return prepare_old(self, scheduler_output, counts)

    def add_masked(self: Any, scheduler_output: Any) -> None:
        add(self, scheduler_output)
        masks = getattr(self, MASKED_VLLM, {})  # it keeps no parameters of requests
        masks |= {r.req_id: mask_in(r.sampling_params) for r in scheduler_output.scheduled_new_reqs}
        known = self.req_states.req_id_to_index
        setattr(self, MASKED_VLLM, {number: m for number, m in masks.items() if number in known})

    def prepare_new_masked(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = prepare_new(self, *args, **kwargs)  # which has an order of its own
        counts = np.diff(batch.query_start_loc_np[: batch.num_reqs + 1])
        masks = getattr(self, MASKED_VLLM)
        boards[0].assign([masks[number] for number in batch.req_ids], counts)
        return batch

    old._prepare_inputs = prepare_old_masked
    new.add_requests, new.prepare_inputs = add_masked, prepare_new_masked
