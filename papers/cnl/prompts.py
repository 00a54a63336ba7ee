"""What a model makes of a fact's prompt: its tokens, where its subject stands, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from caploc.engine.encoding import RequestEncoder, Span
from caploc.engine.plain import ScoredText, equally_long, score_texts
from caploc.engine.scores import ContinuationScore
from caploc.errors import BadData, ModelRefused
from caploc.models.loading import CutModel
from papers.cnl.facts import Fact, FactPrompt

TOGETHER = 64  # prompts in a forward pass


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt with its answer.

    `tokens` are those of the text and of the answer but its last, from which nothing is predicted;
    the last `len(answer)` positions predict `answer`. `subject` are the positions of the subject's
    tokens, empty where there is none.
    """

    tokens: tuple[int, ...]
    answer: tuple[int, ...]
    subject: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """The first predicting position: that of the text's last token."""
        return len(self.tokens) - len(self.answer)

    @property
    def context(self) -> tuple[int, ...]:
        return self.tokens[: self.start + 1]

    @property
    def span(self) -> Span:
        return Span(self.tokens, self.answer)

    def first(self) -> "Encoded":
        """Leave only the first token of the answer to come."""
        return Encoded(self.context, self.answer[:1], self.subject)


class Encoder:
    """Turns prompts into tokens: what is read, what is to come, and where the subject stands.

    Tokens are those of lm-eval's Hugging Face model (special tokens included), except that a space
    at the end of a prompt stays with the prompt where the tokenizer lets it; lm-eval gives it to
    the answer, whose first token would then be a bare space for a tokenizer of bytes.
    """

    def __init__(self, loaded: CutModel) -> None:
        harness = RequestEncoder(loaded.model, loaded.tokenizer).harness
        self.split, self.longest = harness.tok_encode, int(harness.max_length)
        self.tokenizer = loaded.tokenizer

    def encode(self, prompt: FactPrompt, answer: str | None = None) -> Encoded:
        """Encode a prompt with its target, or with another answer.

        Raises BadData if it does not fit the model's window, or the answer has no token of its own.
        """
        text, answer = prompt.text, prompt.target if answer is None else answer
        context, whole = self.split(text), self.split(text + answer)
        if whole[: len(context)] != context:  # the tokenizer joins the last space and the answer
            text = text.rstrip()
            context = self.split(text)
        wanted = tuple(whole[len(context) :])
        if not wanted or not context or len(whole) - 1 > self.longest:
            raise BadData(
                f"{prompt.text[:40]!r} and {answer!r} must have a token each, {self.longest} at "
                f"most together; they have {len(context)} and {len(wanted)}."
            )
        subject = self._subject(text, context, prompt.subject) if prompt.subject else ()
        return Encoded((*context, *wanted[:-1]), wanted, subject)

    def read(self, text: str, subject: str) -> Encoded:
        """Encode a text without an answer; its last position predicts nothing that is known."""
        tokens = self.split(text)
        return Encoded(tuple(tokens), (), self._subject(text, tokens, subject))

    def _subject(self, text: str, tokens: list[int], subject: str) -> tuple[int, ...]:
        """Find the tokens that hold a part of the subject, where it stands last."""
        start = text.rindex(subject)
        for special in (True, False):
            found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
            if found["input_ids"] == tokens:
                return tuple(
                    position
                    for position, (first, end) in enumerate(found["offset_mapping"])
                    if first < start + len(subject) and end > start and end > first
                )
        raise ModelRefused(f"The tokenizer encodes {text[:40]!r} in two ways; its subject is lost.")


class FactAnswers:
    """Asks a model for the probability of answers, edits included."""

    def __init__(self, loaded: CutModel) -> None:
        self.loaded, self.encoder = loaded, Encoder(loaded)

    def right(self, prompt: FactPrompt) -> bool:
        """Ask whether every token of the answer is the likeliest, given those before it."""
        return self.scores([self.encoder.encode(prompt)])[0].greedy

    def log_probabilities(
        self, asked: Sequence[tuple[FactPrompt, str]]
    ) -> Float64[np.ndarray, " asked"]:
        """Average the log-probability over the tokens of each answer after its prompt."""
        encoded = [self.encoder.encode(*each) for each in asked]
        sums = np.array([found.logprob for found in self.scores(encoded)], dtype=float)
        return sums / [len(each.answer) for each in encoded]

    def scores(self, encoded: Sequence[Encoded]) -> list[ContinuationScore]:
        """Score each prompt's answer, in the order given."""
        results: dict[int, ContinuationScore] = {}
        intact = np.zeros(self.loaded.grid.size, dtype=bool)
        for alike in equally_long(range(len(encoded)), lambda at: encoded[at].tokens):
            for first in range(0, len(alike), TOGETHER):
                places = alike[first : first + TOGETHER]
                some = [encoded[place] for place in places]
                texts = [ScoredText(each.tokens, (intact, None), [each.answer]) for each in some]
                for place, (score,) in zip(places, score_texts(self.loaded, texts), strict=True):
                    results[place] = score
        return [results[place] for place in range(len(encoded))]


def known_facts(
    asker: FactAnswers, facts: Sequence[Fact], most: int | None = None
) -> tuple[tuple[Fact, ...], dict[str, int]]:
    """Keep the facts whose prompt the model answers rightly, and of their rewrites the right ones.

    No fact is asked beyond `most` known ones. Counts `facts` and `facts_known`, `rewrites` and
    `rewrites_known`, these of all facts that were asked. Raises BadData if fewer than two facts are
    known.
    """
    kept, counts = [], dict.fromkeys(("facts", "facts_known", "rewrites", "rewrites_known"), 0)
    left = list(facts)
    while left and len(kept) < (most or np.inf):
        count = len(left) if most is None else most - len(kept)  # so many must be asked at least
        some, left = left[:count], left[count:]
        encoded = [[asker.encoder.encode(p) for p in (f.prompt, *f.rewrites)] for f in some]
        answers = iter(asker.scores([each for prompts in encoded for each in prompts]))
        for fact in some:
            known, *others = (next(answers).greedy for _ in (fact.prompt, *fact.rewrites))
            right = tuple(p for p, found in zip(fact.rewrites, others, strict=True) if found)
            kept += [replace(fact, rewrites=right)] if known else []
            figures = 1, int(known), len(others), len(right)
            counts = {name: counts[name] + n for name, n in zip(counts, figures, strict=True)}
    if len(kept) < 2:
        raise BadData(
            f"The model answers {len(kept)} of {len(facts)} facts rightly; those it does not know "
            "are nowhere to be located. Give others."
        )
    return tuple(kept), counts
