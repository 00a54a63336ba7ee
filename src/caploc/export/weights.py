"""Weights without some heads: a checkpoint with their columns at zero.

What was written is held against the runtime knockout: the logits of both on the same tokens.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from caploc.components import Mask
from caploc.errors import ModelRefused
from caploc.models.cutting import knocked_out, list_sites
from caploc.models.loading import LoadedModel
from caploc.models.projections import input_width
from caploc.models.proof import TOLERANCE, Logits, Tokens, logits_of, random_tokens

# What a model needs beside weights and config, and what its owner asks to be handed on with it.
COMPANIONS = tuple(
    "generation_config.json tokenizer* special_tokens_map.json added_tokens.json vocab* merges.txt "
    "*.model *.tiktoken chat_template* additional_chat_templates LICENSE* NOTICE* "
    "USE_POLICY*".split()
)
CODE = "*.py"


@torch.no_grad()
def zero_columns(loaded: LoadedModel, mask: Mask) -> None:
    """Set the columns of the output projections that read a knocked-out head to zero."""
    for _, columns, module in list_sites(loaded.projections, loaded.grid):
        cut = mask[columns]
        reads = torch.from_numpy(np.repeat(cut, input_width(module) // len(cut)))
        weight: Any = module.weight
        (weight if isinstance(module, Conv1D) else weight.T)[reads] = 0


def copy_companions(source: Path, target: Path, *, code: bool) -> None:
    """Copy tokenizer, templates and licence; program files only with `code`."""
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
    share of what the knockout itself changes.
    """

    dtype: str
    largest: float
    error: float

    @property
    def exact(self) -> bool:
        return self.largest == 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact}

    def sentence(self) -> str:
        found = "bit-identical"
        if not self.exact:
            found = f"off by {self.largest:.2g} at most, {self.error:.0%} of the knockout's effect"
        return f"Checked against the runtime knockout ({self.dtype}): logits {found}."

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
        return cls(tokens, logits, (squares / count) ** 0.5, loaded.dtype)

    @torch.inference_mode()
    def agreement(self, model: PreTrainedModel) -> LogitAgreement:
        """Measure how a model's logits agree with these."""
        largest, squares, count = 0.0, 0.0, 0
        for batch, wanted in zip(self.tokens, self.logits, strict=True):
            got = logits_of(model, batch)
            difference = torch.where(got == wanted, 0, got - wanted).double()  # some are infinite
            # not max(): a NaN must not pass for agreement
            largest = float(torch.maximum(difference.abs().max().cpu(), torch.tensor(largest)))
            squares += float(difference.square().sum())
            count += wanted.numel()
        error = (squares / count) ** 0.5 / self.effect if self.effect else squares
        return LogitAgreement(self.dtype, largest, error)
