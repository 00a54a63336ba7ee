"""The crew on Ray: an actor for every worker. Ray decides where each one runs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from caploc.engine import Ask
from caploc.errors import BadOption, RunFailed
from caploc.tasks.requests import Request
from caploc.workers.bundle import Bundle
from caploc.workers.connection import Connection, connect, first_line
from caploc.workers.crew import Done, Event, Joined, Lost, Refusal, Some
from caploc.workers.options import Workers
from caploc.workers.replica import Recipe, Replica

A_SECOND = 32  # lists of answers that the driver takes in a second; each worker sends one at most
ASKED = 600.0  # seconds that a worker may take for a question that no row depends on


@dataclass(frozen=True)
class Need:
    """What Ray reserves for one worker."""

    cpus: int
    gpus: float

    def fits(self, node: dict[str, Any]) -> int:
        """Workers that a node has room for."""
        has = node["Resources"]
        rooms = [has.get("CPU", 0) // self.cpus]
        if self.gpus:
            cards = has.get("GPU", 0)
            # several workers may share a card, but none may lie on two halves
            sharing = int(1 / self.gpus + 1e-9)  # ten of a tenth: 1 // 0.1 is 9
            rooms.append(cards * sharing if self.gpus < 1 else cards // self.gpus)
        return int(min(rooms))


@dataclass
class Hand:
    """A worker: its actor, the id of its node once it has loaded, and the call that is out."""

    actor: Any
    node: str | None = None
    group: int = 0

    @property
    def loading(self) -> bool:
        """Whether it has not said yet that it has its model."""
        return self.node is None


@dataclass
class RayCrew:
    """Workers on Ray. With a count there are so many; else as many as the nodes have room for."""

    workers: Workers
    recipe: Recipe
    device: str = "auto"
    replica: type[Replica] = Replica
    connection: Connection = field(init=False)
    need: Need = field(init=False)
    hands: dict[int, Hand] = field(default_factory=dict)
    calls: dict[Any, int] = field(default_factory=dict)  # what is out, by its reference
    numbers: "count[int]" = field(default_factory=lambda: count(1))
    away: list[int] = field(default_factory=list)  # whose nodes are dead, and it was not said yet
    barred: int = 0

    def __post_init__(self) -> None:
        """Connect.

        Raises:
            BadOption: if there is no cluster, or none of its nodes has room for a worker.
        """
        self.connection = connect(self.workers)
        try:
            self.need = self.needed()
            self.check_room()
            recipe = Recipe(self.recipe.loading, self.recipe.batch_size, self.need.cpus)
            self.actors = self.connection.ray.remote(self.replica)
            self.shared = self.connection.ray.put(recipe)
        except BaseException:
            self.connection.close()
            raise

    def needed(self) -> Need:
        """What a worker gets: GPUs where the cluster has some, else the cores of its threads.

        A worker without GPUs has all cores of the smallest node, or its part of this machine's.
        """
        nodes = self.connection.nodes
        cards = any(node["Resources"].get("GPU") for node in nodes) and self.device != "cpu"
        if self.device == "cuda" and not cards:
            raise BadOption(
                "--device cuda: no node of the Ray cluster has a GPU; choose auto or cpu."
            )
        cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        least = min((c for c in cores if c), default=1)
        if self.workers.place is None and self.workers.count:
            least = max(1, least // self.workers.count)
        usual = 1 if cards else least
        return Need(self.workers.cpus or usual, self.workers.gpus if cards else 0.0)

    def check_room(self) -> None:
        """Refuse a cluster that has no room for a single worker.

        With a count there may be nodes to come: a cluster that grows is told by its waiting actors.

        Raises:
            BadOption: if there is none.
        """
        if self.workers.count is None and not self.expected:
            gpus = f" and {self.need.gpus:g} GPUs" if self.need.gpus else ""
            raise BadOption(
                f"No node of the Ray cluster has the {self.need.cpus} CPU cores{gpus} that a "
                "worker takes; choose a smaller --cpus-per-worker or --gpus-per-worker, or give "
                "--workers a number if the cluster grows by itself."
            )

    @property
    def expected(self) -> int:
        """How many workers there should be."""
        if self.workers.count is not None:
            return max(1, self.workers.count - self.barred)
        return sum(map(self.need.fits, self.connection.nodes)) - self.barred

    def refresh(self) -> None:
        """Start the workers that are missing; let go of waiting ones that have lost their place.

        Ray says when a worker dies that was asked something. Those that were asked nothing are
        missed here.
        """
        alive = {node["NodeID"] for node in self.connection.nodes}
        self.away = [
            number for number, hand in self.hands.items() if hand.node and hand.node not in alive
        ]
        wanted, there = self.expected, len(self.hands) - len(self.away)
        for _ in range(wanted - there):
            self.hire()
        waiting = [number for number, hand in self.hands.items() if hand.loading]
        for number in waiting[::-1][: max(0, there - max(1, wanted))]:
            self.dismiss(number)

    def hire(self) -> None:
        """Start a worker, wherever Ray finds room, and have it load the model."""
        actor = self.actors.options(
            num_cpus=self.need.cpus, num_gpus=self.need.gpus, scheduling_strategy="SPREAD"
        ).remote(self.shared)
        number = next(self.numbers)
        self.hands[number] = Hand(actor)
        self.calls[actor.load.remote()] = number

    def give(self, worker: int, group: int, asks: Sequence[Ask]) -> None:
        """Have a worker answer a group."""
        hand = self.hands[worker]
        hand.group = group
        # a stream: what is answered is kept, whatever becomes of the worker
        stream = hand.actor.answer.options(num_returns="streaming").remote(
            Bundle.of(asks), max(1.0, len(self.hands) / A_SECOND)
        )
        self.calls[stream] = worker

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        """`BatchEngine.shared_tokens`, by a worker.

        Raises:
            RunFailed: if the worker dies or hangs; it is let go of.
        """
        ray = self.connection.ray
        try:
            call = self.hands[worker].actor.shared_tokens.remote(list(requests))
            found = ray.get(call, timeout=ASKED)
        except ray.exceptions.RayError as error:
            self.dismiss(worker)
            raise RunFailed(self.reason(error)) from None
        if isinstance(found, Refusal):
            raise found.error()
        return float(found)

    def events(self, seconds: float) -> list[Event]:
        """What happened; waits so long for something to happen."""
        if away := [number for number in self.away if number in self.hands]:
            for worker in away:
                self.dismiss(worker)
            return [Lost(worker, "its node died") for worker in away]
        calls = list(self.calls)
        if not calls:  # Ray would not wait for nothing
            time.sleep(seconds)
            return []
        # Everything that is there is taken, not the first alone: with many workers there are many.
        ray = self.connection.ray
        ready, _ = ray.wait(calls, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return [self.event(call) for call in ready]

    def event(self, call: Any) -> Event:
        """What a call that has something to say says."""
        worker = self.calls[call]
        hand, ray = self.hands[worker], self.connection.ray
        try:
            if hand.loading:
                identity, hand.node = ray.get(call)
                del self.calls[call]
                return Joined(worker, self.connection.name(hand.node), identity)
            found = ray.get(next(call))
        except StopIteration:
            del self.calls[call]
            return Done(worker, hand.group)
        except ray.exceptions.RayError as error:
            # Whatever went wrong, the process may not be sound any more.
            self.dismiss(worker)
            return Lost(worker, self.reason(error))
        if isinstance(found, Refusal):
            del self.calls[call]
            return Done(worker, hand.group, found)
        return Some(worker, hand.group, found)

    def reason(self, error: Exception) -> str:
        """Why a worker is gone, as the end of a sentence."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, BaseException):
            return f"it raised {type(cause).__name__} ({first_line(cause)})"
        if isinstance(error, self.connection.ray.exceptions.OutOfMemoryError):
            return "its node ran out of memory"
        if isinstance(error, self.connection.ray.exceptions.GetTimeoutError):
            return f"it did not answer within {ASKED:.0f} s"
        return "its process or its node died"

    def dismiss(self, worker: int) -> None:
        """Kill a worker, whatever it does; nothing more is heard of it."""
        hand = self.hands.pop(worker, None)
        if hand is None:
            return
        self.calls = {call: number for call, number in self.calls.items() if number != worker}
        self.connection.ray.kill(hand.actor)

    def bar(self) -> None:
        """Have one worker less from now on."""
        self.barred += 1

    def close(self) -> None:
        """Kill all workers and leave the cluster."""
        if self.connection.ray.is_initialized():
            for worker in list(self.hands):
                self.dismiss(worker)
        self.connection.close()
