"""What listens, listens on this machine only."""

import inspect
from pathlib import Path

import pytest

from caploc.cli.looking import view


def test_pages_are_on_loopback_unless_told_otherwise():
    assert inspect.signature(view).parameters["host"].default == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_a_door_to_others_is_told(host):
    serving = pytest.importorskip("caploc.playground.serving")
    assert "no password" in serving.describe_exposure(host)
    assert serving.describe_exposure("127.0.0.1") == serving.describe_exposure("localhost") == ""


def test_ray_starts_without_a_dashboard():
    import caploc.workers.ray_backend as connection

    text = Path(connection.__file__).read_text()
    assert '"include_dashboard": False' in text
