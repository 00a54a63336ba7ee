"""A chat in the terminal with a run's model, intact and without its heads."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caploc.components import parse_components
from caploc.contents import Answers, read_file
from caploc.declaration import Allowed
from caploc.engine.encoding import chat_template
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS, check_named
from caploc.options import ZERO
from caploc.playground.answers import INTACT, KNOCKED_OUT, SIDES, ZEROED, BothSides
from caploc.result import AnswerPair
from caploc.tasks.task import Generate, Generated, options_json


@dataclass(frozen=True)
class Chat:
    """A loaded model and the heads that it does without in its second answers."""

    both: BothSides
    heads: list[str]
    tokens: int
    templated: bool  # whether it is talked to in its chat template
    end: str  # a text that ends an answer: that of its line, where the task's answers have one
    broken: AnswerPair | None  # an example of the task, asked without one, that the heads decide
    replaced: bool  # whether the run put something else than zero in the heads' place

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
        run = FinishedRun.read(folder if heads else check_named(folder), allowed)
        names = list(map(str, parse_components(heads))) if heads else list(run.result.top)
        engine = run.engine()
        loaded = engine.loaded
        both = BothSides(engine, tuple(loaded.grid.named_in(names)))
        templated = not plain and loaded.tokenizer.chat_template is not None
        example, own = find_broken(run), set(names) == set(run.result.top)
        lined = not templated and example is not None and "\n" not in (example.intact or "")
        end = "\n" if lined else ""
        replaced = run.result.method.mode != ZERO
        return cls(both, names, tokens, templated, end, example if own else None, replaced)

    def opening(self) -> str:
        """Say what is missing, and of a task that is asked otherwise than a chat, how it is."""
        said = (
            f"Without {', '.join(self.heads)}. An empty line (or /quit) ends it; \\n breaks a line."
        )
        if self.replaced:
            said += f" {ZEROED}"
        if self.end:
            said += " Answers end with their line, as the task's do."
        if self.broken is None:
            return said
        text = (self.broken.prompt or "").replace("\n", "\\n")
        example = f"{text}\n(intact {self.broken.intact!r}, without {self.broken.knocked_out!r})"
        if not self.templated:
            return f"{said}\nAn example of the task, to begin with:\n{example}"
        return (
            f"{said}\nThe heads were found on plain text, and this talks in the model's chat "
            "template, where less of it may show. With --plain the model goes on with what is "
            f"typed, as in this example of the task:\n{example}"
        )

    def answer(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield both answers to a text, each with its side's name."""
        if self.templated:
            tokenizer = self.both.engine.loaded.tokenizer
            text = chat_template(tokenizer)([{"role": "user", "content": text}])
        stops = [self.end] if self.end else []
        options = {"until": stops, "max_gen_toks": self.tokens, "do_sample": False}
        request = Generate(text, options_json(options))
        answers = self.both.answer({side: [request] for side in SIDES})
        for side, name in ((INTACT, "intact"), (KNOCKED_OUT, "without")):
            (said,) = answers[side]
            assert isinstance(said, Generated)
            yield name, said.text.strip()


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
