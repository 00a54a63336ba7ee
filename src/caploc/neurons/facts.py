"""A fact's prompt as tokens, and what a model makes of its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from caploc.engine.encoding import RequestEncoder
from caploc.engine.plain import PaddedText, PaddingCheck, score_padded
from caploc.errors import BadData, ModelRefused
from caploc.models.loading import CutModel
from caploc.progress import Progress, Silent
from caploc.tasks.facts import Fact, FactPrompt

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

    def first(self) -> "Encoded":
        """Leave only the first token of the answer to come."""
        return Encoded(self.tokens[: self.start + 1], self.answer[:1], self.subject)


class Encoder:
    """Turns prompts into tokens: what is read, what is to come, and where the subject stands.

    Tokens are those of lm-eval's Hugging Face model (special tokens included), except that a space
    at the end of a prompt stays with the prompt where the tokenizer lets it; lm-eval gives it to
    the answer, whose first token would then be a bare space for a tokenizer of bytes.
    """

    def __init__(self, loaded: CutModel) -> None:
        self.wording = RequestEncoder(loaded.model, loaded.tokenizer)
        self.tokenizer = loaded.tokenizer
        self.longest = int(self.wording.harness.max_length)

    def encode(self, prompt: FactPrompt, answer: str | None = None) -> Encoded:
        """Encode a prompt with its target, or with another answer.

        Raises BadData if it does not fit the model's window, or the answer has no token of its own.
        """
        encode, text = self.wording.harness.tok_encode, prompt.text
        answer = prompt.target if answer is None else answer
        context, whole = encode(text), encode(text + answer)
        if whole[: len(context)] != context:  # the tokenizer joins the last space and the answer
            text = text.rstrip()
            context = encode(text)
        wanted = whole[len(context) :]
        if not wanted or not context:
            raise BadData(f"{answer!r} after {prompt.text!r} has no token of its own.")
        tokens = (*context, *wanted[:-1])
        self._check(prompt.text, len(tokens))
        subject = self._subject(text, tuple(context), prompt.subject) if prompt.subject else ()
        return Encoded(tokens, tuple(wanted), subject)

    def read(self, text: str, subject: str) -> Encoded:
        """Encode a text without an answer; its last position predicts nothing that is known."""
        tokens = tuple(self.wording.harness.tok_encode(text))
        self._check(text, len(tokens))
        return Encoded(tokens, (), self._subject(text, tokens, subject))

    def _check(self, text: str, tokens: int) -> None:
        if tokens > self.longest:
            raise BadData(
                f"The prompt {text[:40]!r}... has {tokens} tokens; the model's window takes "
                f"{self.longest}."
            )

    def _subject(self, text: str, tokens: tuple[int, ...], subject: str) -> tuple[int, ...]:
        """Find the tokens that hold a part of the subject, where it stands last."""
        if subject not in text:
            raise BadData(f"The subject {subject!r} does not occur in {text!r}.")
        start = text.rindex(subject)
        return tuple(
            position
            for position, (first, end) in enumerate(self._offsets(text, tokens))
            if first < start + len(subject) and end > start and end > first
        )

    def _offsets(self, text: str, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        name = type(self.tokenizer).__name__
        if not self.tokenizer.is_fast:
            raise ModelRefused(
                f"The tokenizer {name} does not say where its tokens stand in a text, so that a "
                "subject cannot be found; use its fast version."
            )
        for special in (True, False):
            found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
            if tuple(found["input_ids"]) == tokens:
                return list(found["offset_mapping"])
        raise ModelRefused(
            f"The tokenizer {name} encodes {text[:40]!r} in two ways, so that a subject cannot be "
            "found."
        )


@dataclass(frozen=True)
class FactAnswer:
    """What the model makes of an answer.

    `log_probability` is the mean over the answer's tokens; `right` whether each was the likeliest.
    """

    log_probability: float
    right: bool


class FactAnswers:
    """Asks a model for the probability of answers, edits included."""

    def __init__(self, loaded: CutModel) -> None:
        self.loaded, self.encoder = loaded, Encoder(loaded)
        self.padding = PaddingCheck(loaded, left=False)

    def right(self, prompt: FactPrompt) -> bool:
        return self.to([self.encoder.encode(prompt)])[0].right

    def log_probabilities(
        self, asked: Sequence[tuple[FactPrompt, str]]
    ) -> Float64[np.ndarray, " asked"]:
        """Average the log-probability over the tokens of each answer after its prompt."""
        found = self.to([self.encoder.encode(*each) for each in asked])
        return np.array([each.log_probability for each in found], dtype=float)

    def to(self, encoded: Sequence[Encoded]) -> list[FactAnswer]:
        """Say what the model makes of each prompt's answer, in the order given."""
        results: dict[int, FactAnswer] = {}
        intact = np.zeros(self.loaded.grid.size, dtype=bool)
        for alike in self.padding.groups(range(len(encoded)), lambda at: encoded[at].tokens):
            for first in range(0, len(alike), TOGETHER):
                places = alike[first : first + TOGETHER]
                some = [encoded[place] for place in places]
                asked = [PaddedText(each.tokens, intact, [each.answer]) for each in some]
                read = score_padded(self.loaded, asked)
                for place, each, ((logprob, greedy, _),) in zip(places, some, read, strict=True):
                    results[place] = FactAnswer(logprob / len(each.answer), greedy)
        return [results[place] for place in range(len(encoded))]


def known_facts(
    loaded: CutModel,
    facts: Sequence[Fact],
    *,
    rewrites: bool = False,
    progress: Progress | None = None,
) -> tuple[tuple[Fact, ...], dict[str, int | None]]:
    """Keep the facts whose prompt the model answers rightly; with `rewrites`, only right ones too.

    Counts `facts` and `facts_known`, `rewrites` and `rewrites_known` (None if they are not asked).
    Raises BadData if a prompt does not fit the model's window, or no fact is known.
    """
    shown, asker = progress or Silent(), FactAnswers(loaded)
    shown.start("facts known", len(facts))
    kept, given, rewrites_known = [], 0, 0
    for fact in facts:
        given += len(fact.rewrites)
        prompts = [fact.prompt, *(fact.rewrites if rewrites else ())]
        encoded = [asker.encoder.encode(prompt) for prompt in prompts]
        first, *others = asker.to(encoded)
        shown.advance(1, sum(len(each.tokens) for each in encoded))
        right = tuple(p for p, found in zip(fact.rewrites, others, strict=False) if found.right)
        rewrites_known += len(right)
        if first.right:
            kept.append(replace(fact, rewrites=right) if rewrites else fact)
    if not kept:
        raise BadData(
            f"The model answers none of the {len(facts)} facts rightly, so nothing can be located; "
            "give facts that it knows."
        )
    counts = {"facts": len(facts), "facts_known": len(kept), "rewrites": given}
    return tuple(kept), {**counts, "rewrites_known": rewrites_known if rewrites else None}
