"""Two answers to what one types: the model's, and its own with heads knocked out."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.heads import Head
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.workbench import Allowed


@dataclass(frozen=True)
class Chat:
    """A loaded model and the heads that it does without in its second answers."""

    loaded: LoadedModel
    heads: list[str]
    tokens: int

    @classmethod
    def of(cls, folder: Path, heads: str | None, tokens: int, allowed: Allowed) -> "Chat":
        """Load a finished run's model; `heads` are names, if not those that the run found.

        Raises:
            BadOption: if there is no head to knock out, or no token to say.
            UserError: if the folder holds no finished run, or its model has changed.
            UnknownName: if the model has no such head.
        """
        if tokens < 1:
            raise BadOption(f"--tokens must be 1 or more; got {tokens}.")
        run = FinishedRun.read(folder, allowed)
        names = list(map(str, Head.parse_all(heads))) if heads else list(run.result.top)
        if not names:
            raise BadOption(
                f"The run in {folder} found no head to do without; name some with --heads."
            )
        loaded = run.engine().loaded
        loaded.grid.mask(names)
        return cls(loaded, names, tokens)

    def answer(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield both answers to a text, each with its side's name.

        A model with a chat template is talked to in it; others continue the text.
        """
        tokenizer: Any = self.loaded.tokenizer
        chats = tokenizer.chat_template is not None
        if chats:
            turn = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        # a template writes the tokens that begin a text itself
        told = tokenizer(text, return_tensors="pt", add_special_tokens=not chats)
        prompt = told.to(self.loaded.device)
        model: Any = self.loaded.model
        cut = knockout(self.loaded, self.heads)
        for side, without in (("intact", nullcontext()), ("without", cut)):
            with without:
                said = model.generate(
                    **prompt,
                    max_new_tokens=self.tokens,
                    do_sample=False,
                    pad_token_id=tokenizer.pad_token_id,
                )
            new = said[0, prompt["input_ids"].shape[1] :]
            yield side, tokenizer.decode(new, skip_special_tokens=True).strip()
