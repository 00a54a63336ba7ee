"""What this machine can do, and what a model looks like."""

import os
import platform
from importlib.util import find_spec
from typing import Any

import psutil
import torch

from caploc.declaration import ModelOptions
from caploc.folder import package_versions

GIB = 2**30


def machine_facts() -> dict[str, Any]:
    """Versions, devices and memory, and behind which walls programs are run."""
    from caploc.sandbox import describe_isolation

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        **package_versions(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "memory free, GiB": round(psutil.virtual_memory().available / GIB, 1),
        "CUDA devices": ", ".join(cuda) or "none",
        "MPS": torch.backends.mps.is_available(),
        "Ray": "installed" if find_spec("ray") else "not installed",
        "model-written code": describe_isolation(),
    }


def model_facts(options: ModelOptions) -> dict[str, Any]:
    """Load and prove a model, and say what its grid is; raises UserError if it cannot."""
    options.check()
    loaded = options.engine().loaded
    grid = loaded.grid
    counts = sorted(set(grid.heads_per_layer))
    groups = sorted(set(grid.group_sizes)) or [1]
    return {
        "name": loaded.name,
        "fingerprint": loaded.fingerprint,
        "architecture": type(loaded.model).__name__,
        "parameters": loaded.model.num_parameters(),
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "layers": grid.layers,
        "heads a layer": counts[0] if len(counts) == 1 else list(grid.heads_per_layer),
        "heads": grid.size,
        "query heads a key-value head": groups[0] if len(groups) == 1 else groups,
        "proof": "passed: an empty mask is bit-identical, a cut equals zeroed weights",
        "not covered": ", ".join(loaded.uncovered)
        or "nothing that carries anything between tokens",
    }
