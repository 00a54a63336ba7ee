"""The heads paper again: its tables and figures from one command, on any models.

`preset` says what is measured on what, and `reading` reads it; `laboratory` measures and `cache`
remembers; `selection` takes universal heads out; `tables`, `universals`, `figures` and `analyses`
fill exhibits, `markdown`, `latex`, `drawing` and `files` write them; `reckoning` tells what all
that would take; `published` holds the paper's figures.
"""

from caploc.reproduce.reading import read_preset
from caploc.reproduce.run import EXHIBITS, plan_exhibits, reproduce

__all__ = ["EXHIBITS", "plan_exhibits", "read_preset", "reproduce"]
