"""Read a user's files, name what is asked, and write files whole or not at all."""

import csv
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TextIO

from safetensors import SafetensorError

from caploc.errors import BadData, StoreFailed

BEYOND = "\0"  # no column's name: fields of a row that the header has no name for


def digest(asked: dict[str, Any]) -> str:
    """Name what is asked in a few characters, equal on every machine."""
    text = json.dumps(asked, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file's tables; raises BadData if it is missing, no text or no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadData(f"There is no file {path}; give the path of a study file.") from None
    except (OSError, ValueError) as error:  # tomllib's and Unicode's errors among them
        raise BadData(f"{path} cannot be read as TOML: {error}.") from None


def read_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Yield what each line holds, with its number; raises ValueError for what is no JSON."""
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold other ends of lines
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON ({error}): {line[:40]!r}") from None


def read_csv(text: Iterable[str]) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield each row by its columns, with the number of its last line; None where it ends early.

    Raises ValueError for what is no CSV, and for a row with more fields than the header.
    """
    reader = csv.DictReader(text, restkey=BEYOND, strict=True)
    try:
        for row in reader:
            if BEYOND in row:
                raise ValueError(
                    f"line {reader.line_num} has more fields than the header: "
                    f"{', '.join(map(repr, row[BEYOND]))}; quote a text that holds a comma"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num + 1} is no CSV ({error})") from None


@contextmanager
def writing(path: Path, kept: str) -> Iterator[None]:
    """Turn what the disk says while a file is written into StoreFailed; `kept` names what is."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"{path} could not be written ({error.strerror}); {kept} kept. Free disk space or "
            "check the rights, then run the same command again."
        ) from error


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Give `path.part` to write to, which becomes `path` when the block ends, or is gone.

    Raises OSError if it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """Open a text file that becomes `path` when the block ends, or is gone.

    After a loss of power `path` is the old file or the new one, whole. Raises OSError if it cannot
    be written.
    """
    with whole_path(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes the target's place at the end of the block.

    After an exception of any kind neither it nor the target exists. Raises StoreFailed if the disk
    refuses.
    """
    stage = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        yield stage
        stage.chmod(0o755)  # mkdtemp keeps others out
        stage.replace(target)
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise StoreFailed(
            f"{target} could not be written ({said}); nothing was kept there. Free disk space or "
            "name another place."
        ) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
