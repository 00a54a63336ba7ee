"""Scores kept in the run's folder, a file for every stretch of examples: a killed run goes on."""

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from caploc.commonality.moments import Moments
from caploc.errors import BadData, StoreFailed


class Shelf:
    """Running figures by what was scored."""

    def __init__(self, folder: Path) -> None:
        """Keep them in `folder`/scores."""
        self.folder = folder / "scores"

    def recall(self, asked: dict[str, Any], measure: Callable[[], Moments]) -> Moments:
        """The figures of what is asked; measured and kept if they are not there.

        Raises:
            StoreFailed: if they cannot be read or written.
        """
        path = self.folder / f"{digest(asked)}.npz"
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return Moments.from_arrays(arrays)
        except (FileNotFoundError, BadZipFile, BadData, ValueError, KeyError, EOFError, zlib.error):
            pass  # not there, or a file that a full disk cut short
        except OSError as error:
            raise StoreFailed(
                f"{path} cannot be read ({error.strerror}); check the folder and its rights, or "
                "choose another --out."
            ) from error
        moments = measure()
        self.write(path, moments)
        return moments

    def write(self, path: Path, moments: Moments) -> None:
        """Write a file whole or not at all."""
        part = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                np.savez(file, **moments.as_arrays())  # type: ignore[arg-type]
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise StoreFailed(
                f"{path} could not be written ({error.strerror}); what was scored before is kept. "
                "Free disk space or check the rights, then run the same command again."
            ) from error


def digest(asked: dict[str, Any]) -> str:
    """A short name of what was scored, equal on every machine."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
