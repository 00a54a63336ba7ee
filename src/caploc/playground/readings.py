"""Texts that a task wants read, not continued: how likely each token is, intact and knocked out."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from caploc.engine import BatchEngine
from caploc.engine.encoding import Span
from caploc.engine.plain import last_logits
from caploc.heads import Head
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.playground.odds import INTACT, KNOCKED_OUT, SIDES, Event, known, odds
from caploc.playground.pieces import Pieces
from caploc.tasks.requests import LogLikelihood, Rolling, Scored


class Reading:
    """Reads the requests of one example with both models.

    After `events`, `responses` holds what each side answers, as the engine would.
    """

    def __init__(
        self,
        engine: BatchEngine[LoadedModel],
        requests: Sequence[LogLikelihood | Rolling],
        heads: tuple[Head, ...],
    ) -> None:
        """Prepare; nothing is read yet."""
        self.engine, self.requests = engine, requests
        self.heads: dict[str, tuple[Head, ...]] = {INTACT: (), KNOCKED_OUT: heads}
        self.responses: dict[str, list[Scored]] = {side: [] for side in SIDES}

    def events(self) -> Iterator[Event]:
        """The tokens of each text as they are read, then its log-probability on each side."""
        for number, request in enumerate(self.requests):
            yield {"event": "choice", "choice": number}
            totals = {side: Scored(0.0, True, 0) for side in SIDES}
            for span in self.engine.encoder.spans(request):
                yield self.read(span, totals)
            for side in SIDES:
                self.responses[side].append(totals[side])
            yield {
                "event": "read",
                "choice": number,
                **{side: known(totals[side].logprob) for side in SIDES},
            }

    def read(self, span: Span, totals: dict[str, Scored]) -> Event:
        """Read one span with both models and add what they find to the totals."""
        logprobs = {side: self.logprobs(side, span) for side in SIDES}
        wanted = torch.tensor(span.continuation)
        for side, found in logprobs.items():
            chosen = found.gather(1, wanted[:, None].to(found.device))
            before = totals[side]
            totals[side] = Scored(
                before.logprob + float(chosen.double().sum()),
                before.greedy and found.argmax(-1).tolist() == list(span.continuation),
                before.tokens + len(span.continuation),
            )
        tokenizer = self.engine.loaded.tokenizer
        context = span.inputs[: len(span.inputs) + 1 - len(span.continuation)]
        cut = Pieces(tokenizer, context)
        tokens = [
            {
                "token": token,
                "text": cut.add(token),
                **odds(tokenizer, token, {side: logprobs[side][place] for side in SIDES}),
            }
            for place, token in enumerate(span.continuation)
        ]
        return {"event": "tokens", "tokens": tokens}

    @torch.inference_mode()
    def logprobs(self, side: str, span: Span) -> Float[Tensor, "tokens vocabulary"]:
        """Log-probabilities of whatever could stand where the span's continuation stands."""
        model = self.engine.loaded.model
        ids = torch.tensor([span.inputs], device=model.device)
        with knockout(self.engine.loaded, self.heads[side]):
            logits = last_logits(model, ids, len(span.inputs) - len(span.continuation))
        return torch.log_softmax(logits[0].float(), dim=-1)
