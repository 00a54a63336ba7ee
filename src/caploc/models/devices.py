"""The devices of this machine, by their names."""

import torch

from caploc.errors import BadOption

SPREAD = "spread"  # over all of them, then main memory, then disk


def pick_device(name: str) -> torch.device:
    """Return the device of that name; auto is CUDA, else MPS, else CPU."""
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    present[:0] = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if name == "auto":
        return torch.device(present[0])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in present:
        raise BadOption(
            f"There is no device {name!r} here; choose auto, {', '.join(present)} or {SPREAD} "
            "(over all of them)."
        )
    return torch.device(wanted)
