"""Where a model's files are: in a folder, on the Hugging Face Hub, or in its cache."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.models.fingerprint import TOKENIZER, folder_fingerprint
from caploc.naming import at_home, is_file, is_folder

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_SECONDS = 10.0
WEIGHTS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
GGUF = ("*.gguf",)


@dataclass(frozen=True)
class Source:
    """A model that exists: `place` and `revision` are for `from_pretrained`.

    `commit` is the Hub's hash of everything in it, None for a folder of the user's own.
    """

    name: str
    place: str
    revision: str | None
    commit: str | None
    files: tuple[str, ...]

    def fingerprint(self) -> str:
        """The Hub's commit, or for a folder a digest of the files that loading it reads."""
        return self.commit or folder_fingerprint(Path(self.place))


def find(name: str, revision: str | None = None) -> Source:
    """Find a model by the name the user gave.

    Raises:
        UnknownName: if there is no such folder, or no such model or revision on the Hub.
        BadOption: if the name is a file, or a folder is given with a revision.
        ModelRefused: if the Hub cannot be reached, or does not let the user in.
    """
    folder = DEMO_FOLDER if name == DEMO else at_home(name)
    if name.strip() and is_folder(folder):
        return _in_folder(name, folder, revision)
    if name == DEMO:
        raise ModelRefused(f"The demo model is missing from {DEMO_FOLDER}; reinstall caploc.")
    if is_file(folder):
        raise BadOption(f"{name!r} is a file; give the folder it is in.")
    if not HUB_NAME.fullmatch(name) or not is_hub_name(name):
        raise UnknownName(
            f"There is no folder {name!r}. A model is a folder, the name of a model on the Hugging "
            "Face Hub (such as Qwen/Qwen3-4B) or 'demo'."
        )
    return _on_hub(name, revision)


def is_hub_name(name: str) -> bool:
    """Whether the Hub could have a model of this name."""
    try:
        validate_repo_id(name)
    except hub.HFValidationError:
        return False
    return True


def check_files(source: Source) -> None:
    """Refuse a model that lacks a file that loading needs.

    Raises:
        ModelRefused: naming the file.
    """
    if "config.json" not in source.files:
        raise ModelRefused(
            f"{source.name} has no config.json, so it is no transformers model; name the folder "
            "that holds one beside the weights."
        )
    if not _any_file(source.files, WEIGHTS):
        if _any_file(source.files, PICKLED):
            raise ModelRefused(
                f"{source.name} has only pickled weights, which can run code when they are read; "
                "if you trust them, convert them once: AutoModelForCausalLM.from_pretrained(name)"
                ".save_pretrained(folder) writes safetensors."
            )
        if _any_file(source.files, GGUF):
            raise ModelRefused(
                f"{source.name} has its weights as GGUF only, in which heads cannot be cut; name "
                "the model that it was made from."
            )
        raise ModelRefused(
            f"{source.name} has no weights (*.safetensors); get them, or name another folder."
        )
    if not _any_file(source.files, TOKENIZER):
        raise ModelRefused(
            f"{source.name} has no tokenizer; save the one it was trained with beside the weights."
        )


def _any_file(files: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(file, pattern) for file in files for pattern in patterns)


def _in_folder(name: str, folder: Path, revision: str | None) -> Source:
    if revision is not None:
        raise BadOption(
            f"revision={revision!r} was given, but {name!r} is a folder, which has no revisions; "
            "leave it out."
        )
    files = tuple(sorted(path.name for path in folder.iterdir()))
    return Source(name, str(folder), None, None, files)


def _on_hub(name: str, revision: str | None) -> Source:
    try:
        info = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except hub.GatedRepoError:
        raise gated(name) from None
    except hub.RepositoryNotFoundError:
        raise UnknownName(
            f"There is no model {name!r}: no such folder here, and none on the Hugging Face Hub "
            "that you may see (a private one needs `hf auth login`)."
        ) from None
    except hub.RevisionNotFoundError:
        raise UnknownName(
            f"There is no revision {revision!r} of {name} on the Hugging Face Hub; give a branch, "
            "a tag or a commit."
        ) from None
    # what the Hub's client, another from release to release, raises without a network
    except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        return _in_cache(name, revision, error)
    files = tuple(file.rfilename for file in info.siblings or ())
    return Source(name, name, info.sha, info.sha, files)


def gated(name: str) -> ModelRefused:
    """The error for a model whose owner has not let the user in."""
    return ModelRefused(
        f"{name} is gated on the Hugging Face Hub; accept its terms on its page there, then run "
        "`hf auth login`."
    )


def _in_cache(name: str, revision: str | None, error: Exception) -> Source:
    """Without a network, a model that was loaded before is still here."""
    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        raise ModelRefused(
            f"{name!r} is neither a folder here nor in the Hugging Face cache, and the Hub could "
            f"not be reached ({type(error).__name__}); check the network, or give a local folder."
        ) from None
    folder = Path(found).parent  # named by its commit
    files = tuple(sorted(path.name for path in folder.iterdir()))
    return Source(name, str(folder), None, folder.name, files)
