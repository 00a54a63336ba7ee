"""Log-probabilities of continuations: of the tokens wanted, and summed up to an ask's answer."""

import inspect
from typing import NamedTuple

import torch
from torch import Tensor

from caploc.engine.api import Answer, Ask
from caploc.engine.encoding import RequestEncoder
from caploc.tasks.task import Generate, LogLikelihood, Scored


class ContinuationScore(NamedTuple):
    """A continuation's log-probability, and whether each of its tokens was the likeliest.

    If not, `instead` are its tokens up to where another is likelier, and that one.
    """

    logprob: float
    greedy: bool
    instead: tuple[int, ...]


class PendingScore:
    """An ask some of whose spans have yet to be scored."""

    def __init__(self, ask: Ask, encoder: RequestEncoder) -> None:
        assert not isinstance(ask.request, Generate)
        self.ask, self.encoder, self.spans = ask, encoder, encoder.spans(ask.request)
        self.missing = len(self.spans)
        self.logprob, self.greedy, self.cost = 0.0, True, 0.0
        self.instead: tuple[int, ...] = ()

    def take(self, found: ContinuationScore, cost: float) -> list[Answer]:
        """Take one span's result; return the answer once none is missing."""
        self.logprob, self.greedy = self.logprob + found.logprob, self.greedy and found.greedy
        self.instead = found.instead
        self.cost, self.missing = self.cost + cost, self.missing - 1
        return [] if self.missing else [self.answer()]

    def answer(self) -> Answer:
        tokens = sum(len(span.continuation) for span in self.spans)
        # of a whole text it is not asked what the model would have written
        known = self.instead and isinstance(self.ask.request, LogLikelihood)
        instead = self.encoder.decode(self.instead) if known else ""
        alone = sum(len(span.inputs) for span in self.spans)
        return Answer(
            self.ask.key, Scored(self.logprob, self.greedy, tokens, instead), 0.0, self.cost, alone
        )


def sum_logprobs(logits: Tensor, wanted: Tensor) -> ContinuationScore:
    """Sum the log-probabilities of the tokens wanted.

    In float32 whatever the model's dtype: in bfloat16 choices would tie.
    """
    read = torch.log_softmax(logits.float(), dim=-1)
    chosen, best = read.gather(1, wanted[:, None]), read.argmax(-1)
    others = (best != wanted).nonzero()
    instead = best[: int(others[0]) + 1].tolist() if len(others) else ()
    return ContinuationScore(float(chosen.double().sum()), not instead, tuple(instead))


def last_logits(model: torch.nn.Module, ids: Tensor, first: int) -> Tensor:
    """Compute logits from position `first` on, and no others where the model allows it."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        positions = torch.arange(first, ids.shape[1])  # on the host: it fits any last device
        kept: Tensor = model(ids, use_cache=False, logits_to_keep=positions).logits
        return kept
    every: Tensor = model(ids, use_cache=False).logits
    return every[:, first:]
