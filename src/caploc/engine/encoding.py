"""Text to tokens and back, exactly as lm-eval's Hugging Face model does it; where answers end.

lm-eval decides where a context ends and its continuation begins, when a start token is added and
how a text too long is cut. Its own class is asked, so that scores agree to the last token.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from os.path import commonprefix
from typing import Any, cast

from jinja2.exceptions import TemplateError
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.engine.api import Answer, Ask
from caploc.errors import BadOption
from caploc.models.guard import model_ends
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request, Rolling

REMEMBERED = 50_000  # encoded texts; every mask asks the same ones
PLAIN = "x"  # a letter before a token, so that a space at its beginning is not stripped
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from bytes that are not yet a whole character


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens to read, of which the last `len(continuation)` predictions are scored.

    `inputs` lacks the continuation's last token: nothing is predicted from it.
    """

    inputs: tuple[int, ...]
    continuation: tuple[int, ...]


Settings = tuple[tuple[str, ...], int]  # of a prompt: stop strings and limit


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt's tokens, and how its continuation is decoded and cut."""

    tokens: tuple[int, ...]
    stops: tuple[str, ...]
    new_tokens: int


class RequestEncoder:
    """Encodes one model's requests and decodes its answers, by lm-eval's conventions."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        remarks = logging.getLogger("lm_eval.models.huggingface")
        before, remarks.disabled = remarks.disabled, True  # that the model is loaded: it is meant
        try:
            self.harness = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal")
        finally:
            remarks.disabled = before
        self.model, self.tokenizer = model, tokenizer
        self.end = self.harness.tok_decode(self.harness.eot_token_id, skip_special_tokens=False)
        self.spans = lru_cache(REMEMBERED)(self._spans)
        self.prompt = lru_cache(REMEMBERED)(self._prompt)
        self.decode = lru_cache(REMEMBERED)(self._decode)
        self.stops = cache(self._stops)

    def _spans(self, request: LogLikelihood | Rolling) -> tuple[Span, ...]:
        """Encode what must be read to score a request: several spans beyond the model's window."""
        if isinstance(request, LogLikelihood):
            return (self.span(*self.pair(request)),)
        windows = get_rolling_token_windows(
            token_list=self.harness.tok_encode(request.text),
            prefix_token=self.harness.prefix_token_id,
            max_seq_len=self.harness.max_length,
            context_len=1,
        )
        return tuple(self.span(*make_disjoint_window(window)) for window in windows)

    def pair(self, request: LogLikelihood) -> tuple[list[int], list[int]]:
        """Encode context and continuation; an empty context becomes the start token.

        So does one of blanks, which lm-eval counts to the continuation. A token that spans the
        border belongs to the continuation: what is read is always the whole text. A continuation in
        the model's own tokens follows the context as it was given to continue.
        """
        if request.tokens:
            prompt = self.harness.tok_encode(request.context) or [self.harness.prefix_token_id]
            return prompt, list(request.tokens)
        if request.context:
            context, tokens = self.harness._encode_pair(request.context, request.continuation)
            whole = self.harness.tok_encode(request.context + request.continuation)
            if [*context, *tokens] != whole:
                known = len(commonprefix([context, whole]))
                context, tokens = whole[:known], whole[known:]
            if context:
                return context, tokens
        else:
            tokens = self.harness.tok_encode(request.continuation, add_special_tokens=False)
        start = self.harness.prefix_token_id
        return ([start], tokens) if tokens[:1] != [start] else (tokens[:1], tokens[1:])

    def stem(self, request: Request) -> tuple[int, ...]:
        """Return the tokens that a request begins with, as far as they are given to read."""
        if isinstance(request, Generate):
            return self.prompt(request).tokens
        return self.spans(request)[0].inputs

    def context(self, request: Request) -> tuple[int, ...]:
        """Return a request's tokens without its continuation; with it where there is no context."""
        tokens = self.stem(request)
        if not isinstance(request, LogLikelihood) or not request.context.strip():
            return tokens
        (span,) = self.spans(request)
        return tokens[: len(tokens) + 1 - len(span.continuation)]

    def misfit(self, request: Request) -> str | None:
        """Say why the model cannot read a request whole; None if it can."""
        window = int(self.harness.max_length)
        if isinstance(request, Rolling):
            return self._unknown(self.harness.tok_encode(request.text))
        if isinstance(request, Generate):
            options = normalize_gen_kwargs(json.loads(request.options), self.harness.max_gen_toks)
            room = window - int(options["max_gen_toks"])
            tokens = self.harness.tok_encode(request.prompt)
            count = len(tokens)
            fits, what = count <= room, f"a prompt of {count} tokens"
            limit = f"{room} before the answer in the model's window of {window}"
        else:
            context, continued = self.pair(request)
            tokens, count = [*context, *continued], len(context) + len(continued)
            fits, what = count <= window + 1, f"a prompt and answer of {count} tokens"
            limit = f"the model's window of {window}"
        return self._unknown(tokens) if fits else f"{what}, more than {limit}"

    def _unknown(self, tokens: Sequence[int]) -> str | None:
        """Say which token the model has no embedding of, as one added to its tokenizer alone."""
        number, table = max(tokens, default=0), cast(Any, self.model.get_input_embeddings())
        if number < table.weight.shape[0]:
            return None
        return f"token {self._decode((number,))!r}, which the model has no embedding of"

    def span(self, context: Sequence[int], continuation: Sequence[int]) -> Span:
        """Cut from the left what does not fit the model's window.

        Raises BadOption if the continuation is empty, or alone does not fit.
        """
        if not 0 < len(continuation) <= self.harness.max_length:
            raise BadOption(
                f"The task scores a continuation of {len(continuation)} tokens; the model's window "
                f"takes 1 to {self.harness.max_length}."
            )
        whole = [*context, *continuation][-(self.harness.max_length + 1) :]
        return Span(tuple(whole[:-1]), tuple(continuation))

    def _prompt(self, request: Generate) -> TokenizedPrompt:
        """Encode a prompt, cut from the left to leave room for the answer; never to nothing."""
        options = normalize_gen_kwargs(json.loads(request.options), self.harness.max_gen_toks)
        stops = handle_stop_sequences(options.pop("until", None), eos=self.end)
        new_tokens = int(options.pop("max_gen_toks"))
        room = self.harness.max_length - new_tokens
        if room <= 0:
            raise BadOption(
                f"The task lets answers run to {new_tokens} tokens, and the model's window is "
                f"{self.harness.max_length}; set max_gen_toks in the task's generation_kwargs."
            )
        tokens = self.harness.tok_encode(request.prompt)[-room:] or [self.harness.prefix_token_id]
        return TokenizedPrompt(tuple(tokens), tuple(stops), new_tokens)

    def _stops(self, settings: Settings) -> "Stops":
        return Stops(self.tokenizer, settings[0], model_ends(self.model), settings[1])

    def _decode(self, tokens: tuple[int, ...]) -> str:
        """Return the text of tokens, the model's own signs among them."""
        return str(self.harness.tok_decode(list(tokens), skip_special_tokens=False))

    def cut(self, tokens: Sequence[int], stops: Sequence[str]) -> str:
        """Decode an answer and cut it at its first stop string."""
        text = self.harness.tok_decode(tokens)
        return postprocess_generated_text(text, list(stops), think_end_token=None)

    def ending(self, said: Sequence[int], prompt: TokenizedPrompt) -> str | None:
        """Return the first stop string or the end token's text; None if the limit ended it."""
        text = self._decode(tuple(said))
        found = [(text.index(stop), stop) for stop in prompt.stops if stop and stop in text]
        if found:
            return min(found)[1]
        return self.end or "" if len(said) < prompt.new_tokens else None

    def answer(
        self, ask: Ask, prompt: TokenizedPrompt, said: Sequence[int], cost: float | None = None
    ) -> Answer:
        """Build an answer, its seconds left open; `cost` are the tokens run for it (None: all)."""
        text = self.cut(said, prompt.stops)
        response = Generated(text, tuple(said), self.ending(said, prompt))
        alone = len(prompt.tokens) + len(said)
        return Answer(ask.key, response, 0.0, float(alone) if cost is None else cost, alone)


