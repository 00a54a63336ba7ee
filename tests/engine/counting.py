"""Counts what a device would be given to do, on torch's `meta` device, which has no values."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from caploc.engine.passes import PackedModel
from worlds.alone import around

META = torch.device("meta")
# Operations that only look at a tensor in another way.
VIEWS = {
    "_unsafe_view",
    "detach",
    "lift_fresh",
    "unbind",
    "split",
    "split_with_sizes",
    "_reshape_alias",
}
STARTED, WAITED, SENT = "operations", "blocking copies", "copies"


def looks_only(operation):
    return operation.is_view or operation._schema.name.split("::")[1] in VIEWS


class Counted(TorchDispatchMode):
    """Counts operations on the device, and copies from the host that it waits for or not.

    `shapes` are those of what each kind of operation makes.
    """

    def __init__(self):
        super().__init__()
        self.counts, self.shapes = Counter(), set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
            operation.name(), "CompositeImplicitAutograd"
        ):
            with self:
                found = operation.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = operation(*args, **kwargs)
        given, made = (self.devices(each) for each in ((args, kwargs), found))
        if META in made and META not in given and given:
            free = kwargs.get("non_blocking") or True in args
            self.counts[SENT if free else WAITED] += 1
        elif META in made and len(given) > 1:
            self.counts[WAITED] += 1  # places on the host, or a copy into a tensor
        elif META in made and not looks_only(operation):
            self.counts[STARTED] += 1
            tensors = (each for each in tree_leaves(found) if isinstance(each, torch.Tensor))
            self.shapes |= {(operation.name(), tuple(each.shape)) for each in tensors}
        return found

    @staticmethod
    def devices(values):
        tensors = (each for each in tree_leaves(values) if isinstance(each, torch.Tensor))
        return {each.device for each in tensors if each.ndim}


def meta_model(layers):
    """A model with an 8B Llama's widths, in bfloat16 on the meta device."""
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    with META:
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    return PackedModel(around(model.eval().requires_grad_(False)), 4096)
