"""What a reproduction has measured so far: a line of JSON for every answer."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from caploc.errors import StoreFailed
from caploc.files import open_regular

LONGEST = 2**30  # bytes that are read


class Ledger:
    """Answers by what was asked. Rows lie in the store; this saves reading millions of them."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a line that a killed process left half written is passed over.

        Raises:
            StoreFailed: if there is something else than a file, or one that cannot be read.
        """
        self.path = path
        self.known: dict[str, Any] = {}
        text = ""
        if os.path.lexists(path):
            try:
                with open_regular(path, LONGEST) as file:
                    text = file.read().decode("utf-8", errors="replace")
            except OSError as error:
                raise StoreFailed(
                    f"{path} cannot be read ({error}); it is not what a run leaves: choose another "
                    "--out, or delete the file, and what it told is measured or read anew."
                ) from error
        self.torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                entry = json.loads(line)
                self.known[entry["key"]] = entry["value"]

    def recall(self, asked: dict[str, Any], measure: Callable[[], Any]) -> Any:
        """The answer to what is asked; measured and written down if it is not known.

        Raises:
            StoreFailed: if the file cannot be written.
        """
        key = digest(asked)
        if key not in self.known:
            value = json.loads(json.dumps(measure(), allow_nan=False))
            self.known[key] = value
            self.write({"key": key, "asked": asked, "value": value})
        return self.known[key]

    def write(self, entry: dict[str, Any]) -> None:
        """Add a line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" * self.torn + json.dumps(entry) + "\n")
            self.torn = False
        except OSError as error:
            raise StoreFailed(
                f"{self.path} could not be written ({error.strerror}); the rows are kept. Free "
                "disk space or check the rights, then run the same command again."
            ) from error


def digest(asked: dict[str, Any]) -> str:
    """A short name of what is asked."""
    return blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()
