"""How far next words on ordinary text move: the control of no task."""

import numpy as np
import pytest

from caploc.declaration import ModelOptions
from caploc.validation.text import measure_text
from worlds import DEMO


@pytest.fixture(scope="module")
def loaded():
    return ModelOptions(DEMO, device="cpu").engine().loaded


def test_without_a_knockout_nothing_moves(loaded):
    change = measure_text(loaded, np.zeros(loaded.grid.size, dtype=bool))
    assert change.nats == 0 and change.surprise.intact == change.surprise.knocked_out
    assert change.tokens > 200


def test_more_heads_move_more(loaded):
    few, every = np.zeros(loaded.grid.size, dtype=bool), np.ones(loaded.grid.size, dtype=bool)
    few[3] = True
    assert 0 < measure_text(loaded, few).nats < measure_text(loaded, every).nats


def test_paragraphs_are_cut_to_the_models_window(loaded, monkeypatch):
    monkeypatch.setattr(loaded.model.config, "max_position_embeddings", 32)
    change = measure_text(loaded, np.zeros(loaded.grid.size, dtype=bool))
    assert change.tokens % 31 == 0 and change.tokens <= 31 * 20
