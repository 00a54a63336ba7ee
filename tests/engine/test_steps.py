"""What a step of running rows asks of a device: counted, since there is no GPU here to time it."""

import numpy as np
import pytest
import torch
from counting import STARTED, WAITED, Counted, meta_model

from caploc.engine import attention
from caploc.engine.asks import MaskNumbers
from caploc.engine.attention import KeySlots, Segment
from caploc.engine.passes import FedRow
from caploc.engine.stacks import SegmentStacks

SHARED, OWN = 800, 100
CASES = [(59, 8), (253, 32)]  # running rows, and the masks that they are under
ROOM = 256  # slots
# Operations; 38 of them are the model's own and the cut.
A_LAYER = {"flash attention": 50, "products": 53}
OUTSIDE = {"flash attention": 50, "products": 40}  # the layers, once a step


@pytest.fixture(scope="module")
def models():
    return {layers: meta_model(layers) for layers in (2, 4)}


@pytest.fixture(autouse=True, params=["flash attention", "products"])
def way(request, monkeypatch):
    """Attend as a GPU does in 16 bits and in 32."""
    monkeypatch.setattr(attention, "reads_ragged", lambda *kept: request.param != "products")
    return request.param


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
    stacks = SegmentStacks(packed.depth)
    stacks.keep(segments)
    packed.step(table, room, running, stacks.readers([row.segment for row in running]))
    with Counted() as seen:
        packed.step(table, room, running, stacks.readers([row.segment for row in running]))
    return seen


@pytest.mark.parametrize(("rows", "masks"), CASES)
def test_a_step_awaits_no_copy_and_starts_so_many_operations_a_layer(models, rows, masks, way):
    few, many = (counted(models[layers], rows, masks).counts for layers in (2, 4))
    assert few[WAITED] == many[WAITED] == 0
    each, outside = A_LAYER[way], OUTSIDE[way]
    assert many[STARTED] - few[STARTED] <= 2 * each
    assert few[STARTED] - 2 * each <= outside


@pytest.mark.parametrize("rows", [64, 256])
def test_a_step_starts_as_many_operations_whatever_the_masks(models, rows):
    counts = [counted(models[2], rows, masks).counts[STARTED] for masks in (1, 8, 32)]
    assert len(set(counts)) == 1
