"""What benchmarks share with the tests: simulated worlds and planted models, found by path."""

import sys
from pathlib import Path

# at the end: what benchmarks import by a short name must stay theirs
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from worlds.planted import Planted, Truth, write_planted
from worlds.simulate import KINDS, World

__all__ = ["KINDS", "Planted", "Truth", "World", "write_planted"]
