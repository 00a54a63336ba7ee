"""The heads paper again: its tables and figures from one command, on any models.

`preset` says what is measured on what, and reads it; `laboratory` measures, and `run` has it
measured, or counts what that takes; `selection` takes universal heads out and knows the paper's
figures; `exhibits` and `analyses` fill tables and figures, whose words `exhibits.yaml` holds. `cnl`
and `verdicts` do the same for the neurons paper, `cnl_preset` says on what.
"""

from caploc.reproduce.preset import read_preset
from caploc.reproduce.run import EXHIBITS, plan_exhibits, reproduce

__all__ = ["EXHIBITS", "plan_exhibits", "read_preset", "reproduce"]
