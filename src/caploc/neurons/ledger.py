"""Answers by what was asked: long studies go on where they stopped, and nothing is measured twice.

Rows lie in the store; a cache keeps what follows from them, or from a model directly. It
has a line of JSON for every answer.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from caploc.errors import StoreFailed
from caploc.files import digest, writing
from caploc.neurons.stats import JsonRecord


class Cache:
    """Answers in a file, a line of JSON for each."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a line that a killed process left half written is passed over.

        Raises StoreFailed if there is something else than a file, or one that cannot be read.
        """
        self.path = path
        self.known: dict[str, Any] = {}
        text = ""
        if path.exists():
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise StoreFailed(
                    f"{path} cannot be read ({error.strerror}); check the folder and its rights, "
                    "or choose another --out."
                ) from error
        self.torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self.known[entry["key"]] = entry["value"]

    def recall(self, asked: dict[str, Any], measure: Callable[[], Any]) -> Any:
        """Return the answer to what is asked, measured and written if new; raises StoreFailed."""
        key = digest(asked)
        if key not in self.known:
            measured = measure()
            fields = measured.as_dict() if isinstance(measured, JsonRecord) else measured
            self.known[key] = value = json.loads(json.dumps(fields, allow_nan=False))
            self.write({"key": key, "asked": asked, "value": value})
        return self.known[key]

    def write(self, entry: dict[str, Any]) -> None:
        with writing(self.path, "the rows are"), self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self.torn + json.dumps(entry) + "\n")
        self.torn = False
