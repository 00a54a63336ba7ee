"""A part of the attacks: SHARE=3 in the environment runs a third of them, another one every day."""

import os
from datetime import UTC, datetime
from zlib import crc32

import pytest

SHARES = int(os.environ.get("SHARE") or 1)
TODAY = datetime.now(UTC).toordinal() % SHARES


def pytest_report_header() -> str | None:
    if SHARES == 1:
        return None
    return f"attacks: share {TODAY + 1} of {SHARES}, each on its day"


# first, so that what is left is counted as it is
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep what has no parameters, and of the rest the day's share."""
    ours = [item for item in items if "[" in item.nodeid and item.get_closest_marker("attacks")]
    others = {item for item in ours if crc32(item.nodeid.encode()) % SHARES != TODAY}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]
