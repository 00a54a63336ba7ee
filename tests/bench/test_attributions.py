import numpy as np
import pytest
import torch

import attributions
from attributions import Reader, gated
from caploc.engine.encoding import RequestEncoder
from caploc.models.knockout import knockout
from caploc.models.loading import load_model
from caploc.tasks.catalog import load_task
from caploc.tasks.harness import HarnessTask
from worlds.planted import Planted, write_planted

EXAMPLES = range(5)
STEP = 1e-2


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """A reader of a planted model of two layers, and right answers to read."""
    folder = tmp_path_factory.mktemp("planted")
    write_planted(folder, Planted(layers=2, heads=4, needed=2, examples=20))
    loaded = load_model(str(folder), device="cpu")
    task = load_task(str(folder / "planted.yaml"))
    asked = HarnessTask(task.name, task.leaves, task.group, "logprob")
    encoder = RequestEncoder(loaded.model, loaded.tokenizer)
    answers = [
        [span for request in asked.requests(example) for span in encoder.spans(request)]
        for example in EXAMPLES
    ]
    return Reader(loaded), answers


@torch.no_grad()
def odds(reader, answers, gates):
    with gated(reader.loaded, gates):
        return reader.log_odds(answers).double().numpy()


def test_a_closed_gate_is_a_knockout_and_open_gates_change_nothing(read):
    reader, answers = read
    gates = torch.ones(reader.loaded.grid.size)
    with torch.no_grad():
        plain = reader.log_odds(answers).double().numpy()
        with knockout(reader.loaded, ["L1H2"]):
            cut = reader.log_odds(answers).double().numpy()
    assert odds(reader, answers, gates) == pytest.approx(plain, abs=1e-4)
    gates[reader.loaded.grid.mask(["L1H2"])] = 0
    assert odds(reader, answers, gates) == pytest.approx(cut, abs=1e-4)


def test_a_gradient_is_the_derivative_of_each_examples_log_odds(read):
    reader, answers = read
    change = reader.gradient(answers)
    assert change.min() < -0.05
    for head in range(reader.loaded.grid.size):
        step = STEP * torch.eye(reader.loaded.grid.size)[head]
        up, down = (odds(reader, answers, 1 + sign * step) for sign in (1, -1))
        assert -change[:, head] == pytest.approx((up - down) / (2 * STEP), abs=5e-2)


def test_the_way_from_closed_gates_shares_out_the_whole_change(read, monkeypatch):
    reader, answers = read
    monkeypatch.setattr(attributions, "STEPS", 40)
    heads = reader.loaded.grid.size
    whole = odds(reader, answers, torch.zeros(heads)) - odds(reader, answers, torch.ones(heads))
    assert reader.path(answers).sum(axis=1) == pytest.approx(whole, rel=0.02, abs=0.02)


def test_sizes_of_derivatives_are_meant_over_the_layers_that_let_a_head_through(read):
    reader, answers = read
    last = reader.loaded.grid.layer_slices[-1]
    # of two layers only the pass that drops the first one lets the last one's heads through
    assert reader.drop(answers)[:, last] == pytest.approx(
        -np.abs(reader.gradient(answers)[:, last]), abs=1e-5
    )
