"""Models without values, and what scoring makes of tensors on them: no memory is taken."""

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoConfig, AutoModelForCausalLM

from caploc.models.loading import load_tokenizer
from caploc.models.neurons import NeuronModel, find_sites

CPU = torch.device("cpu")


class AllocationMeter(TorchDispatchMode):
    """Counts the bytes of all tensors alive at a time; `weights` are left out."""

    def __init__(self, weights=()):
        super().__init__()
        self.known = {each.untyped_storage()._cdata: 0 for each in weights}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return made

    def note(self, storage):
        key = storage._cdata
        if key not in self.known:
            self.known[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key)

    def forget(self, key):
        self.now -= self.known.pop(key)


def shape(family, **sizes):
    return AutoConfig.for_model(family, **sizes)


def without_values(config, dtype):
    """The model as its neurons; to be used inside a FakeTensorMode."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    sites, grid = find_sites(model)
    tokenizer = load_tokenizer("demo")  # never asked
    return NeuronModel(model, tokenizer, grid, sites, "", "", str(dtype), CPU)


def count(config, dtype, work):
    """Bytes alive at most, beside the weights, while `work` is done on a model without values."""
    with FakeTensorMode():
        neurons = without_values(config, dtype)
        with AllocationMeter(neurons.model.parameters()) as meter:
            work(neurons)
    return meter.peak
