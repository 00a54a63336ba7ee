"""Scores kept in the run's folder, a file for every stretch of examples: a killed run goes on."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np

from caploc.commonality.moments import Moments
from caploc.errors import BadData, StoreFailed
from caploc.files import UNZIPPING, UnfitFile, open_regular, whole_path

LONGEST = 16 * 2**30  # bytes of the figures of one task: a hundred for each of 160 million neurons
# What numpy raises beside for arrays that are not what they say.
UNREADABLE = (*UNZIPPING, MemoryError, SyntaxError, TokenError)


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
            with open_regular(path, LONGEST) as file:
                refuse_swelling(file, path)
                with np.load(file, allow_pickle=False) as arrays:
                    return Moments.from_arrays(arrays)
        except (FileNotFoundError, BadData, *UNREADABLE):
            pass  # not there, or not as it was written: a full disk cuts files short
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
        with self.whole(path) as part, part.open("wb") as file:
            np.savez(file, **moments.as_arrays())  # type: ignore[arg-type]

    def adopt(self, other: "Shelf") -> None:
        """Take over what lies on another shelf, as hard links where the disk has them.

        No file is ever written twice, so that links stay what they are, and a folder that is moved
        or copied alone is whole.

        Raises:
            StoreFailed: if they cannot be written.
        """
        for path in sorted(other.folder.glob("*.npz")):
            mine = self.folder / path.name
            if mine.exists():
                continue
            with self.whole(mine) as part:
                try:
                    part.hardlink_to(path)
                except OSError:
                    shutil.copyfile(path, part)

    @contextmanager
    def whole(self, path: Path) -> Iterator[Path]:
        """A path to write to, which becomes `path` at the end, or is gone.

        Raises:
            StoreFailed: if it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_path(path) as part:
                yield part
        except OSError as error:
            raise StoreFailed(
                f"{path} could not be written ({error.strerror}); what was scored before is kept. "
                "Free disk space or check the rights, then run the same command again."
            ) from error


def refuse_swelling(file: BinaryIO, path: Path) -> None:
    """Refuse a file of arrays that unpacks to more than `LONGEST` bytes.

    Raises:
        UnfitFile: if it does.
        BadZipFile: if it is no file of arrays.
    """
    with ZipFile(file) as parts:
        size = sum(part.file_size for part in parts.infolist())
    if size > LONGEST:
        raise UnfitFile(f"it unpacks to {size:,} bytes, more than any run writes", path)
    file.seek(0)


def digest(asked: dict[str, Any]) -> str:
    """A short name of what was scored, equal on every machine."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()
