"""CUDA graphs of steps: a step of a form seen before is started by the host as one operation.

A step of running rows asks the device for so many small operations that starting each takes longer
than all of them take. A graph holds them, with the tensors that they read and write, and is run
again for other rows in the same number of places.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 64  # graphs kept; those run longest ago are let go first
EAGER = 1  # times that a form is computed without a graph: what comes once is not worth one
Compute = Callable[[Sequence[Tensor]], Tensor]


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

    All of a plan's masks together cut `layers`, as bits.
    """

    def __init__(self, device: torch.device, layers: int, *, wanted: bool = True) -> None:
        self.captures = wanted and device.type == "cuda"
        self.cut = layers
        self.seen: Counter[Hashable] = Counter()
        self.graphs: OrderedDict[Hashable, StepGraph] = OrderedDict()
        self.pool = torch.cuda.graph_pool_handle() if self.captures else None

    @property
    def layers(self) -> int | None:
        """The layers that every step cuts, so that steps are alike; None: those of its rows."""
        return self.cut if self.captures else None

    def run(self, form: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        """Compute a step from `inputs`. Steps of one `form` differ in the inputs' values alone.

        Everything else that `compute` reads must stay in its place on the device.
        """
        if not self.captures or form is None:
            return compute(inputs)
        if form not in self.graphs:
            self.seen[form] += 1
            made = self.capture(inputs, compute) if self.seen[form] > EAGER else None
            if made is None:
                return compute(inputs)
            self.graphs[form] = made
            if len(self.graphs) > MOST:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(form)
        return self.graphs[form].run(inputs)

    def capture(self, inputs: Sequence[Tensor], compute: Compute) -> StepGraph | None:
        """Record a step without running it; None, from then on too, if the model does not allow it.

        A model that looks at values while it runs, as some mixtures of experts do, cannot be
        recorded.
        """
        kept, graph = [each.clone() for each in inputs], torch.cuda.CUDAGraph()
        device = kept[0].device
        aside = torch.cuda.Stream(device)  # the usual stream cannot record
        aside.wait_stream(torch.cuda.current_stream(device))
        try:
            # not `torch.cuda.graph`, which gives all cached memory back first
            with torch.cuda.stream(aside):
                graph.capture_begin(self.pool, capture_error_mode="thread_local")
                try:
                    output = compute(kept)
                finally:
                    graph.capture_end()
        except RuntimeError:  # out of memory too: without graphs less is needed
            self.captures = False
            self.graphs.clear()
            return None
        return StepGraph(graph.replay, kept, output, compute)
