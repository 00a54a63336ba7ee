"""What tests and benchmarks measure against: outcomes and models whose truth is known.

The demo world is a small trained model and what it was trained to do: `DEMO` is the model's folder,
`TASKS` that of its task files, which commands know by name where `CAPLOC_TASKS` names the folder.
"""

from pathlib import Path

DEMO = str(Path(__file__).parent / "demo")
TASKS = str(Path(__file__).parent / "tasks")
CAPABILITIES = "addition subtraction sorting code rhyming cursing capitals elements recall".split()
