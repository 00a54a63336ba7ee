"""Where weights go: what can be said of it, whether they fit, and that answers do not change."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.errors import OutOfMemory
from caploc.models import loading, placement
from caploc.models.loading import choose_weights, load_model
from caploc.models.placement import input_device
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import responses, save
from worlds.tiny import GROUPED, build

SHAPE = {**GROUPED, "num_hidden_layers": 4}
OPTIONS = options_json({"until": [], "max_gen_toks": 6})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of four layers."""
    return str(save(tmp_path_factory.mktemp("spread"), build("llama", SHAPE)))


@pytest.fixture(scope="module")
def here(folder):
    """It on one device."""
    return load_model(folder, device="cpu")


def test_weights_too_large_for_the_device_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(placement, "free_memory", lambda device: 50_000)
    with pytest.raises(OutOfMemory, match="take .* GiB, and cpu has .* free; spread them .*--quan"):
        choose_weights(folder, device="cpu").check()
    choose_weights(folder, device="spread").check()  # the disk has room


def asks(grid):
    """Texts and log-probabilities, intact and without heads of low and high layers."""
    masks = np.zeros((4, grid.size), dtype=bool)
    masks[1, 1], masks[2, -1], masks[3, ::3] = True, True, True
    requests = [
        Generate("w05 w06 w07 w08", OPTIONS),
        Generate("w09 w10 w11", OPTIONS),
        LogLikelihood("w12 w13", " w14 w15 w16"),
    ]
    pairs = [(mask, request) for mask in masks for request in requests]
    return [Ask((number, 0), request, mask) for number, (mask, request) in enumerate(pairs)]


def answered(loaded, packed):
    engine = BatchEngine(loaded, backend="packed" if packed else "plain")
    assert (engine.packed is not None) == packed
    return responses(engine, asks(loaded.grid))


@pytest.mark.parametrize(
    ("limit", "packed"),
    [
        (60_000, True),
        pytest.param(60_000, False, marks=pytest.mark.slow),
        pytest.param(30_000, True, marks=pytest.mark.slow),
        pytest.param(30_000, False, marks=pytest.mark.slow),
    ],
    ids=["some on disk, packed", "some on disk, plain", "all on disk, packed", "all, plain"],
)
@pytest.mark.filterwarnings("ignore:.*meta.*")
def test_layers_that_wait_on_disk_answer_as_those_in_memory(
    folder, here, limit, packed, monkeypatch
):
    monkeypatch.setattr(loading, "memory_limits", lambda: {"cpu": limit})
    spread = load_model(folder, device="spread")
    kinds = {parameter.device.type for parameter in spread.model.parameters()}
    assert "meta" in kinds and spread.device == input_device(spread.model) == torch.device("cpu")
    assert spread.dtype == here.dtype and spread.fingerprint == here.fingerprint
    assert answered(spread, packed) == answered(here, packed)
