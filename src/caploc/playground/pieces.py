"""Tokens as pieces of text that join to the whole, in the words of the model's tokenizer."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from caploc.engine.encoding import UNFINISHED


class Pieces:
    """Cuts a text into what each of its tokens adds, token by token.

    A token that leaves a character unfinished adds nothing; the one that completes it adds all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        """Start after the tokens `before`."""
        self.tokenizer, self.tokens = tokenizer, list(before)
        self.shown = self.decoded()

    def add(self, token: int) -> str:
        """What the token adds to the text."""
        self.tokens.append(token)
        text = self.decoded()
        if text.endswith(UNFINISHED) and not self.shown.endswith(UNFINISHED):
            return ""
        # a tokenizer that rewrites what it has said (spaces before a comma) shows the token alone
        whole = text.startswith(self.shown)
        piece = text[len(self.shown) :] if whole else str(self.tokenizer.decode([token]))
        self.shown = text
        return piece

    def decoded(self) -> str:
        """Everything so far, special tokens by their names."""
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=False))


def pieces(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> list[str]:
    """What each of the tokens adds to their text."""
    cut = Pieces(tokenizer)
    return [cut.add(token) for token in tokens]


def alone(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token by itself, for a list of what else the model might have said."""
    return str(tokenizer.decode([token], skip_special_tokens=False))
