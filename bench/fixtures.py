"""What benchmarks share with the tests: worlds of known truth and the small demo model, by path.

The demo's tasks are known by name (`demo/addition`) once this is imported.
"""

import os
import sys
from pathlib import Path

# at the end: what benchmarks import by a short name must stay theirs
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from worlds import DEMO, TASKS
from worlds.planted import Planted, Truth, write_planted
from worlds.simulate import KINDS, World

os.environ["CAPLOC_TASKS"] = TASKS

__all__ = ["DEMO", "KINDS", "Planted", "Truth", "World", "write_planted"]