class Stops:
    """Tells when an answer is over: an end token, a stop string in its text, or its limit.

    A stop string can only appear with a token that brings its last character, so that most tokens
    need no decoding: which do is looked up once for each token of the vocabulary that appears.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str],
        ends: Sequence[int],
        limit: int,
    ) -> None:
        self.tokenizer, self.limit = tokenizer, limit
        self.stops = [stop for stop in stops if stop]  # lm-eval cuts at no empty one
        self.ends = frozenset(ends)
        self.last = {stop[-1] for stop in self.stops}
        self.plain = tokenizer.encode(PLAIN, add_special_tokens=False)
        self.before = self._text(self.plain)  # PLAIN, or what a small vocabulary has in its place
        self.special = frozenset(tokenizer.all_special_ids)
        self.may_complete = cache(self._may_complete)

    def over(self, said: Sequence[int]) -> bool:
        token = said[-1]
        return len(said) >= self.limit or token in self.ends or self.stopped(said)

    def stopped(self, said: Sequence[int]) -> bool:
        """Tell whether the last token completed a stop string."""
        if not self.may_complete(said[-1]):
            return False
        text = self._text(said)
        return any(stop in text for stop in self.stops)

    def trim(self, tokens: Sequence[int]) -> list[int]:
        """Return an answer up to the token that ended it; whatever followed is padding."""
        for count in range(1, len(tokens) + 1):
            if self.over(tokens[:count]):
                return list(tokens[:count])
        return list(tokens)

    def _may_complete(self, token: int) -> bool:
        """Tell whether the token can bring the last character of a stop string."""
        # Any token may show that the bytes before it were no character.
        if token in self.special or UNFINISHED in self.last:
            return True
        text = self._text([token]) + self._text([*self.plain, token]).removeprefix(self.before)
        return UNFINISHED in text or any(character in text for character in self.last)

    def _text(self, tokens: Sequence[int]) -> str:
        """Decode, end tokens included: a stop string may be one."""
        return str(self.tokenizer.decode(list(tokens)))


def group_prompts(
    encoder: RequestEncoder, asks: Sequence[Ask]
) -> dict[Settings, list[tuple[Ask, TokenizedPrompt]]]:
    """Encode asks for text, and group those that end alike."""
    groups: dict[Settings, list[tuple[Ask, TokenizedPrompt]]] = {}
    for ask in asks:
        assert isinstance(ask.request, Generate)
        prompt = encoder.prompt(ask.request)
        groups.setdefault((prompt.stops, prompt.new_tokens), []).append((ask, prompt))
    return groups


def chat_template(tokenizer: PreTrainedTokenizerBase) -> Callable[..., str]:
    """Return a renderer of messages for tasks that treats the last message as lm-eval does.

    Raises BadOption if the tokenizer has no chat template.
    """
    if tokenizer.chat_template is None:
        raise BadOption(
            f"--chat-template: the tokenizer of {tokenizer.name_or_path!r} has none; "
            "leave the option out, or name an instruction-tuned model."
        )

    def render(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        template = partial(
            tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        try:
            return str(template(messages))
        except TemplateError:  # templates that refuse a system message get none
            return str(template([m for m in messages if m["role"] != "system"]))

    return render
