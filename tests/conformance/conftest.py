"""What the tests of this folder share: tiny models, and one row at a time as second opinion."""

import sys
from pathlib import Path

for folder in ("models", "engine"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))  # for `import tiny`, `import alone`
