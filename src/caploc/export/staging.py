"""A folder that is there whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from safetensors import SafetensorError

from caploc.errors import BadOption, StoreFailed

SPARE_BYTES = 16 * 2**20  # for what is small: config, tokenizer, card


def check_free(target: Path) -> None:
    """Refuse a place where something lies.

    Raises:
        BadOption: if it is a file, or a folder that holds something.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise BadOption(f"{target} exists and is not empty; name a new folder with --to.")


def check_space(target: Path, needed: int) -> None:
    """Refuse to begin what cannot end.

    Raises:
        StoreFailed: if the disk has too little room.
    """
    place = target.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + SPARE_BYTES:
        raise StoreFailed(
            f"{target} needs {_gigabytes(needed + SPARE_BYTES)} and the disk has "
            f"{_gigabytes(free)} left; free disk space or name another place with --to."
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder to write into, which takes the target's place at the end of the block.

    After an exception of any kind neither it nor the target exists.

    Raises:
        StoreFailed: if the disk refuses.
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
            "name another place with --to."
        ) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
