"""Many copies of one prompt at once, each with its neurons scaled where the answer is predicted.

What stands before the predicting positions is the same in every copy and is read once.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from caploc.models.loading import CutModel
from caploc.neurons.facts.encoding import Encoded
from caploc.neurons.sites import parts


@dataclass(frozen=True)
class Gate:
    """A factor on a layer's neurons at the predicting positions of some of the copies.

    `values` has a factor for each of the copies `rows`, for each predicting position (or one for
    all of them), and for each neuron of the layer.
    """

    layer: int
    rows: slice
    values: Float[Tensor, "rows positions neurons"]


class Copies:
    """One prompt, to be run in any number of copies."""

    def __init__(self, loaded: CutModel, encoded: Encoded) -> None:
        """Read what all copies have in common."""
        self.loaded, self.encoded = loaded, encoded
        self.positions = len(encoded.answer)
        self.answer = torch.tensor(encoded.answer, device=loaded.device)
        self.before = self._before()

    def log_probabilities(
        self, number: int, gates: Sequence[Gate] = ()
    ) -> Float[Tensor, "copies positions"]:
        """Log-probability of each token of the answer in each copy, with a gradient to the gates.

        In float32 whatever the model's dtype.
        """
        model, tokens = self.loaded.model, torch.tensor([self.encoded.tokens])
        where: dict[str, Any] = {"use_cache": False}
        read = tokens
        if self.before is not None:
            # a pass adds its own tokens to what it is given
            before = copy.deepcopy(self.before)
            before.batch_repeat_interleave(number)
            where = {"use_cache": True, "past_key_values": before}
            read = tokens[:, -self.positions :]
        with gated(self.loaded, gates, number, self.positions):
            logits = model(
                input_ids=read.expand(number, -1).to(model.device),
                attention_mask=torch.ones(number, tokens.shape[1], device=model.device).long(),
                **where,
            ).logits
        likely = logits[:, -self.positions :].float().log_softmax(-1)
        wanted = self.answer.expand(number, -1)
        return likely.gather(2, wanted[..., None])[..., 0]

    @torch.no_grad()
    def _before(self) -> Any:
        """Keys and values before the predicting positions; None where rows cannot be copied.

        State spaces and linear attention keep a state that transformers cannot repeat; there, every
        copy reads the whole prompt.
        """
        start = self.encoded.start
        if start < 1:
            return None
        tokens = torch.tensor([self.encoded.tokens[:start]], device=self.loaded.model.device)
        output = self.loaded.model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=True
        )
        before = getattr(output, "past_key_values", None)
        layers = getattr(before, "layers", ())
        repeats = [hasattr(layer, "batch_repeat_interleave") for layer in layers]
        return before if repeats and all(repeats) else None


@contextmanager
def gated(loaded: CutModel, gates: Sequence[Gate], number: int, positions: int) -> Iterator[None]:
    """Inside the block, neurons are multiplied by the gates at the last `positions` positions."""
    starts = [columns.start for columns in loaded.grid.layer_slices]
    with ExitStack() as hooks:
        for layer, columns, module in parts(loaded.projections):
            inside = slice(columns.start - starts[layer], columns.stop - starts[layer])
            for gate in gates:
                if gate.layer == layer:
                    hook = _scaling(gate.rows, gate.values[..., inside], number, positions)
                    hooks.callback(module.register_forward_pre_hook(hook).remove)
        yield


def _scaling(rows: slice, values: Tensor, number: int, positions: int) -> Any:
    def scale(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        handed, *rest = args
        each = handed.reshape(number, -1, handed.shape[-1])
        early, last = each[:, :-positions], each[:, -positions:]
        scaled = (last[rows].float() * values).to(each.dtype)
        last = torch.cat([last[: rows.start], scaled, last[rows.stop :]])
        return torch.cat([early, last], dim=1).reshape(handed.shape), *rest

    return scale
