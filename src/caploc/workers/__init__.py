"""Workers: replicas of a model in other processes, or one model that several processes share.

Replicas are on one machine or on a cluster, run by Ray. `DistributedEngine` answers asks as an
engine does. It cuts them into groups (`scheduling`: pure), which a pool of workers answers
(`ray_backend`), each with a replica of the model. Workers that score neurons are looked after alike
(`scoring`).

Where processes share one model, the first runs the command, and the others answer with it. The
leader tells JSON: `{"load": ..., "rows": ..., "kept": ...}` has a model loaded and those of other
numbers than `kept` let go, `{"engine": ..., "asks": ...}` has a model answer, and `{"end": true}`
is the last. Everyone runs the same passes, in the same order.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any
from weakref import WeakSet

from caploc.engine import Answer, Ask, BatchEngine
from caploc.errors import CaplocError, RunFailed, UserError
from caploc.models.loading import LoadedModel, load_model
from caploc.models.placement import Team, join_team
from caploc.tasks.task import Generate, LogLikelihood, Request, Rolling
from caploc.workers.distributed import AskBatch, DistributedEngine
from caploc.workers.ray_backend import Workers

__all__ = ["DistributedEngine", "Workers"]

KINDS: dict[str, type[Request]] = {
    kind.__name__: kind for kind in (Generate, LogLikelihood, Rolling)
}
FAILED = 1  # exit code of a process whose leader is gone


class LeadingEngine(BatchEngine[LoadedModel]):
    """Answers asks together with the processes that share its model."""

    alive: "WeakSet[LeadingEngine]" = WeakSet()
    loaded_so_far = 0

    def __init__(self, loading: dict[str, Any], batch_size: int | None) -> None:
        """Load a model in every process; the arguments are those of `load_model`.

        Raises UserError as `load_model`.
        """
        self.team, self.number = join_team(), LeadingEngine.loaded_so_far
        LeadingEngine.loaded_so_far += 1
        kept = [engine.number for engine in LeadingEngine.alive]
        self.team.tell({"load": loading, "rows": batch_size, "kept": kept})
        with Conversation.open(self.team):
            super().__init__(load_model(**loading), batch_size)
        LeadingEngine.alive.add(self)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        asks = list(asks)
        with Conversation.open(self.team):
            self.team.tell({"engine": self.number, "asks": _asks_as_json(asks)})
            yield from super().answer(asks)


class Conversation:
    """Whether the other processes are in the middle of something."""

    broken = False

    @classmethod
    @contextmanager
    def open(cls, team: Team) -> Iterator[None]:
        """Broken from here on, unless the block ends in order: all processes refuse alike.

        Raises RunFailed if it is broken: the others are still inside an earlier pass.
        """
        if cls.broken:
            raise RunFailed(
                "The processes that share the model have lost step, since one failed in the middle "
                "of an answer; what was measured is kept. Run the same command again."
            )
        cls.broken, team.waiting = True, False
        try:
            yield
            cls.broken = False
        except UserError:
            cls.broken = False
            raise
        finally:
            team.waiting = True


@contextmanager
def is_leader() -> Iterator[bool]:
    """Whether this process runs the command; one that follows answers until the leader ends."""
    team = join_team()
    if not team.leads:
        follow_leader(team)
        team.part()
        yield False
        return
    team.waiting = True
    try:
        yield True
    except SystemExit as stopped:
        if Conversation.broken:  # the others wait inside a pass, and hear nothing
            _leave(stopped.code if isinstance(stopped.code, int) else FAILED)
        raise
    finally:
        if not Conversation.broken:
            team.tell({"end": True})
            team.part()


def follow_leader(team: Team) -> None:
    """Load what the leader loads and answer what it is asked, until it ends."""
    engines: dict[int, BatchEngine[LoadedModel]] = {}
    number = 0
    while "end" not in (told := _hear(team)):
        if "load" in told:
            for gone in set(engines) - set(told["kept"]):
                del engines[gone]
            with suppress(CaplocError):  # as the leader's own, which says so
                engines[number] = BatchEngine(load_model(**told["load"]), told["rows"])
            number += 1
        else:
            for _ in engines[told["engine"]].answer(_asks_from_json(told["asks"])):
                pass


def _asks_as_json(asks: Sequence[Ask]) -> dict[str, Any]:
    """Write asks as JSON: each text and each mask once."""
    bundle = AskBatch.of(asks)
    return {
        "requests": [[type(text).__name__, asdict(text)] for text in bundle.requests],
        "masks": [bits.hex() for bits in bundle.masks],
        "parts": bundle.parts,
        "asked": bundle.asked,
    }


def _asks_from_json(told: dict[str, Any]) -> list[Ask]:
    return AskBatch(
        tuple(KINDS[name](**fields) for name, fields in told["requests"]),
        tuple(bytes.fromhex(bits) for bits in told["masks"]),
        told["parts"],
        # every source is None: reading one takes all heads in one process
        tuple(((key[0], key[1]), text, mask, 0) for key, text, mask, _ in told["asked"]),
    ).asks()


def _hear(team: Team) -> dict[str, Any]:
    try:
        message: dict[str, Any] = team.hear()
    except (RuntimeError, KeyboardInterrupt):  # the connection to the leader is gone
        _leave(FAILED)
        raise
    return message


def _leave(code: int) -> None:
    """End without the usual clean-up, which would wait for processes that wait themselves."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
