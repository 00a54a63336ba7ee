"""A store whose file is taken away while it is open."""

import pytest

from caploc.errors import StoreFailed
from caploc.store import Question, Store
from caploc.store.rows import Row


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_rows_are_not_written_into_a_file_without_a_name(tmp_path, how):
    path = tmp_path / "rows.sqlite"
    with Store(path) as store:
        question = store.question_id(Question("m", "float32", "t", "1", "metric"))
        row = Row(b"\x00", "example", 0, 1.0, 1.0, "[]", 1.0, 1, 0.1)
        store.add(question, [row])
        if how == "deleted":
            path.unlink()
        else:
            path.rename(tmp_path / "elsewhere")
        if how == "replaced":
            path.touch()
        with pytest.raises(StoreFailed, match="was deleted or replaced while a run was writing"):
            store.add(question, [row])
