import numpy as np
import pytest
import torch

import gpu_check
import models
from contenders import Caploc
from workloads import Size

SHAPE = models.Shape(512, 32, 64, layers=2, heads=32, groups=2, width=4)


@pytest.fixture(scope="module")
def loaded():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = models.random_model(SHAPE)
    finally:
        torch.set_default_dtype(before)
    return models.around("tiny", model)


@pytest.mark.slow
def test_the_check_runs_where_there_is_no_gpu_and_finds_the_engine_right(loaded, monkeypatch):
    monkeypatch.setattr(gpu_check, "CHECKED", Size(2, 3))
    found = {"tiny": gpu_check.check("tiny", loaded, {"l": Size(2, 2)}, 1)}
    assert found["tiny"]["sound"]
    assert set(found["tiny"]["workloads"]["l"]["rows_per_second"]) == {
        "rows",
        "hook loop",
        "caploc",
    }
    assert "tiny, against" in gpu_check.page(found) and "right." in gpu_check.page(found)


def test_an_engine_that_ignores_masks_is_found_wrong(loaded):
    class Deaf(Caploc):
        def run(self, asks):
            intact = np.zeros(loaded.grid.size, dtype=bool)
            return super().run([type(ask)(ask.key, ask.request, intact) for ask in asks])

    assert not gpu_check.agreements(loaded, Deaf(loaded), Size(2, 3)).sound


def test_without_a_gpu_one_sentence_says_so():
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        gpu_check.require_cuda()
