"""Weights without some heads: a checkpoint with their columns at zero.

What was written is held against the runtime knockout: the logits of both on the same tokens.

Of a checkpoint nothing is converted: a file that holds no such column is copied, the others are
copied and patched in place, byte by byte. So dtype, shards, index and metadata stay as they were,
and no weights are held in memory.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.components import Mask
from caploc.errors import ModelRefused
from caploc.models.cutting import knocked_out, list_sites
from caploc.models.loading import LoadedModel
from caploc.models.projections import input_width, module_name
from caploc.models.proof import TOLERANCE, Logits, Tokens, logits_of, random_tokens

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
}  # fmt: skip
# What a model needs beside its weights, and what its owner asks to be handed on with it.
COMPANIONS = tuple(
    "*config.json tokenizer* special_tokens_map.json added_tokens.json vocab* merges.txt *.model "
    "*.tiktoken chat_template* additional_chat_templates LICENSE* NOTICE* USE_POLICY*".split()
)
CODE = "*.py"


@dataclass(frozen=True)
class CutProjection:
    """An output projection, its name in the model, and which of the values it reads are cut."""

    name: str
    module: nn.Module
    cut: Bool[np.ndarray, " reads"]

    @property
    def weight(self) -> Tensor:
        """The weight: (writes, reads), or (reads, writes) of a Conv1D."""
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight

    @property
    def reads_first(self) -> bool:
        return isinstance(self.module, Conv1D)


def cut_projections(loaded: LoadedModel, mask: Mask) -> list[CutProjection]:
    """Find the projections that read a knocked-out head, bottom up."""
    found = []
    for _, columns, module in list_sites(loaded.projections, loaded.grid):
        cut = mask[columns]
        if cut.any():
            name = module_name(loaded.model, module)
            reads = np.repeat(cut, input_width(module) // len(cut))
            found.append(CutProjection(name, module, reads))
    return found


def write_weights(source: Path, target: Path, projections: list[CutProjection]) -> list[str]:
    """Copy a checkpoint's weights with the cut columns at zero; return the files changed.

    Raises ModelRefused if a projection's weight is not found in the files as it was loaded, or is
    stored quantised; OSError if the disk refuses.
    """
    files = weight_map(source)
    tensors = {_stored_name(source, files, each): each for each in projections}
    for file in sorted(set(files.values())):
        shutil.copyfile(source / file, target / file)
        for name, projection in tensors.items():
            if files[name] == file:
                _zero(target / file, name, projection)
    if (source / INDEX).exists() and not (source / WEIGHTS).exists():
        shutil.copyfile(source / INDEX, target / INDEX)
    return sorted({files[name] for name in tensors})


def weight_map(folder: Path) -> dict[str, str]:
    """Find every tensor's file as transformers reads a folder: one file, else those of an index."""
    if (folder / WEIGHTS).exists():
        return dict.fromkeys(_header(folder / WEIGHTS)[0], WEIGHTS)
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


def _stored_name(folder: Path, files: Mapping[str, str], projection: CutProjection) -> str:
    """Find the tensor a projection was loaded from: alike in name, and equal in every value.

    Files may name it otherwise than the model does: without the outermost part, or with another.
    """
    wanted = f"{projection.name}.weight"
    alike = [name for name in files if _from_layer(name) == _from_layer(wanted)]
    same = [name for name in alike if _holds(folder / files[name], name, projection)]
    if wanted in same:
        same = [wanted]
    if len(same) != 1:
        raise ModelRefused(
            f"{len(same)} tensors of the checkpoint hold the weights of {wanted} as they were "
            "loaded, where one is needed: it is stored quantised, fused or converted. Load it with "
            "transformers in bfloat16 or float32, save it with save_pretrained, and export that."
        )
    return same[0]


def _from_layer(name: str) -> str:
    """Cut a name to the layer's number and the rest: `h.0.attn.weight` to `0.attn.weight`."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] :] if numbers else parts)


def _holds(path: Path, tensor: str, projection: CutProjection) -> bool:
    """Tell whether a tensor of a file is the projection's weight, in a plain dtype."""
    entry = _header(path)[0][tensor]
    weight = projection.weight.detach()
    if entry["dtype"] not in FLOATS or tuple(entry["shape"]) != tuple(weight.shape):
        return False
    if weight.is_meta:  # on disk: its name must do, and the check at the end
        return True
    with safe_open(path, framework="pt") as file:
        return torch.equal(file.get_tensor(tensor).to(weight.dtype), weight.cpu())


