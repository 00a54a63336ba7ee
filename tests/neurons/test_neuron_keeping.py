"""Tuned neurons on their way to a file."""

import pytest
import torch
from safetensors.torch import save_file

from caploc.errors import StoreFailed
from caploc.neurons.training import _write


@pytest.mark.parametrize("place", ["folder", "file/below"])
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    target = tmp_path / place
    with pytest.raises(StoreFailed, match="could not be written .*; free disk space or name"):
        _write(lambda: save_file({"weight": torch.zeros(3)}, target), target)


def test_a_place_that_can_be_written_is(tmp_path):
    target = tmp_path / "new" / "delta.safetensors"
    _write(lambda: save_file({"weight": torch.zeros(3)}, target), target)
    assert target.stat().st_size > 0
