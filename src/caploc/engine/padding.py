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
        alike = [list(same) for _, same in groupby(ordered, key=lambda item: len(tokens(item)))]
        if len(alike) < 2 or not self.allows([tokens(same[0]) for same in alike]):
            return alike
        return [ordered]

    def allows(self, rows: Sequence[Tokens]) -> bool:
        """Whether such rows, all of unlike length and the longest first, may share a batch."""
        longest = len(rows[0])
        padding = longest - len(rows[-1])
        seen = longest <= FURTHER * self.longest and padding <= FURTHER * self.most
        if self.holds and not seen:
            # What is kept of a row may depend on its length: little, some and much padding.
            some = [rows[0], *(rows[n] for n in sorted({1, len(rows) // 2, len(rows) - 1}))]
            self.holds = agreed(self.loaded, self.shown(some))
            self.longest, self.most = max(longest, self.longest), max(padding, self.most)
        return self.holds

    @torch.inference_mode()
    def shown(self, rows: Sequence[Tokens]) -> bool:
        """Whether the predictions of all but the first row, beside it, are those each has alone."""
        predict = self.continued if self.left else self.read
        try:
            beside, alone = predict(rows), [predict([row])[0] for row in rows[1:]]
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            return False
        return all(map(self.same, beside[1:], alone))

    def same(
        self, beside: Float[Tensor, "steps vocabulary"], alone: Float[Tensor, "steps vocabulary"]
    ) -> bool:
        """Whether a row's logits are equal up to rounding."""
        first = bool(beside[0].argmax() == alone[0].argmax())
        steps = len(alone) if first else 1  # after another token there is nothing to compare
        apart = (beside[:steps] - alone[:steps]).square().mean().sqrt()
        return bool(apart <= tolerance(self.loaded.model) * alone[:steps].std())

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
