"""Where an export goes: a folder that is there whole or not at all, and the Hugging Face Hub."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from huggingface_hub import HfApi, get_token
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError

from caploc.errors import BadOption, CaplocError, RunFailed, StoreFailed

SPARE_BYTES = 16 * 2**20  # for what is small: config, tokenizer, card
GIT_FILES = {".gitattributes", "README.md"}  # what a repository holds that someone has just made


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
            f"{target} needs {(needed + SPARE_BYTES) / 1e9:.2f} GB and the disk has "
            f"{free / 1e9:.2f} GB left; free disk space or name another place with --to."
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes the target's place at the end of the block.

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


def check_push(repository: str) -> None:
    """Refuse, before anything is written, what the Hub would refuse after it.

    Raises:
        BadOption: if the name is none, there is no token, or the repository holds something.
        RunFailed: if the Hub cannot be reached.
    """
    try:
        validate_repo_id(repository)
    except hub.HFValidationError as error:
        raise BadOption(
            f"--push-to-hub {repository!r} is no repository: {_short(error)}."
        ) from None
    if get_token() is None:
        raise BadOption(
            "--push-to-hub needs a token of the Hugging Face Hub; run `hf auth login` once, or set "
            "HF_TOKEN."
        )
    with _hub_errors(repository, "Nothing was written."):
        api = HfApi()
        api.whoami()
        held = set()
        if api.repo_exists(repository):
            held = set(api.list_repo_files(repository)) - GIT_FILES
        if held:
            raise BadOption(
                f"{repository} exists on the Hugging Face Hub and holds {sorted(held)[0]!r}; "
                "name a new repository with --push-to-hub."
            )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder as a model repository, made if it is not there; return its address.

    Raises:
        RunFailed: if the Hub refuses or cannot be reached.
    """
    kept = f"{folder} is kept: `hf upload {repository} {folder}` sends it."
    with _hub_errors(repository, kept):
        api = HfApi()
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Export by caploc"
        )
    return str(made)


@contextmanager
def _hub_errors(repository: str, state: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one sentence."""
    try:
        yield
    except CaplocError:  # some of which are a ValueError, too
        raise
    # what the Hub's client raises without a network is another from release to release
    except (hub.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        raise RunFailed(
            f"{repository} could not be put on the Hugging Face Hub ({type(error).__name__}: "
            f"{_short(error)}); check the network and the rights of your token. {state}"
        ) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200]
