"""The running figures of scores, which are kept in a run's folder, a file for each question."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from caploc.errors import StoreFailed
from caploc.files import digest, whole_path, writing
from caploc.neurons.threshold import Moments

# What NumPy raises for arrays that are not what they say.
UNREADABLE = (BadZipFile, zlib.error, EOFError, KeyError, ValueError)


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
        except (FileNotFoundError, *UNREADABLE):
            return None  # not there, or not as it was written: a full disk cuts files short
        except OSError as error:
            raise StoreFailed(
                f"{path} cannot be read ({error.strerror}); check the folder and its rights, or "
                "choose another --out."
            ) from error

    def keep(self, asked: dict[str, Any], measured: Moments) -> Moments:
        """Write the answer to what is asked, and return it; raises StoreFailed if that fails."""
        path = self.place(asked)
        with writing(path, "what was scored before is"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_path(path) as part, part.open("wb") as file:
                np.savez(file, **measured.as_arrays())  # type: ignore[arg-type]
        return measured

    def place(self, asked: dict[str, Any]) -> Path:
        return self.folder / f"{digest(asked)}.npz"
