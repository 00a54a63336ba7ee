"""What the files of a run folder must hold, checked when they are read."""

from caploc.contents.reading import FORMS, check_contents, read_contents, read_file, typed

__all__ = ["FORMS", "check_contents", "read_contents", "read_file", "typed"]
