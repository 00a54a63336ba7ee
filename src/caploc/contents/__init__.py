"""What the files of a run folder must hold, checked when they are read."""

from caploc.contents.reading import FORMS, faults, read_contents, typed

__all__ = ["FORMS", "faults", "read_contents", "typed"]
