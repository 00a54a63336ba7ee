"""Packed rows over layers on two devices: nothing of one device meets what is on the other.

The second device is torch's `meta`, which has shapes and no values. An operation that mixes it with
the CPU is made an error, as one that mixes two GPUs is; only copies may cross.
"""

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from caploc.engine import suitability
from caploc.engine.passes import PackedModel
from caploc.engine.planning import model_devices
from worlds.alone import around
from worlds.tiny import GROUPED, build

LAYERS = 4
HOME, AWAY = torch.device("cpu"), torch.device("meta")


class Strict(TorchDispatchMode):
    """Refuses what two GPUs would refuse."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        where = {each.device for each in given if each.ndim}
        # places on the host may be read anywhere, on a GPU too
        allowed = "copy" in operation.name() or operation.name() == "aten::index.Tensor"
        assert allowed or len(where) < 2, f"{operation.name()} mixes {where}"
        return operation(*args, **(kwargs or {}))


def split(model, below):
    """Give the layers from `below` on, the norm and the head to the second device."""
    stack = model.model
    upper = [*stack.layers[below:], stack.norm, model.lm_head]
    for part, device in [(each, HOME) for each in stack.layers[:below]] + [
        (each, AWAY) for each in upper
    ]:
        add_hook_to_module(part.to(device), AlignDevicesHook(execution_device=device))
    return model


@pytest.mark.parametrize("below", [1, 2, 3])
@torch.inference_mode()
def test_masks_keys_and_residuals_go_where_the_layer_is(below):
    model = split(build("llama", {**GROUPED, "num_hidden_layers": LAYERS}), below)
    packed = PackedModel(around(model), 64)
    masks = [packed.loaded.grid.mask([f"L{layer}H0"]) for layer in (1, LAYERS - 1)]
    own, again = [[7, 8, 9], [10, 11, 12, 13, 14]], [[1, 2], [3, 4]]
    with Strict():
        logits = suitability.packed_logits(packed, [3, 4, 5, 6], own, again, masks)
    assert [tuple(each.shape) for each in logits] == [(1 + 2, GROUPED["vocab_size"])] * 2
    assert {each.device for each in logits} == {AWAY}


def test_every_gpu_of_a_map_counts():
    model = build("llama", GROUPED)
    assert model_devices(model) == [HOME]
    model.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": 1, "lm_head": "disk"}
    assert model_devices(model) == [HOME, torch.device("cuda", 0), torch.device("cuda", 1)]
