"""An export's folder is there whole or not at all."""

import shutil

import pytest

from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.errors import StoreFailed
from caploc.export import Export
from caploc.files import whole_folder
from worlds import DEMO


def test_what_was_written_takes_the_targets_place(tmp_path):
    (tmp_path / "there").mkdir()  # an empty folder may be there
    for target in (tmp_path / "there", tmp_path / "deep" / "new"):
        with whole_folder(target) as stage:
            (stage / "file").write_text("text")
            assert not (target / "file").exists()
        assert (target / "file").read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "there"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(error, tmp_path):
    with pytest.raises(error), whole_folder(tmp_path / "target") as stage:
        (stage / "half").write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_nothing_and_says_so(tmp_path, monkeypatch):
    def full(source, target):
        target.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    wanted = Export(ModelOptions(DEMO), (Head(0, 0),), "checkpoint", tmp_path / "cut")
    with pytest.raises(StoreFailed, match=r"cut could not be written \(No space left on device\)"):
        wanted.write()
    assert not list(tmp_path.iterdir())


def test_a_place_below_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreFailed, match="could not be written"),
        whole_folder(tmp_path / "file" / "x"),
    ):
        pass
