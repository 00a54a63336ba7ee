"""Hold what was written against the runtime knockout: the logits of both on the same tokens."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from caploc.errors import ModelRefused
from caploc.heads import Mask
from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.models.proof import TOLERANCE, logits_of, random_tokens

PROMPT_TOKENS = 64  # of each prompt, its last ones: all logits of a comparison are held in memory
PROMPTS = 8
SEED = 0

Tokens = Int[Tensor, "rows tokens"]
Logits = Float[Tensor, "rows tokens vocabulary"]


@dataclass(frozen=True)
class LogitAgreement:
    """How far logits lie from those of the runtime knockout.

    `largest` is the largest difference of a logit, `error` the root mean square of all of them as a
    share of what the knockout itself changes, `same_choice` the share of positions at which the
    likeliest token is the same.
    """

    way: str  # how it was loaded
    dtype: str
    device: str
    positions: int
    largest: float
    error: float
    same_choice: float

    @property
    def exact(self) -> bool:
        """Whether every logit is the same, bit for bit."""
        return self.largest == 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as files hold it."""
        return asdict(self) | {"exact": self.exact}

    def sentence(self) -> str:
        """Say it to people."""
        found = "bit-identical" if self.exact else f"off by {self.largest:.2g} at most"
        return (
            f"Checked against the runtime knockout ({self.way}, {self.dtype}, {self.device}): "
            f"logits at {self.positions} positions {found}."
        )

    def hold(self) -> None:
        """Refuse what is not the knockout.

        Raises:
            ModelRefused: if the error is more than rounding.
        """
        limit = TOLERANCE.get(getattr(torch, self.dtype), 1e-3)
        if not self.error <= limit:
            raise ModelRefused(
                f"What was written does not answer as the knocked-out model does ({self.way}: its "
                f"logits are off by {self.error:.2g} of the knockout's effect, {limit:g} is "
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
        """Run a model intact and knocked out."""
        tokens = _verification_tokens(loaded, prompts)
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
    def agreement(self, model: PreTrainedModel, way: str) -> LogitAgreement:
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
        return LogitAgreement(way, self.dtype, self.device, positions, largest, error, share)


def _verification_tokens(loaded: LoadedModel, prompts: Sequence[str]) -> list[Tokens]:
    """Draw token ids; add the ends of the first prompts, each a batch of its own."""
    batches = [random_tokens(loaded.model, SEED)]
    for prompt in prompts[:PROMPTS]:
        ids = loaded.tokenizer(prompt)["input_ids"][-PROMPT_TOKENS:]
        if ids:
            batches.append(torch.tensor([ids], device=loaded.device))
    return batches


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
