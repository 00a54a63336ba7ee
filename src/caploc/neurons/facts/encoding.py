"""Prompts as tokens: what is read, what is to come, and where the subject stands.

Tokens are those of lm-eval's Hugging Face model (special tokens included), except that a space at
the end of a prompt stays with the prompt where the tokenizer lets it; lm-eval gives it to the
answer, whose first token would then be a bare space for a tokenizer of bytes.
"""

from dataclasses import dataclass

from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData, ModelRefused
from caploc.models.loading import CutModel
from caploc.neurons.facts.facts import Prompt


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
        """The same with only the first token of the answer to come."""
        return Encoded(self.tokens[: self.start + 1], self.answer[:1], self.subject)


class Encoder:
    """The encodings of one model's prompts."""

    def __init__(self, loaded: CutModel) -> None:
        """Borrow lm-eval's conventions for the model."""
        self.wording = RequestEncoder(loaded.model, loaded.tokenizer)
        self.tokenizer = loaded.tokenizer
        self.longest = int(self.wording.harness.max_length)

    def encode(self, prompt: Prompt, answer: str | None = None) -> Encoded:
        """The prompt with its target, or with another answer.

        Raises:
            BadData: if it does not fit the model's window, or the answer has no token of its own.
        """
        answer = prompt.target if answer is None else answer
        text, context, wanted = self._split(prompt.text, answer)
        if not wanted or not context:
            raise BadData(f"{answer!r} after {prompt.text!r} has no token of its own.")
        tokens = (*context, *wanted[:-1])
        self._check(prompt.text, len(tokens))
        subject = self._subject(text, context, prompt.subject) if prompt.subject else ()
        return Encoded(tokens, wanted, subject)

    def read(self, text: str, subject: str) -> Encoded:
        """A text without an answer; its last position predicts nothing that is known.

        Raises:
            BadData: if it does not fit the model's window, or the subject is not in it.
        """
        tokens = tuple(self.wording.harness.tok_encode(text))
        self._check(text, len(tokens))
        return Encoded(tokens, (), self._subject(text, tokens, subject))

    def _split(self, text: str, answer: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """The text whose tokens come first, these, and the answer's."""
        encode = self.wording.harness.tok_encode
        context, whole = encode(text), encode(text + answer)
        if whole[: len(context)] != context:  # the tokenizer joins the last space and the answer
            text = text.rstrip()
            context = encode(text)
        return text, tuple(context), tuple(whole[len(context) :])

    def _check(self, text: str, tokens: int) -> None:
        if tokens > self.longest:
            raise BadData(
                f"The prompt {text[:40]!r}... has {tokens} tokens; the model's window takes "
                f"{self.longest}."
            )

    def _subject(self, text: str, tokens: tuple[int, ...], subject: str) -> tuple[int, ...]:
        """Positions of the tokens that hold a part of the subject, where it stands last."""
        if subject not in text:
            raise BadData(f"The subject {subject!r} does not occur in {text!r}.")
        start = text.rindex(subject)
        found = [
            position
            for position, (first, end) in enumerate(self._offsets(text, tokens))
            if first < start + len(subject) and end > start and end > first
        ]
        return tuple(found)

    def _offsets(self, text: str, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        if not self.tokenizer.is_fast:
            raise ModelRefused(
                f"The tokenizer {type(self.tokenizer).__name__} does not say where its tokens "
                "stand in a text, so that a subject cannot be found; use its fast version."
            )
        for special in (True, False):
            found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
            if tuple(found["input_ids"]) == tokens:
                return list(found["offset_mapping"])
        raise ModelRefused(
            f"The tokenizer {type(self.tokenizer).__name__} encodes {text[:40]!r} in two ways, so "
            "that a subject cannot be found."
        )
