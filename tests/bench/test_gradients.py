import numpy as np
import pytest
import torch

from caploc.models.knockout import knockout
from caploc.models.loading import load_model
from caploc.tasks.catalog import load_task
from gradients import BATCH, Gold, attribution, gated
from worlds.planted import Planted, write_planted

EXAMPLES = list(range(2 * BATCH + 1))
STEP = 1e-2


@pytest.fixture(scope="module")
def gold(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    write_planted(folder, Planted(layers=2, heads=4, needed=2, examples=100))
    loaded = load_model(str(folder), device="cpu")
    return Gold(loaded, load_task(str(folder / "planted.yaml")), EXAMPLES)


@torch.inference_mode()
def mean_logprob(gold, gates):
    with gated(gold.loaded, gates):
        return float(gold.logprob(EXAMPLES).double().mean())


def test_a_closed_gate_is_a_knockout_and_open_gates_change_nothing(gold):
    gates = torch.ones(gold.loaded.grid.size)
    with torch.inference_mode():
        plain = float(gold.logprob(EXAMPLES).double().mean())
        with knockout(gold.loaded, ["L1H2"]):
            cut = float(gold.logprob(EXAMPLES).double().mean())
    assert mean_logprob(gold, gates) == pytest.approx(plain, abs=1e-6)
    gates[gold.loaded.grid.mask(["L1H2"])] = 0
    assert mean_logprob(gold, gates) == pytest.approx(cut, abs=1e-6)


def test_attribution_is_the_derivative_by_each_gate(gold):
    effect = attribution(gold).effects[0]
    assert effect.min() < -0.05
    for head in range(gold.loaded.grid.size):
        step = STEP * torch.eye(gold.loaded.grid.size)[head]
        ends = [mean_logprob(gold, 1 + sign * step) for sign in (1, -1)]
        assert -effect[head] == pytest.approx(np.diff(ends[::-1])[0] / (2 * STEP), abs=2e-3)
