"""A checkpoint's own files with the columns that read some heads set to zero, byte by byte.

Nothing is converted: a file that holds no such column is copied, the others are copied and patched
in place. So dtype, shards, index and metadata stay as they were, and no weights are held in memory.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.heads import Mask
from caploc.models.cutting import standing
from caploc.models.loading import LoadedModel
from caploc.models.projections import module_name

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# What a model needs beside its weights, and what its owner asks to be handed on with it.
COMPANIONS = (
    "*config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
)
CODE = "*.py"


@dataclass(frozen=True)
class Projection:
    """One output projection, its name in the model, and which of the values it reads are cut."""

    name: str
    module: nn.Module
    cut: np.ndarray  # bool, a place for each value read

    @property
    def weight(self) -> Tensor:
        """The weight: (writes, reads), or (reads, writes) of a Conv1D."""
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight

    @property
    def reads_first(self) -> bool:
        """Whether the weight's first axis is what it reads."""
        return isinstance(self.module, Conv1D)


@dataclass(frozen=True)
class Place:
    """Where a projection's weight lies: the file, and the tensor in it."""

    file: str
    tensor: str


def cut_projections(loaded: LoadedModel, mask: Mask) -> list[Projection]:
    """The projections that read a knocked-out head, bottom up."""
    found = []
    for site, columns in zip(loaded.projections, loaded.grid.layer_slices, strict=True):
        for module, inside in standing(site, columns):
            cut = mask[columns][inside]
            if cut.any():
                reads = module.weight.shape[0 if isinstance(module, Conv1D) else 1]
                name = module_name(loaded.model, module)
                found.append(Projection(name, module, np.repeat(cut, reads // len(cut))))
    return found


def write_weights(source: Path, target: Path, projections: list[Projection]) -> list[str]:
    """Copy a checkpoint's weights with the projections' cut columns at zero; the files changed.

    Raises:
        ModelRefused: if a projection's weight is not found in the files as it was loaded, or is
            stored quantised.
        OSError: if the disk refuses.
    """
    files = weight_map(source)
    places = {place_of(source, files, each): each for each in projections}
    for file in sorted(set(files.values())):
        shutil.copyfile(source / file, target / file)
        for place, projection in places.items():
            if place.file == file:
                zero(target / file, place.tensor, projection)
    if (source / INDEX).exists() and not (source / WEIGHTS).exists():
        shutil.copyfile(source / INDEX, target / INDEX)
    return sorted({place.file for place in places})


def weight_map(folder: Path) -> dict[str, str]:
    """The file of every tensor, as transformers reads a folder: one file, else those of an index.

    Raises:
        ModelRefused: if there is neither, or the index is unsound.
    """
    if (folder / WEIGHTS).exists():
        return dict.fromkeys(header(folder / WEIGHTS)[0], WEIGHTS)
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files = {str(name): str(file) for name, file in index["weight_map"].items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelRefused(
            f"{folder} has neither {WEIGHTS} nor a sound {INDEX} ({type(error).__name__}); save "
            "the model with save_pretrained first."
        ) from error
    for file in set(files.values()):
        # an index is data from elsewhere: it may not name files outside the model's folder
        if Path(file).name != file or not (folder / file).is_file():
            raise ModelRefused(f"{INDEX} names {file!r}, which is no file beside it.")
    return files


def place_of(folder: Path, files: Mapping[str, str], projection: Projection) -> Place:
    """The tensor that a projection was loaded from: alike in name, and equal in every value.

    Files may name it otherwise than the model does: without the outermost part, or with another.

    Raises:
        ModelRefused: if there is no such tensor, or more than one.
    """
    wanted = f"{projection.name}.weight"
    alike = [name for name in files if from_layer(name) == from_layer(wanted)]
    same = [name for name in alike if holds(folder / files[name], name, projection)]
    if wanted in same:
        same = [wanted]
    if len(same) != 1:
        raise ModelRefused(
            f"{len(same)} tensors of the checkpoint hold the weights of {wanted} as they were "
            "loaded, where one is needed: it is stored quantised, fused or converted. Load it with "
            "transformers in bfloat16 or float32, save it with save_pretrained, and export that."
        )
    return Place(files[same[0]], same[0])


def from_layer(name: str) -> str:
    """A name from the layer's number on: `0.attn.c_proj.weight` of `h.0.attn.c_proj.weight`."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] :] if numbers else parts)


def holds(path: Path, tensor: str, projection: Projection) -> bool:
    """Whether a tensor of a file is the projection's weight, in a plain dtype."""
    entry = header(path)[0][tensor]
    weight = projection.weight.detach()
    if weight.is_meta:  # on disk: its name must do, and the check at the end
        return entry["dtype"] in ITEM_BYTES and tuple(entry["shape"]) == tuple(weight.shape)
    if entry["dtype"] not in ITEM_BYTES or tuple(entry["shape"]) != tuple(weight.shape):
        return False
    with safe_open(path, framework="pt") as file:
        return torch.equal(file.get_tensor(tensor).to(weight.dtype), weight.cpu())


def zero(path: Path, tensor: str, projection: Projection) -> None:
    """Set a projection's cut columns to zero in a file, and nothing else."""
    entries, start = header(path)
    entry = entries[tensor]
    shape = (*entry["shape"], ITEM_BYTES[entry["dtype"]])
    begin = start + entry["data_offsets"][0]
    values = np.memmap(path, np.uint8, "r+", offset=begin, shape=shape)
    # zero is all bits off in every float format
    if projection.reads_first:
        values[projection.cut] = 0
    else:
        values[:, projection.cut] = 0
    values.flush()


def header(path: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of each tensor, and the byte at which values begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}, 8 + length


def copy_companions(source: Path, target: Path, *, code: bool) -> None:
    """Copy config, tokenizer, templates and licence; program files only with `code`."""
    for path in companions(source, code=code):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)


def companions(source: Path, *, code: bool) -> Iterator[Path]:
    """What lies beside a model's weights and belongs to it."""
    patterns = (*COMPANIONS, CODE) if code else COMPANIONS
    for path in sorted(source.iterdir()):
        if any(fnmatchcase(path.name, pattern) for pattern in patterns):
            yield path


def checkpoint_bytes(source: Path) -> int:
    """The size of a checkpoint's weight files."""
    return sum((source / file).stat().st_size for file in set(weight_map(source).values()))
