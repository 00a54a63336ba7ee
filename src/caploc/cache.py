"""Answers by what was asked: long studies go on where they stopped, and nothing is measured twice.

Rows lie in the store; a cache keeps what follows from them, or from a model directly. `Cache` has a
line of JSON for every answer, `ArrayCache` a file of arrays for every answer.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from caploc.errors import BadData, StoreFailed
from caploc.files import whole_path, writing
from caploc.stats import JsonRecord
from caploc.stats.threshold import Moments

# What NumPy raises for arrays that are not what they say.
UNREADABLE = (BadZipFile, zlib.error, EOFError, KeyError, ValueError)
COMPACT = (",", ":")


def digest(asked: dict[str, Any], separators: tuple[str, str] | None = None) -> str:
    """Name what is asked in a few characters, equal on every machine."""
    text = json.dumps(asked, sort_keys=True, separators=separators)
    return blake2b(text.encode(), digest_size=16).hexdigest()


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


@dataclass(frozen=True)
class ArrayCache:
    """The running figures of scores, a file for each in a folder, named by what was asked."""

    folder: Path

    def recall(self, asked: dict[str, Any], measure: Callable[[], Moments]) -> Moments:
        """Return the answer to what is asked, measured and kept if new; raises StoreFailed."""
        known = self.find(asked)
        return self.keep(asked, measure()) if known is None else known

    def find(self, asked: dict[str, Any]) -> Moments | None:
        """Return the answer to what is asked, None if it is not there; raises StoreFailed."""
        path = self.place(asked)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return Moments.from_arrays(arrays)
        except (FileNotFoundError, BadData, *UNREADABLE):
            return None  # not there, or not as it was written: a full disk cuts files short
        except OSError as error:
            raise StoreFailed(
                f"{path} cannot be read ({error.strerror}); check the folder and its rights, or "
                "choose another --out."
            ) from error

    def keep(self, asked: dict[str, Any], measured: Moments) -> Moments:
        """Write the answer to what is asked, and return it; raises StoreFailed if that fails."""
        with self._whole(self.place(asked)) as part, part.open("wb") as file:
            np.savez(file, **measured.as_arrays())  # type: ignore[arg-type]
        return measured

    def place(self, asked: dict[str, Any]) -> Path:
        return self.folder / f"{digest(asked, COMPACT)}.npz"

    def adopt(self, other: "ArrayCache") -> None:
        """Take over what another cache holds, as hard links where the disk has them.

        No file is ever written twice, so that links stay what they are, and a folder that is moved
        or copied alone is whole.
        """
        for path in sorted(other.folder.glob("*.npz")):
            mine = self.folder / path.name
            if mine.exists():
                continue
            with self._whole(mine) as part:
                try:
                    part.hardlink_to(path)
                except OSError:
                    shutil.copyfile(path, part)

    @contextmanager
    def _whole(self, path: Path) -> Iterator[Path]:
        with writing(path, "what was scored before is"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_path(path) as part:
                yield part
