"""Task files to read."""

import pytest

from doubles import write_task_file

SUMS = [{"q": f"{n}+1=", "a": str(n + 1)} for n in range(6)]


@pytest.fixture
def task_file(tmp_path):
    """Write a task YAML with its data; returns the YAML's path."""

    def write(name="mine", rows=None, **changes):
        return write_task_file(tmp_path, rows or SUMS, name, metadata={"version": 1}, **changes)

    return write