def _zero(path: Path, tensor: str, projection: CutProjection) -> None:
    """Set a projection's cut columns in a file to zero, and nothing else."""
    entries, start = _header(path)
    entry = entries[tensor]
    shape = (*entry["shape"], FLOATS[entry["dtype"]].itemsize)
    begin = start + entry["data_offsets"][0]
    values = np.memmap(path, np.uint8, "r+", offset=begin, shape=shape)
    by_reads = values if projection.reads_first else values.swapaxes(0, 1)
    by_reads[projection.cut] = 0  # zero is all bits off in every float format
    values.flush()


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Read what a safetensors file says of each tensor, and the byte at which values begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}, 8 + length


def copy_companions(source: Path, target: Path, *, code: bool) -> None:
    """Copy config, tokenizer, templates and licence; program files only with `code`."""
    patterns = (*COMPANIONS, CODE) if code else COMPANIONS
    for path in sorted(source.iterdir()):
        if any(fnmatchcase(path.name, pattern) for pattern in patterns):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target / path.name)


PROMPT_TOKENS = 64  # of each prompt, its last ones: all logits of a comparison are held in memory
PROMPTS = 8
SEED = 0


@dataclass(frozen=True)
class LogitAgreement:
    """How far logits lie from those of the runtime knockout.

    `largest` is the largest difference of a logit, `error` the root mean square of all of them as a
    share of what the knockout itself changes, `same_choice` the share of positions at which the
    likeliest token is the same.
    """

    dtype: str
    device: str
    positions: int
    largest: float
    error: float
    same_choice: float

    @property
    def exact(self) -> bool:
        return self.largest == 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact}

    def sentence(self) -> str:
        found = "bit-identical"
        if not self.exact:
            found = f"off by {self.largest:.2g} at most, {self.error:.0%} of the knockout's effect"
        return (
            f"Checked against the runtime knockout ({self.dtype}, {self.device}): "
            f"logits at {self.positions} positions {found}."
        )

    def hold(self) -> None:
        """Refuse what is not the knockout."""
        limit = TOLERANCE.get(getattr(torch, self.dtype), 1e-3)
        if not self.error <= limit:
            raise ModelRefused(
                f"What was written does not answer as the knocked-out model does (its logits are "
                f"off by {self.error:.2g} of the knockout's effect, {limit:g} is "
                "allowed), so nothing was kept; this model cannot be exported."
            )


@dataclass(frozen=True)
class KnockoutLogits:
    """The logits of a model under knockout, and how much the knockout changed them."""

    tokens: list[Tokens]
    logits: list[Logits]
    effect: float  # root mean square over all logits
    dtype: str
    device: str

    @classmethod
    @torch.inference_mode()
    def take(cls, loaded: LoadedModel, mask: Mask, prompts: Sequence[str]) -> "KnockoutLogits":
        tokens = [random_tokens(loaded.model, SEED)]
        for prompt in prompts[:PROMPTS]:  # its end, in a batch of its own
            ids = loaded.tokenizer(prompt)["input_ids"][-PROMPT_TOKENS:]
            if ids:
                tokens.append(torch.tensor([ids], device=loaded.device))
        masks = torch.from_numpy(mask)[None]
        logits, squares, count = [], 0.0, 0
        for batch in tokens:
            intact = logits_of(loaded.model, batch)
            with knocked_out(loaded.projections, loaded.grid, masks):
                logits.append(logits_of(loaded.model, batch))
            squares += float((logits[-1] - intact).double().square().sum())
            count += intact.numel()
        return cls(tokens, logits, (squares / count) ** 0.5, loaded.dtype, str(loaded.device))

    @torch.inference_mode()
    def agreement(self, model: PreTrainedModel) -> LogitAgreement:
        """Measure how a model's logits agree with these."""
        largest, squares, count, same, positions = 0.0, 0.0, 0, 0, 0
        for batch, wanted in zip(self.tokens, self.logits, strict=True):
            got = logits_of(model, batch)
            if not torch.equal(got, wanted):
                difference = (got - wanted).double()
                # not max(): a NaN must not pass for agreement
                largest = float(torch.maximum(difference.abs().max(), torch.tensor(largest)))
                squares += float(difference.square().sum())
            count += got.numel()
            same += int((got.argmax(-1) == wanted.argmax(-1)).sum())
            positions += got[..., 0].numel()
        error = (squares / count) ** 0.5 / self.effect if self.effect else squares
        share = same / positions
        return LogitAgreement(self.dtype, self.device, positions, largest, error, share)


def load_plainly(
    folder: Path, *, dtype: str, device: str | None, trust_remote_code: bool
) -> PreTrainedModel:
    """Load a model as anyone does, nothing of caploc's; without a device, over all there are."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        trust_remote_code=trust_remote_code,
        device_map=device or "auto",
    )
    plain: PreTrainedModel = model.eval()
    return plain
