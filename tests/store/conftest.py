"""The stores that these tests fill."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
