"""A lane: the model, intact or with heads knocked out, reading one text and keeping its keys."""

import inspect
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from caploc.heads import Head
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel


class Lane:
    """Reads a text piece by piece; `logits` are those of the token that would come next.

    The heads are knocked out during each reading and at no other time, so that lanes of different
    heads may take turns on one model.
    """

    logits: Float[Tensor, "1 vocabulary"]  # in float32, whatever the model's dtype

    def __init__(self, loaded: LoadedModel, heads: Sequence[Head]) -> None:
        """Read with this model and these heads knocked out."""
        self.loaded, self.heads = loaded, tuple(heads)
        self.text: list[int] = []
        self.keys: Any = None
        self.last_only = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> None:
        """Read on."""
        self.text += tokens
        # a model that keeps no keys reads its text anew
        new = self.text if self.keys is None else tokens
        options: dict[str, Any] = {"logits_to_keep": 1} if self.last_only else {}
        here = self.loaded.model.device
        with knockout(self.loaded, self.heads):
            output = self.loaded.model(
                input_ids=torch.tensor([list(new)], device=here),
                attention_mask=torch.ones(1, len(self.text), dtype=torch.long, device=here),
                past_key_values=self.keys,
                use_cache=True,
                **options,
            )
        self.keys = getattr(output, "past_key_values", None)
        self.logits = output.logits[:, -1].to(torch.float32)

    def fork(self) -> "Lane":
        """A lane that has read the same and may read something else from here on."""
        other = copy(self)
        other.text, other.keys = list(self.text), deepcopy(self.keys)
        return other

    @property
    def logprobs(self) -> Float[Tensor, " vocabulary"]:
        """Log-probability, in nats, of every token that could come next."""
        return torch.log_softmax(self.logits[0], dim=-1)
