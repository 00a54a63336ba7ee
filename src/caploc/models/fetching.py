"""Fetch a pretrained model from the package index: download, join, check, convert, keep."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from filelock import FileLock

from caploc.errors import BadOption, FetchFailed, ModelRefused, StoreFailed, pick
from caploc.files import UNZIPPING
from caploc.models.gguf import check_package
from caploc.models.loading import convert
from caploc.models.sources import find_source, folder_fingerprint, of_gguf
from caploc.naming import DIGEST, PRETRAINED, Piece, Pretrained, is_fetched, model_folder
from caploc.progress import Progress, Silent

AGAIN = "then run the same command again: what was downloaded is kept"
SPARE_BYTES = 64 * 2**20  # for what is small, and for the file system's own
BLOCK = 2**20
# Wheels alone, of which nothing is run: a source archive's build would be.
PIP = (
    "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=2", "--no-input",
    "--disable-pip-version-check", "--progress-bar=off", "--quiet",
)  # fmt: skip


def fetch_model(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model of the table, unless it is there; return its folder.

    What an earlier attempt left is used. Of several at a time one does the work. Raises UnknownName
    if there is no such model; BadOption if pip or the package gguf is missing; FetchFailed if the
    index does not give a package, or gives another than was published; StoreFailed if the cache
    cannot be written, or the disk is too small.
    """
    model = pick(PRETRAINED, name, "model")
    with suppress(OSError):  # another process may just be deleting it
        if is_fetched(name) and _is_sound(name):
            return model_folder(name)
    check_package(name)
    if importlib.util.find_spec("pip") is None:
        raise BadOption(
            f"{name} is downloaded with pip, which {sys.executable} does not have; run "
            f"`{sys.executable} -m ensurepip`, or `uv pip install pip`."
        )
    target = model_folder(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):  # until no other process fetches it
            if is_fetched(name) and not _is_sound(name):
                shutil.rmtree(target)
            if not is_fetched(name):
                ModelFetch(name, model, target, progress or Silent()).run()
    except OSError as error:
        raise StoreFailed(
            f"{target.parent} cannot be read or written ({error.strerror or error}); free disk "
            f"space, check its rights or name another folder in CAPLOC_CACHE, {AGAIN}."
        ) from error
    return target


def _is_sound(name: str) -> bool:
    """Tell whether a fetched model's files are as they were written."""
    if not (model_folder(name) / DIGEST).exists():
        return False
    try:
        find_source(name).fingerprint()
    except ModelRefused:
        return False
    return True


@dataclass(frozen=True)
class ModelFetch:
    """One model on its way into `target`, all beside it in a folder that goes on where it was."""

    name: str
    model: Pretrained
    target: Path
    progress: Progress

    @property
    def work(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def joined(self) -> Path:
        """The GGUF file, which bears this name when it is whole and right."""
        return self.work / "model.gguf"

    def run(self) -> None:
        """Download what is missing, join, convert; the target appears at the end."""
        for pattern in ("incoming-*", "converted-*"):  # of an attempt that was killed
            for left in self.work.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)
        self.check_space()
        self.work.mkdir(parents=True, exist_ok=True)
        if not self.joined.is_file():
            self.download()
            self.join()
        self.progress.start(f"{self.name}: converting", 1)
        made = Path(mkdtemp(prefix="converted-", dir=self.work))
        write_model(self.joined, made, self.model)
        made.chmod(0o755)  # mkdtemp keeps others out
        for file in made.iterdir():  # on the disk itself, before its name says that it is whole
            file.chmod(0o644)  # safetensors keeps others out, with whom a cache may be shared
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        made.replace(self.target)
        shutil.rmtree(self.work)
        self.progress.advance(1, 0)

    def check_space(self) -> None:
        held = sum(file.stat().st_size for file in self.work.rglob("*") if file.is_file())
        needed = self.model.peak_bytes - held + SPARE_BYTES
        free = shutil.disk_usage(self.target.parent).free
        if free < needed:
            raise StoreFailed(
                f"{self.name} needs {needed / 1e9:.1f} GB while it is fetched, and the disk of "
                f"{self.target.parent} has {free / 1e9:.1f} GB left; free some, or name a folder "
                "elsewhere in CAPLOC_CACHE."
            )

    def wheel(self, piece: Piece) -> Path:
        return self.work / f"{piece.requirement}.whl"

    def download(self) -> None:
        """Get the wheels that are not here yet, one by one: each is kept once it is whole."""
        self.progress.start(f"{self.name}: downloading", len(self.model.pieces))
        for piece in self.model.pieces:
            if not self.wheel(piece).is_file():
                self.download_piece(piece)
            self.progress.advance(1, 0)

    def download_piece(self, piece: Piece) -> None:
        into = Path(mkdtemp(prefix="incoming-", dir=self.work))
        # -P: no module of the folder that the user happens to be in is taken for pip
        command = [sys.executable, "-P", "-m", "pip", *PIP, "--dest", str(into), piece.requirement]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        found = list(into.glob("*.whl"))
        if done.returncode or len(found) != 1:
            raise FetchFailed(
                f"pip does not get {piece.requirement} from the package index "
                f"({_pip_error(done.stderr)}); check the network and `pip config list`, {AGAIN}."
            )
        found[0].replace(self.wheel(piece))
        into.rmdir()

    def join(self) -> None:
        """Put the pieces together, check the whole, and delete the wheels."""
        part, total = self.joined.with_name("joining"), hashlib.sha256()
        self.progress.start(f"{self.name}: joining", len(self.model.pieces))
        with part.open("wb") as file:
            for piece in self.model.pieces:
                for block in self.unzipped(piece):
                    file.write(block)
                    total.update(block)
                self.progress.advance(1, 0)
            file.flush()
            os.fsync(file.fileno())
        if total.hexdigest() != self.model.sha256:
            shutil.rmtree(self.work)
            raise FetchFailed(
                f"What the package index gave for {self.name} has the SHA-256 "
                f"{total.hexdigest()[:16]}... and not {self.model.sha256[:16]}...: it is not what "
                "was published, and nothing of it is kept. Check which index pip uses (`pip config "
                "list`), then fetch it again."
            )
        part.replace(self.joined)
        for piece in self.model.pieces:
            self.wheel(piece).unlink()

    def unzipped(self, piece: Piece) -> Iterator[bytes]:
        """Yield the content of a piece block by block, never more than the whole is to have."""
        wheel, left = self.wheel(piece), self.model.gguf_bytes
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as member:
                while block := member.read(min(BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        raise zipfile.BadZipFile("it holds more than the model has")
                    yield block
        except UNZIPPING as error:
            wheel.unlink()
            raise FetchFailed(
                f"The wheel of {piece.requirement} is damaged ({str(error).strip() or 'cut off'}) "
                "and was deleted; run the same command again, and only it is downloaded anew."
            ) from None


def _pip_error(said: str) -> str:
    """Say what pip says is wrong, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("Retrying (" in line for line in lines):
        return "it cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["without a word"])[-1][:200].rstrip(".")


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
    (target / DIGEST).write_text(folder_fingerprint(target) + "\n", encoding="utf-8")
