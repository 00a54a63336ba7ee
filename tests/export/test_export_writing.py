"""Files that are handed on: written, or told in one sentence why not."""

import pytest
import torch
from safetensors.torch import save_file

from caploc.errors import StoreFailed
from caploc.export import writing_out


@pytest.mark.parametrize("place", ["folder", "file/below"])
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    target = tmp_path / place
    with (
        pytest.raises(StoreFailed, match="could not be written .*Free disk space or name"),
        writing_out(target),
    ):
        save_file({"weight": torch.zeros(3)}, target)


def test_a_place_that_can_be_written_is(tmp_path):
    target = tmp_path / "new" / "delta.safetensors"
    with writing_out(target):
        save_file({"weight": torch.zeros(3)}, target)
    assert target.stat().st_size > 0
