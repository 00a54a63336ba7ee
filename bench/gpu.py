"""What a GPU can do at most, to say how much of it a contender uses."""

from statistics import median
from typing import Any

import torch

from caploc.models.loading import LoadedModel
from clock import Stopwatch
from measuring import Timing

SIDE, MULTIPLICATIONS, RUNS = 8192, 20, 5


def check() -> None:
    """Refuse to go on without a CUDA device."""
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device, and torch finds none here.")


def peak() -> float:
    """Measured TFLOP/s of a large bfloat16 matrix product."""
    one = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    two = torch.randn_like(one)
    speeds = []
    for _ in range(RUNS + 1):
        torch.cuda.synchronize()
        watch = Stopwatch()
        for _ in range(MULTIPLICATIONS):
            one @ two
        torch.cuda.synchronize()
        speeds.append(MULTIPLICATIONS * 2 * SIDE**3 / watch.read().wall / 1e12)
    return median(speeds[1:])


def shares(loaded: LoadedModel, timings: dict[str, Timing]) -> dict[str, Any]:
    """The peak, and the share of it that each contender's useful tokens take.

    A token counts 2 operations for each weight of the layers; attention is not counted.
    """
    highest = peak()
    model: Any = loaded.model
    weights = sum(p.numel() for p in model.base_model.parameters())
    weights -= model.get_input_embeddings().weight.numel()
    used = {
        name: 2 * weights * timing.forward_tokens / median(timing.wall) / 1e12 / highest
        for name, timing in timings.items()
    }
    return {"peak": highest, "shares": used}
