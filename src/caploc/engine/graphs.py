"""CUDA graphs of steps: a step of a form seen before is started by the host as one operation.

A step of running rows asks the device for so many small operations that starting each takes longer
than all of them take. A graph holds them, with the tensors that they read and write, and is run
again for other rows in the same number of places.
"""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

MOST = 64  # graphs kept; those run longest ago are let go first
# Times that a form is computed without a graph. What comes once is not worth one; and the first
# time makes tensors that later steps find, which a recording would make without filling them.
EAGER = 1
# Bytes that shall be free before a recording: it takes none of those that torch keeps at hand for
# other work, and cannot have them given back once it has begun.
FREE = 1 << 31
Compute = Callable[[Sequence[Tensor]], Tensor]


def has_graphs(device: torch.device) -> bool:
    """Say whether a device can record what it is asked for."""
    return device.type == "cuda" and torch.version.hip is None


@lru_cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that records: memory is shared among the graphs of one stream alone."""
    return torch.cuda.Stream(device)


def renew_generator(device: torch.device, state: Tensor) -> None:
    """Give a device a random generator in this state, in place of one that a recording left open.

    Torch would refuse random numbers there from then on.
    """
    fresh = torch.Generator(device)
    fresh.set_state(state)
    torch.cuda.default_generators[fresh.device.index].graphsafe_set_state(fresh)


@dataclass
class Recordable:
    """Whether a model's steps may be recorded, which is known once one has been watched."""

    may: bool
    watched: bool = False

    def watch(self, compute: Compute, inputs: Sequence[Tensor]) -> Tensor:
        """Compute a step, and see whether the host waits for the device meanwhile.

        A model that looks at values while it runs, as some mixtures of experts do, cannot be
        recorded, and to begin all the same would leave torch's memory in disorder.
        """
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                output = compute(inputs)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        self.watched, self.may = True, not waits
        return output


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A step on the device: what it reads, what it makes, and what must live as long."""

    replay: Callable[[], None]
    inputs: Sequence[Tensor]
    output: Tensor
    compute: Compute

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """Compute the step for other inputs of the same shapes; the next run overwrites it."""
        for kept, new in zip(self.inputs, inputs, strict=True):
            kept.copy_(new, non_blocking=True)
        self.replay()
        return self.output


class StepGraphs:
    """The graphs of one plan's steps. Where none can be had, every step is computed as it comes.

    All of a plan's masks together cut `all_layers`, as bits.
    """

    def __init__(self, recordable: Recordable, all_layers: int = 0) -> None:
        self.recordable, self.all_layers = recordable, all_layers
        self.seen: Counter[Hashable] = Counter()
        self.graphs: OrderedDict[Hashable, StepGraph] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if recordable.may else None

    @property
    def layers(self) -> int | None:
        """The layers that every step cuts, so that steps are alike; None: those of its rows."""
        return self.all_layers if self.recordable.may else None

    def clear(self) -> None:
        """Let all graphs go, and with them the tensors that they read."""
        self.seen.clear()
        self.graphs.clear()

    def run(self, form: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        """Compute a step from `inputs`. Steps of one `form` differ in the inputs' values alone.

        Everything else that `compute` reads must stay in its place on the device as long as the
        graph lives.
        """
        if not self.recordable.may or form is None:
            return compute(inputs)
        if form not in self.graphs:
            self.seen[form] += 1
            if not self.recordable.watched:
                return self.recordable.watch(compute, inputs)
            made = self.record(inputs, compute) if self.seen[form] > EAGER else None
            if made is None:
                return compute(inputs)
            self.graphs[form] = made
            if len(self.graphs) > MOST:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(form)
        return self.graphs[form].run(inputs)

    def record(self, inputs: Sequence[Tensor], compute: Compute) -> StepGraph | None:
        """Record a step without running it; None if it cannot be: then no step is any more."""
        kept, graph = [each.clone() for each in inputs], torch.cuda.CUDAGraph()
        device = kept[0].device
        aside = recording_stream(device)  # the usual stream cannot record
        if torch.cuda.mem_get_info(device)[0] < FREE:
            torch.cuda.empty_cache()
        aside.wait_stream(torch.cuda.current_stream(device))
        random = torch.cuda.get_rng_state(device)
        try:
            # not `torch.cuda.graph`, which gives all cached memory back first
            with torch.cuda.stream(aside):
                graph.capture_begin(self.pool, capture_error_mode="thread_local")
                try:
                    output = compute(kept)
                finally:
                    graph.capture_end()
        except RuntimeError:  # out of memory too: without graphs less is needed
            self.recordable.may = False
            self.clear()
            renew_generator(device, random)
            return None
        return StepGraph(graph.replay, kept, output, compute)
