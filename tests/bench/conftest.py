"""The benchmark's files are scripts: they find each other because their folder is on the path."""

import sys
from pathlib import Path

# at the end: what tests import by a short name must stay theirs
sys.path.append(str(Path(__file__).parents[2] / "bench"))
