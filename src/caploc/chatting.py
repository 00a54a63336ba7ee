"""Two answers to what one types: the model's, and its own with heads knocked out."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caploc.contents import Answers, read_file
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS
from caploc.heads import Head
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.result import AnswerPair
from caploc.workbench import Allowed


@dataclass(frozen=True)
class Chat:
    """A loaded model and the heads that it does without in its second answers."""

    loaded: LoadedModel
    heads: list[str]
    tokens: int
    templated: bool  # whether it is talked to in its chat template
    broken: AnswerPair | None  # an example of the task, asked without one, that the heads decide

    @classmethod
    def of(
        cls, folder: Path, heads: str | None, tokens: int, allowed: Allowed, *, plain: bool = False
    ) -> "Chat":
        """Load a finished run's model; `heads` are names, if not those that the run found.

        A model with a chat template is talked to in it, unless `plain`; others continue the text.

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
        templated = not plain and loaded.tokenizer.chat_template is not None
        own = set(names) == set(run.result.top)
        return cls(loaded, names, tokens, templated, find_broken(run) if own else None)

    def opening(self) -> str:
        """Say what is missing, and of a task that is asked otherwise than a chat, how it is."""
        said = f"Without {', '.join(self.heads)}. An empty line ends it; \\n begins a new line."
        if self.broken is None:
            return said
        text = (self.broken.prompt or "").replace("\n", "\\n")
        example = f"{text}\n(intact {self.broken.intact!r}, without {self.broken.knocked_out!r})"
        if not self.templated:
            return f"{said}\nAn example of the task, to begin with:\n{example}"
        return (
            f"{said}\nThe heads were found on plain text, and this talks in the model's chat "
            "template, where they may hardly show. With --plain the model goes on with what is "
            f"typed, as in this example of the task:\n{example}"
        )

    def answer(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield both answers to a text, each with its side's name."""
        tokenizer: Any = self.loaded.tokenizer
        if self.templated:
            turn = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        # a template writes the tokens that begin a text itself
        told = tokenizer(text, return_tensors="pt", add_special_tokens=not self.templated)
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


def find_broken(run: FinishedRun) -> AnswerPair | None:
    """Find an example that was right, and is wrong without the run's heads.

    None where the task was asked in a chat template, or no such answer was kept.
    """
    path = run.folder / ANSWERS
    if run.study.options.chat_template or not path.exists():
        return None
    for pair in read_file(path, Answers).root:
        known = None not in (pair.prompt, pair.intact_outcome, pair.knocked_out_outcome)
        if known and pair.intact_outcome > pair.knocked_out_outcome:  # type: ignore[operator]
            return pair
    return None
