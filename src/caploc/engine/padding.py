"""Whether rows of unlike length may share a batch of the plain way.

Shorter rows are padded there, and in most decoders that changes nothing. In some it does: those
that ignore the attention mask, that number positions by the place in the batch, that carry a state
through the padding, or that read keys by blocks. So it is shown at the lengths at hand, and where
it fails only rows of equal length share a batch.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import torch
from accelerate.utils.memory import should_reduce_batch_size
from jaxtyping import Float
from torch import Tensor

from caploc.engine.plain import last_logits, padded
from caploc.engine.suitability import agreed
from caploc.models.loading import CutModel
from caploc.models.proof import tolerance

T = TypeVar("T")
Tokens = Sequence[int]
FURTHER = 2  # it is shown again for rows, or padding, so many times as long as seen
STEPS = 2  # tokens said: the second reads kept keys


class Padding:
    """Sorts rows into those that may share batches."""

    def __init__(self, loaded: CutModel, *, left: bool) -> None:
        """For rows to be continued, which are padded on the left, or to be scored (right)."""
        self.loaded, self.left = loaded, left
        self.holds, self.longest, self.most = True, 0, 0

    def groups(self, items: Iterable[T], tokens: Callable[[T], Tokens]) -> list[list[T]]:
        """Items that may share batches, longest first; `tokens` are those to be read."""
        ordered = sorted(items, key=lambda item: -len(tokens(item)))
        if not ordered:
            return []
        if self.allows(tokens(ordered[0]), tokens(ordered[-1])):
            return [ordered]
        return [list(alike) for _, alike in groupby(ordered, key=lambda item: len(tokens(item)))]

    def allows(self, longest: Tokens, shortest: Tokens) -> bool:
        """Whether rows as long as these, and any between, may share a batch."""
        padding = len(longest) - len(shortest)
        seen = len(longest) <= FURTHER * self.longest and padding <= FURTHER * self.most
        if not padding or not self.holds or seen:
            return not padding or self.holds
        self.holds = agreed(self.loaded, self.shown(longest, shortest))
        self.longest, self.most = max(len(longest), self.longest), max(padding, self.most)
        return self.holds

    @torch.inference_mode()
    def shown(self, longest: Tokens, shortest: Tokens) -> bool:
        """Whether the shorter row's predictions beside the longer one are those it has alone."""
        predict = self.continued if self.left else self.read
        try:
            beside, alone = predict([longest, shortest]), predict([shortest])
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            return False
        first = beside[-1, 0].argmax(-1) == alone[-1, 0].argmax(-1)
        alike = alone.shape[1] if first else 1  # after another token there is nothing to compare
        truth = alone[-1, :alike]
        apart = (beside[-1, :alike] - truth).square().mean().sqrt()
        return bool(apart <= tolerance(self.loaded.model) * truth.std())

    def continued(self, rows: Sequence[Tokens]) -> Float[Tensor, "rows steps vocabulary"]:
        """The logits from which each row is continued, greedily."""
        model: Any = self.loaded.model
        ids, attention = padded(rows, self.loaded.tokenizer.pad_token_id, left=True)
        output = model.generate(
            input_ids=ids.to(self.loaded.device),
            attention_mask=attention.to(self.loaded.device),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            num_beams=1,
            pad_token_id=self.loaded.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return torch.stack(output.logits, dim=1).float()

    def read(self, rows: Sequence[Tokens]) -> Float[Tensor, "rows 1 vocabulary"]:
        """The logits after each row's last token."""
        ids, _ = padded(rows, 0, left=False)
        logits = last_logits(self.loaded.model, ids.to(self.loaded.device), len(rows[-1]) - 1)
        ends = torch.tensor([len(row) - len(rows[-1]) for row in rows], device=logits.device)
        return logits[torch.arange(len(rows), device=logits.device), ends][:, None].float()
