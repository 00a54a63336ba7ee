"""Which engines there are, who answers first, and who takes what that one cannot."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from caploc.engine.asks import Ask, Engine, Way
from caploc.engine.paged import PAGED, missing_api
from caploc.engine.vllm import VLLM, missing_vllm
from caploc.errors import BadOption
from caploc.lookup import pick

AUTO, PACKED, PLAIN = "auto", "packed", "plain"
# An engine to ask for, and the backends it stands for, in their order.
ENGINES: dict[str, tuple[str, ...]] = {
    AUTO: (PACKED, PAGED, PLAIN),
    PACKED: (PACKED, PLAIN),
    PAGED: (PAGED, PACKED, PLAIN),
    VLLM: (VLLM, PACKED, PLAIN),
}
GPU_ONLY = (PAGED,)  # which auto leaves out on a CPU, where attention without a mask is slow
SLOW = {PLAIN: ", transformers' generate on padded rows, which shares nothing and is slower"}


class Backend(Engine, Protocol):
    """An engine among several; what it refuses goes to the next."""

    @property
    def name(self) -> str: ...

    def refusal(self, ask: Ask) -> str | None:
        """Say why it cannot answer this, as the end of a sentence; None if it can."""


@runtime_checkable
class Expectant(Engine, Protocol):
    """An engine that can answer beforehand what will probably be asked."""

    def expect(self, asks: Sequence[Ask]) -> None:
        """Have these answered, where there is room, beside those that are asked next."""


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
    if (missing := missing_api() if first == PAGED else missing_vllm()) is not None:
        raise BadOption(f"--engine {name} {missing}; install that, or take --engine {PACKED}.")


def backend_names(name: str, device: str) -> list[str]:
    """List the backends of an engine on a kind of device, in their order."""
    found = pick(ENGINES, name, "engine")
    return [each for each in found if name != AUTO or device != "cpu" or each not in GPU_ONLY]


def route(backends: list[Backend], ask: Ask, why: str) -> tuple[int, str]:
    """Find the first backend that can answer, and say why it is that one.

    The last must refuse nothing.
    """
    refusals = list[str]()
    for number, backend in enumerate(backends):
        refusal = backend.refusal(ask)
        if refusal is None:
            return number, "; ".join(refusals) or why
        refusals.append(f"{backend.name} {refusal}")
    raise AssertionError(refusals)


def describe_way(way: Way) -> str:
    """Say who answers and why, in a line."""
    return f"Engine {way.engine}{SLOW.get(way.engine, '')}: {way.why}."
