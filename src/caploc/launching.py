"""Whether torchrun, or something like it, started this process as one of several."""

import os

from caploc.errors import BadOption

SIZE = "WORLD_SIZE"
TOLD = ("RANK", "LOCAL_RANK", SIZE, "MASTER_ADDR")  # what torchrun says in the environment
# In the environment: caploc starts vLLM's processes. In a request's extra arguments: what is left
# of the heads that it cuts.
MASKED_VLLM = "CAPLOC_MASKED_VLLM"


def launched() -> bool:
    """Tell whether this process is one of several."""
    return processes() > 1


def processes() -> int:
    """Count the processes that were started; 1 for one by itself.

    Raises BadOption if the environment does not say it in a number.
    """
    if not all(name in os.environ for name in TOLD):
        return 1
    said = os.environ[SIZE]
    try:
        return int(said)
    except ValueError:
        raise BadOption(
            f"{SIZE} is {said!r} in the environment, which is no number of processes; start caploc "
            f"by torchrun, or without {SIZE}."
        ) from None
