"""The routed experts of a layer, to be hooked like a projection: their neurons in the open.

They are one module with three-dimensional weights, computed by whichever kernel transformers
picks; no module of it reads the neurons. While it has a hook it computes plainly instead, and hands
what every token gives to every expert, (tokens, experts x width) with zeros where a token was not
routed, to a hook on the way to the output projections.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Hook = Callable[[nn.Module, tuple[Tensor, ...]], Any]


class HookHandle:
    """Takes a hook away again."""

    def __init__(self, experts: "Experts", hook: Hook) -> None:
        self.experts, self.hook = experts, hook

    def remove(self) -> None:
        """Take the hook away; without hooks the module is as it was."""
        self.experts.hooks.remove(self.hook)
        if not self.experts.hooks:
            del self.experts.module.forward


class Experts:
    """The experts of one layer, to be hooked like a projection.

    `module` follows transformers' interface of experts.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.hooks: list[Hook] = []

    @property
    def count(self) -> int:
        return int(self.module.down_proj.shape[0])

    @property
    def width(self) -> int:
        return int(self.module.down_proj.shape[1 if self.module.is_transposed else 2])

    @property
    def weight(self) -> Tensor:
        """The output projections, (experts, width, writes), a view of the parameter."""
        down: Tensor = self.module.down_proj.detach()
        return down if self.module.is_transposed else down.transpose(1, 2)

    def register_forward_pre_hook(self, hook: Hook) -> HookHandle:
        """Let a hook see, and replace, what the output projections read."""
        if not self.hooks:
            self.module.forward = self.forward  # of the instance, in place of the class's
        self.hooks.append(hook)
        return HookHandle(self, hook)

    def forward(self, hidden: Tensor, routed: Tensor, shares: Tensor) -> Tensor:
        """Compute what the module computes, its neurons in the open.

        `hidden` is (tokens, reads); `routed` and `shares`, (tokens, chosen experts), are the
        experts of each token and the weight of each.
        """
        module = self.module
        tokens, chosen = routed.shape
        rows = torch.arange(tokens, device=hidden.device)[:, None].expand_as(routed)
        given = hidden.new_zeros(tokens, self.count, self.width)
        for expert in routed.unique().tolist():
            at = rows[routed == expert]
            given = given.index_put(
                (at, torch.full_like(at, expert)), self.activation(hidden[at], expert)
            )
        flat = given.flatten(1)
        for hook in list(self.hooks):
            result = hook(module, (flat,))
            flat = flat if result is None else result[0]
        given = flat.unflatten(1, (self.count, self.width))
        output = torch.zeros_like(hidden)
        for expert in routed.unique().tolist():
            at, place = torch.where(routed == expert)
            written = given[at, expert] @ self.read_first(module.down_proj[expert])
            if module.has_bias:
                written = written + module.down_proj_bias[expert]
            if getattr(module, "has_post_expert_norm", False):
                written = module.post_expert_norm(written)
            output = output.index_add(0, at, (written * shares[at, place, None]).to(output.dtype))
        return output

    def activation(self, hidden: Tensor, expert: int) -> Tensor:
        """Compute what the expert's output projection reads for these tokens."""
        module = self.module
        name = "gate_up_proj" if module.has_gate else "up_proj"
        before = hidden @ self.read_first(getattr(module, name)[expert])
        if module.has_bias:
            before = before + getattr(module, f"{name}_bias")[expert]
        after: Tensor = module._apply_gate(before) if module.has_gate else module.act_fn(before)
        return after

    def read_first(self, weight: Tensor) -> Tensor:
        """Turn a weight so that what it reads is the first axis."""
        return weight if self.module.is_transposed else weight.T


def is_experts(module: nn.Module) -> bool:
    """Tell whether a module follows transformers' interface of experts."""
    down = getattr(module, "down_proj", None)
    follows = all(hasattr(module, name) for name in ("has_gate", "is_transposed", "_apply_gate"))
    return follows and isinstance(down, nn.Parameter) and down.ndim == 3


def has_experts(model: nn.Module) -> bool:
    """Tell whether a model routes tokens to experts that are one module."""
    return any(map(is_experts, model.modules()))
