"""Many tasks, models, methods and seeds from one file: checked whole, run together."""

from caploc.declaration import Allowed
from caploc.studies.file import Opened, StudyFile, read_studies
from caploc.studies.running import Outcome, Ran, run_studies

__all__ = [
    "Allowed",
    "Opened",
    "Outcome",
    "Ran",
    "StudyFile",
    "read_studies",
    "run_studies",
]
