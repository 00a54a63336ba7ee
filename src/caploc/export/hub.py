"""Put an export on the Hugging Face Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from caploc.errors import BadOption, CaplocError, RunFailed

GIT_FILES = {".gitattributes", "README.md"}  # what a repository holds that someone has just made


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
    with _one_sentence(repository, "Nothing was written."):
        api = HfApi()
        api.whoami()
        if api.repo_exists(repository):
            held = set(api.list_repo_files(repository)) - GIT_FILES
            if held:
                raise BadOption(
                    f"{repository} exists on the Hugging Face Hub and holds {sorted(held)[0]!r}; "
                    "name a new repository with --push-to-hub."
                )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder as a model repository, made if it is not there; its address.

    Raises:
        RunFailed: if the Hub refuses or cannot be reached.
    """
    with _one_sentence(
        repository, f"{folder} is kept: `hf upload {repository} {folder}` sends it."
    ):
        api = HfApi()
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Export by caploc"
        )
    return str(made)


@contextmanager
def _one_sentence(repository: str, state: str) -> Iterator[None]:
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
