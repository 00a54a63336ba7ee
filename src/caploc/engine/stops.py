"""When an answer is over: an end token, a stop string in its text, or its limit."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

PLAIN = "x"  # a letter before a token, so that a space at its beginning is not stripped
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from bytes that are not yet a whole character


class Stops:
    """Watches answers token by token.

    A stop string can only appear with a token that brings its last character, so that most tokens
    need no decoding: which do is looked up once for each token of the vocabulary that is said.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str],
        ends: Sequence[int],
        limit: int,
    ) -> None:
        """Stop at these strings, at these end tokens, or after `limit` tokens."""
        self.tokenizer, self.limit = tokenizer, limit
        self.stops = [stop for stop in stops if stop]  # lm-eval cuts at no empty one
        self.ends = frozenset(ends)
        self.last = {stop[-1] for stop in self.stops}
        self.plain = tokenizer.encode(PLAIN, add_special_tokens=False)
        self.special = frozenset(tokenizer.all_special_ids)
        self.suspects: dict[int, bool] = {}

    def over(self, said: Sequence[int]) -> bool:
        """Whether the answer ends with its last token."""
        token = said[-1]
        return len(said) >= self.limit or token in self.ends or self.stopped(said)

    def stopped(self, said: Sequence[int]) -> bool:
        """Whether the last token completed a stop string."""
        token = said[-1]
        suspect = self.suspects.get(token)
        if suspect is None:
            suspect = self.suspects[token] = self.may_complete(token)
        if not suspect:
            return False
        text = self.text(said)
        return any(stop in text for stop in self.stops)

    def may_complete(self, token: int) -> bool:
        """Whether the token can bring the last character of a stop string."""
        # Any token may show that the bytes before it were no character.
        if token in self.special or UNFINISHED in self.last:
            return True
        text = self.text([token]) + self.text([*self.plain, token])[len(PLAIN) :]
        return UNFINISHED in text or any(character in text for character in self.last)

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text, end tokens included: a stop string may be one."""
        return str(self.tokenizer.decode(list(tokens)))
