"""How far knocked-out heads move a model's next words on ordinary text, of no task at all."""

import math
from collections.abc import Sequence
from importlib.resources import files

import torch
from torch import Tensor

from caploc.components import Mask
from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.result import BeforeAfter, TextChange

TEXT = files("caploc.validation") / "ordinary.txt"  # written for this purpose


@torch.inference_mode()
def measure_text(loaded: LoadedModel, mask: Mask) -> TextChange | None:
    """Compare next-word distributions with the intact model's; None if they are not finite."""
    masks = torch.from_numpy(mask)[None]
    window = getattr(loaded.model.config, "max_position_embeddings", None)
    divergences, intact_surprises, surprises = [], [], []
    for paragraph in TEXT.read_text(encoding="utf-8").strip().split("\n\n"):
        tokens = loaded.tokenizer(paragraph)["input_ids"][:window]
        ids = torch.tensor([tokens], device=loaded.device)
        intact = log_probabilities(loaded, ids)
        with knocked_out(loaded.projections, loaded.grid, masks):
            after = log_probabilities(loaded, ids)
        divergences.append((intact.exp() * (intact - after)).sum(-1))
        follows = ids[0, 1:, None].to(intact.device)
        intact_surprises.append(-intact.gather(-1, follows))
        surprises.append(-after.gather(-1, follows))
    nats, before = mean_of(divergences), mean_of(intact_surprises)
    surprise = mean_of(surprises)
    if not all(math.isfinite(each) for each in (nats, before, surprise)):
        return None
    count = sum(each.numel() for each in divergences)
    return TextChange(
        tokens=count, nats=nats, surprise=BeforeAfter(intact=before, knocked_out=surprise)
    )


def mean_of(values: Sequence[Tensor]) -> float:
    """Average over all tokens of all paragraphs."""
    return float(torch.cat([each.flatten() for each in values]).double().mean())


def log_probabilities(loaded: LoadedModel, ids: Tensor) -> Tensor:
    """Return the log-probability of every next token but the last one's, which nothing follows."""
    logits: Tensor = loaded.model(ids).logits
    return logits[0, :-1].float().log_softmax(-1)
