"""What a step of running rows asks of a device: counted, since there is no GPU here to time it."""

import numpy as np
import pytest
import torch
from counting import STARTED, WAITED, Counted, meta_model

from caploc.engine import attention
from caploc.engine.asks import MaskNumbers
from caploc.engine.attention import KeySlots, Segment, SharedSegments
from caploc.engine.passes import FedRow

SHARED, OWN = 800, 100
CASES = [(59, 8), (253, 32)]  # running rows, and the masks that they are under
ROOM = 256  # slots
# Operations of a layer, 38 of them the model's own and the cut, and those once a step.
A_LAYER, OUTSIDE = 53, 40


@pytest.fixture(scope="module")
def models():
    return {layers: meta_model(layers) for layers in (2, 4)}


@pytest.fixture(autouse=True)
def in_16_bits(monkeypatch):
    """Attend as a GPU does in 16 bits."""
    monkeypatch.setattr(attention, "has_kernel", lambda device, dtype: True)
    monkeypatch.setattr(attention, "reads_ragged", lambda queries, values: True)


def masks_of(grid, count):
    """Masks that each cut a head of the first layer, so that no two share a prefix's keys."""
    numbers = MaskNumbers(grid)
    for mask in range(1, count + 1):
        heads = np.zeros(grid.size, dtype=bool)
        heads[[mask % 32, 32 + mask // 32, -1]] = True
        numbers.number(heads)
    return numbers.all


def segment(layers):
    def made():
        return [
            torch.empty((8, SHARED, 128), dtype=torch.bfloat16, device="meta")
            for _ in range(layers)
        ]

    return Segment(SHARED, made(), made())


@torch.inference_mode()
def counted(packed, rows, masks, own=OWN):
    """Count one step of so many rows, after others have run."""
    numbered = masks_of(packed.loaded.grid, masks)
    segments = [segment(packed.depth) for _ in range(masks)]
    table, room = packed.table(numbered), KeySlots(ROOM, 400, packed.depth)
    running = [FedRow(5, numbered[1 + n % masks], own, segments[n % masks]) for n in range(rows)]
    shared = SharedSegments(packed.depth, packed.device, packed.model.dtype)
    shared.keep(segments)
    packed.step(table, room, running, shared.readers([row.segment for row in running]))
    with Counted() as seen:
        packed.step(table, room, running, shared.readers([row.segment for row in running]))
    return seen


@pytest.mark.parametrize(("rows", "masks"), CASES)
def test_a_step_awaits_no_copy_and_starts_so_many_operations_a_layer(models, rows, masks):
    few, many = (counted(models[layers], rows, masks).counts for layers in (2, 4))
    assert few[WAITED] == many[WAITED] == 0
    assert many[STARTED] - few[STARTED] <= 2 * A_LAYER
    assert few[STARTED] - 2 * A_LAYER <= OUTSIDE
