"""What other engines have in common: that they are shown to continue texts as the model does."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caploc.engine.asks import Ask, MaskNumbers
from caploc.engine.encoding import RequestEncoder, Settings, Stops
from caploc.engine.memory import BatchSizer
from caploc.grid import Grid
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel
from caploc.models.projections import text_config
from caploc.models.proof import tolerance
from caploc.tasks.task import Generate

ZERO_ONLY = "knocks heads out to zero only"
NOT_GREEDY = "decodes greedily and by no other options"
OWN, SAID = (3, 5), 3  # tokens of the proof: each prompt's own, and those said


@dataclass(frozen=True)
class Continued:
    """The tokens said after a prompt, and their log-probabilities where they were wanted."""

    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Limit:
    """The end of an answer after so many tokens."""

    limit: int = SAID

    def over(self, said: Sequence[int]) -> bool:
        return len(said) >= self.limit


# (prompts, masks, the number of each prompt's mask) -> what was said to each
Continues = Callable[[Sequence[tuple[int, ...]], MaskNumbers, Sequence[int]], list[Continued]]


class ProvenBackend(ABC):
    """Answers under zeroed heads, texts greedily, once its own predictions are the model's."""

    def __init__(
        self,
        loaded: CutModel,
        encoder: RequestEncoder,
        sizer: BatchSizer,
        stopping: Callable[[Settings], Stops],
        greedy: Callable[[str], bool],
    ) -> None:
        """Answer with this model; `greedy` tells whether options, as JSON, ask for no more.

        `shares` says whether rows of one mask share blocks of keys, `salts` whether those of
        other masks are kept from them, as they must be.
        """
        self.loaded, self.encoder, self.sizer = loaded, encoder, sizer
        self.stopping, self.greedy = stopping, greedy
        self.shares = self.salts = True

    @property
    def grid(self) -> Grid[Any]:
        """Return the parts that masks knock out."""
        return self.loaded.grid

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Say why it does not serve this model, as the end of a sentence; None if it does."""

    def refusal(self, ask: Ask) -> str | None:
        """Say why it cannot answer this, as the end of a sentence; None if it can."""
        if ask.source is not None and ask.knocked_out.any():
            return ZERO_ONLY
        request = ask.request
        if isinstance(request, Generate) and not self.greedy(self.encoder.prompt(request).options):
            return NOT_GREEDY
        return self.trouble


def gives_plain_tokens(
    loaded: CutModel, continues: Continues, page: int, seed: int = 0
) -> str | None:
    """Say why an engine does not give a model's own log-probabilities; None if it does.

    Shown on random tokens: prompts of different lengths after one prefix that fills a page of keys,
    each under no mask, and under two that cut half of the heads each. An error is held against what
    the cut changes, so that an engine that reads nothing of a prompt but its end cannot pass.
    """
    masks = MaskNumbers(loaded.grid)
    generator, config = np.random.default_rng(seed), text_config(loaded.model)
    window = getattr(config, "max_position_embeddings", None) or page + 32
    length = max(1, min(page + 2, window - max(OWN) - SAID))
    prefix = generator.integers(config.vocab_size, size=length).tolist()
    half = np.arange(loaded.grid.size) % 2 == 0
    tails = [generator.integers(config.vocab_size, size=own).tolist() for own in OWN]
    numbers = [masks.number(mask) for mask in (np.zeros_like(half), half, ~half) for _ in OWN]
    prompts = [(*prefix, *tails[n % len(OWN)]) for n in range(len(numbers))]
    try:
        found = continues(prompts, masks, numbers)
    # the ways in which a model can be built otherwise than an engine supposes
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
        return f"fails on this model ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    intact, effect, errors = list[torch.Tensor](), 0.0, list[float]()
    for prompt, number, said in zip(prompts, numbers, found, strict=True):
        heads: Any = masks.all[number].heads
        logits = plain_logits(loaded, [*prompt, *said.tokens[:-1]], heads, len(said.tokens))
        wanted = torch.tensor(said.tokens)[:, None]
        truth = logits.log_softmax(-1).gather(1, wanted)[:, 0]
        errors.append(float((torch.tensor(said.logprobs) - truth).square().mean().sqrt()))
        place = len(errors) - 1
        if place < len(OWN):
            intact.append(logits[0])
        else:
            moved = float((logits[0] - intact[place % len(OWN)]).square().mean().sqrt())
            effect = max(effect, moved)
    if not max(errors) <= tolerance(loaded.model) * effect:
        return "does not give this model's own predictions, to rounding"
    return None


@torch.inference_mode()
def plain_logits(
    loaded: CutModel, tokens: Sequence[int], heads: torch.Tensor, count: int
) -> torch.Tensor:
    """Compute the last `count` logits of a text under a mask, in float32 on the host."""
    ids = torch.tensor([list(tokens)], device=loaded.device)
    with knocked_out(loaded.projections, loaded.grid, heads[None]):
        logits: torch.Tensor = loaded.model(ids, use_cache=False).logits[0, -count:]
    return logits.float().cpu()
