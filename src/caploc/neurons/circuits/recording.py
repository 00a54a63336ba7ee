"""What a prompt makes every part of an opened model write, to compare and to patch with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from caploc.errors import BadOption
from caploc.neurons.circuits.graph import Stage
from caploc.neurons.circuits.opening import OpenModel, copied


@dataclass(frozen=True)
class Pair:
    """Two prompts of equal length, as token ids, and the token that each asks for."""

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    gold: int
    other: int

    def __post_init__(self) -> None:
        """Refuse what cannot be compared position by position.

        Raises:
            BadOption: if the lengths differ or are 0, or the answers begin alike.
        """
        if len(self.clean) != len(self.corrupted) or not self.clean:
            raise BadOption(
                f"The clean prompt has {len(self.clean)} tokens and the corrupted one "
                f"{len(self.corrupted)}; both need the same number, at least 1."
            )
        if self.gold == self.other:
            raise BadOption(
                f"Both answers are token {self.gold}; a circuit is found by telling them apart."
            )


@dataclass(frozen=True)
class Recording:
    """What every source wrote and every stage could read in a run of one prompt, and the logits."""

    outputs: Float[Tensor, "sources time width"]
    residuals: tuple[Float[Tensor, "time width"], ...]
    logits: Float[Tensor, " vocabulary"]


class _Recorder:
    """Keeps what passes by."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.outputs: list[Tensor] = []
        self.residuals: list[Tensor] = []

    def enter(self, hidden: Tensor) -> Tensor:
        """Keep the input, which is the first source."""
        self.outputs.append(hidden[:, :, None])
        return hidden

    def read(self, stage: Stage, residual: Tensor) -> Tensor:
        """Keep the residual stream."""
        self.residuals.append(residual[0])
        return copied(stage, residual)

    def wrote(self, stage: Stage, output: Callable[[], Tensor]) -> None:
        """Keep what was written."""
        self.outputs.append(output())


@torch.no_grad()
def record(opened: OpenModel, prompt: tuple[int, ...]) -> Recording:
    """Run a prompt as it is and keep everything."""
    recorder = _Recorder()
    logits = opened.run(torch.tensor([prompt]), recorder)
    outputs = torch.cat(recorder.outputs, dim=2)[0].transpose(0, 1).contiguous()
    return Recording(outputs, tuple(recorder.residuals), logits[0])


def zero_baseline(opened: OpenModel, pair: Pair) -> Recording:
    """In place of the corrupted prompt: sources that write nothing, as zero ablation has it.

    Only the biases of the output projections are left of the residual stream. The logits are
    missing (NaN): no prompt gives them.
    """
    clean = record(opened, pair.clean)
    before = after = torch.zeros_like(clean.residuals[0])
    residuals = []
    for stage in opened.grid.stages:
        if stage.kind == "attention":
            bias = opened.decoder[stage.layer].output.bias
            before, after = after, after if bias is None else after + bias
            residuals.append(before)
        else:  # a parallel MLP reads what stood before the heads
            beside = stage.kind == "mlp" and opened.grid.parallel
            residuals.append(before if beside else after)
    return Recording(
        torch.zeros_like(clean.outputs), tuple(residuals), torch.full_like(clean.logits, torch.nan)
    )
