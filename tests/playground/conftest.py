"""What the tests of the playground share: the demo model, loaded once."""

import pytest

from caploc.declaration import ModelOptions
from caploc.models.loading import load_model
from caploc.options import TaskOptions
from caploc.playground.playground import Playground
from worlds import CAPABILITIES, DEMO

TASKS = [f"demo/{name}" for name in (*CAPABILITIES, "sentences", "prose")]
HEADS = ["L0H13", "L0H14", "L3H12", "L5H1"]


@pytest.fixture(scope="package")
def playground():
    model = ModelOptions(DEMO, device="cpu")
    return Playground(model, model.engine(), dict.fromkeys(TASKS, TaskOptions()))


@pytest.fixture(scope="package")
def zeroed():
    """The demo model with the output columns of HEADS set to zero: the knockout, in weights."""
    loaded = load_model(DEMO, device="cpu")
    for name in HEADS:
        head = loaded.grid.named_in([name])[0]
        weight = loaded.projections[head.layer].weight
        width = weight.shape[1] // loaded.grid.heads_per_layer[head.layer]
        weight.data[:, head.index * width : (head.index + 1) * width] = 0
    return loaded.model


@pytest.fixture(scope="package")
def whole():
    """The demo model, loaded apart from the playground's."""
    return load_model(DEMO, device="cpu").model
