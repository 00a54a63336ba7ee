"""A LoRA adapter that takes heads out: it adds, negated, what their columns write.

With the projection's weight `W` and the cut columns `c`, `B = -W[:, c]` and `A` picks the values
that those columns read, so that `W + B A` is `W` with the columns at zero: exactly, once merged
into weights of the dtype that it was made from. Unmerged, what the columns write is computed twice
and subtracted, and rounding shows. The rank of a layer is its number of cut columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from caploc.errors import BadOption
from caploc.export.weights import Projection

try:
    import peft
except ImportError:  # an extra
    peft = None  # type: ignore[assignment]

ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Size:
    """What an adapter weighs: its largest rank, its bytes, and those of what it adapts."""

    rank: int
    bytes: int
    adapted: int


def check_peft() -> None:
    """Refuse adapters where PEFT is not installed.

    Raises:
        BadOption: if it is not.
    """
    if peft is None:
        raise BadOption("--as lora needs PEFT, which is not installed: pip install 'caploc[peft]'.")


def write_adapter(target: Path, projections: Sequence[Projection], base: str) -> Size:
    """Write the adapter's config and weights; `base` names the model it is for.

    Raises:
        BadOption: if it would be larger than the projections themselves.
    """
    size = size_of(projections)
    if size.bytes > size.adapted:
        raise BadOption(
            f"The adapter would be larger than the projections it changes ({size.bytes:,} against "
            f"{size.adapted:,} bytes): so many heads of a layer are cut that its rank is "
            f"{size.rank}. Use --as checkpoint."
        )
    tensors = {}
    for each in projections:
        name = f"base_model.model.{each.name}"
        tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = factors(each)
    save_file(tensors, target / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config_of(projections, base).save_pretrained(str(target))
    return size


def factors(projection: Projection) -> tuple[torch.Tensor, torch.Tensor]:
    """`A` of shape (rank, reads) and `B` of shape (writes, rank), in the weight's dtype."""
    weight = projection.weight.detach().cpu()
    by_reads = weight if projection.reads_first else weight.T
    cut = torch.from_numpy(projection.cut)
    chosen = cut.nonzero().flatten()
    selector = torch.zeros(len(chosen), len(cut), dtype=weight.dtype)
    selector[torch.arange(len(chosen)), chosen] = 1
    return selector, -by_reads[cut].T.contiguous()


def config_of(projections: Sequence[Projection], base: str) -> Any:
    """PEFT's config: every projection by its full name, with a rank of its own and scale 1."""
    ranks = {each.name: int(each.cut.sum()) for each in projections}
    first = next(iter(ranks.values()))
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        r=first,
        lora_alpha=first,
        rank_pattern=ranks,
        alpha_pattern=ranks,
        target_modules=list(ranks),
        fan_in_fan_out=any(each.reads_first for each in projections),
        inference_mode=True,
    )


def size_of(projections: Sequence[Projection]) -> Size:
    """What the adapter of these projections weighs."""
    ranks = [int(each.cut.sum()) for each in projections]
    own = adapted = 0
    for rank, each in zip(ranks, projections, strict=True):
        weight = each.weight
        own += rank * sum(weight.shape) * weight.element_size()
        adapted += weight.numel() * weight.element_size()
    return Size(max(ranks), own, adapted)
