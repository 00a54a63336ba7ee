"""Many tasks, models, methods and seeds from one file: checked whole, planned, run together."""

from caploc.studies.file import Opened, StudyFile, read_studies
from caploc.studies.planning import Planned, StudiesPlan, dry_run, foresee
from caploc.studies.running import Outcome, Ran, locate_all, run_studies
from caploc.workbench import Allowed

__all__ = [
    "Allowed",
    "Opened",
    "Outcome",
    "StudiesPlan",
    "Planned",
    "Ran",
    "StudyFile",
    "dry_run",
    "foresee",
    "locate_all",
    "read_studies",
    "run_studies",
]
