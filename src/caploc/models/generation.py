"""Greedy answers, many (mask, prompt) rows in one `generate`, each row under its own mask."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.models.wording import Prompt, Wording
from caploc.tasks.requests import Generated


@dataclass(frozen=True)
class Decoding:
    """One row of a generation: a prompt under a mask. All rows of a batch share the settings."""

    ask: int
    prompt: Prompt
    mask: Bool[np.ndarray, " heads"]

    @property
    def settings(self) -> tuple[tuple[str, ...], int, str]:
        """What must be equal within a batch."""
        return self.prompt.stops, self.prompt.new_tokens, self.prompt.options


class StopStrings(StoppingCriteria):
    """A row is done when one of the stop strings appears in what it has said."""

    def __init__(self, wording: Wording, stops: Sequence[str], start: int, rows: int) -> None:
        """Watch answers that begin at position `start`."""
        self.tokenizer, self.stops, self.start = wording.tokenizer, stops, start
        encoded = [wording.tokenizer.encode(stop, add_special_tokens=False) for stop in stops]
        # Another way to split the same string may take more tokens than the tokenizer's own:
        # at worst one token a byte.
        self.tail = max(max(len(e), len(s.encode())) for e, s in zip(encoded, stops, strict=True))
        self.done = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        """Look at the last tokens of every row still speaking."""
        said = input_ids[:, self.start :][:, -self.tail - 1 :]
        open_rows = (~self.done).nonzero().flatten()
        texts = self.tokenizer.batch_decode(said[open_rows.to(said.device)])
        for row, text in zip(open_rows.tolist(), texts, strict=True):
            self.done[row] = any(stop in text for stop in self.stops)
        return self.done.to(input_ids.device)


@torch.inference_mode()
def decode(loaded: LoadedModel, wording: Wording, batch: Sequence[Decoding]) -> list[Generated]:
    """The answers of a batch, in its order."""
    model: Any = loaded.model
    pad = loaded.tokenizer.pad_token_id
    longest = max(len(row.prompt.tokens) for row in batch)
    ids = torch.full((len(batch), longest), pad, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        length = len(row.prompt.tokens)
        ids[number, longest - length :] = torch.tensor(row.prompt.tokens)
        attention[number, longest - length :] = 1
    stops, new_tokens, options = batch[0].settings
    masks = torch.from_numpy(np.stack([row.mask for row in batch]))
    with knocked_out(loaded.projections, loaded.grid, masks):
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=attention.to(model.device),
            max_new_tokens=new_tokens,
            stopping_criteria=StoppingCriteriaList(
                [StopStrings(wording, stops, longest, len(batch))]
            ),
            pad_token_id=pad,
            use_cache=True,
            **greedy(json.loads(options)),
        )
    answers = output[:, longest:].tolist()
    return [Generated(wording.cut(tokens, stops), spoken(tokens, pad)) for tokens in answers]


def greedy(options: dict[str, Any]) -> dict[str, Any]:
    """Generation arguments as `generate` takes them for greedy decoding."""
    unused = {"temperature", "top_p", "top_k", "do_sample"}
    return {k: v for k, v in options.items() if k not in unused} | {"do_sample": False}


def spoken(tokens: Sequence[int], pad: int) -> int:
    """Number of tokens decoded before the row was done and padded."""
    length = len(tokens)
    while length > 1 and tokens[length - 1] == pad and tokens[length - 2] == pad:
        length -= 1
    return length - (1 if length > 1 and tokens[length - 1] == pad else 0)
