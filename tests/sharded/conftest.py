"""What the tests of this folder share."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "models")]  # for `import shared_answers` and `tiny`
