"""The heads paper again: its tables and figures from one command, on any models.

`preset` says what is measured on what, and reads it; `laboratory` measures; `selection` takes
universal heads out; `tables`, `figures` and `analyses` fill exhibits, whose words `exhibits.yaml`
holds; `reckoning` tells what all that would take; `published` holds the paper's figures. `cnl` and
`checklist` do the same for the neurons paper.
"""

from caploc.reproduce.preset import read_preset
from caploc.reproduce.run import EXHIBITS, plan_exhibits, reproduce

__all__ = ["EXHIBITS", "plan_exhibits", "read_preset", "reproduce"]
