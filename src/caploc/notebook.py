"""One call to find heads from Python, and what was found, as tables."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from caploc import console
from caploc.components import HEADS
from caploc.contents import read_file
from caploc.declaration import LISTED, ModelOptions, Study, check_read, with_general_task
from caploc.engine import check_engine
from caploc.errors import BadOption
from caploc.findings import StudyFindings as Record
from caploc.folder import RESULT
from caploc.given import answering, proved
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.naming import default_folder, is_folder
from caploc.options import build, flags
from caploc.pairs import Pairs, name_examples, name_task, write_task
from caploc.report.card import write_html, write_text
from caploc.result import HeadEffect, Result
from caploc.study import run_study
from caploc.verdict import make_card

SHOWN = 8  # heads that the summary lists
COLUMNS = ["head", "effect", "low", "high", "q", "selected"]


@dataclass(frozen=True)
class Findings(Record):
    """What a study found, to look at in a notebook and to go on with.

    `result` is the content of result.json, as attributes (`result.as_dict()`: as dictionaries),
    `folder` where everything lies, `report` the page; `model` the one that was handed over, if any.
    """

    model: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, folder: Path | str) -> "Findings":
        """A finished run's; raises UserError if the folder holds none."""
        folder = Path(folder)
        return cls(read_file(folder / RESULT, Result), folder, folder / "report.html")

    def __repr__(self) -> str:
        """The card, and where the rest of it lies."""
        return write_text(make_card(self.result), self.report)

    @property
    def top(self) -> list[str]:
        """The chosen heads, most needed first."""
        return list(self.result.top)

    @property
    def heads(self) -> list[HeadEffect]:
        """Every head, most needed first: its `effect` with `low` and `high`, `q`, `selected`."""
        return list(self.result.heads)

    def to_frame(self) -> pd.DataFrame:
        """Every head, most needed first: `layer`, `index`, `effect` in score units with `low` and
        `high` (95 %), `q`, `top_chance`, `selected`, `critical`, `universal`; what is not known is
        NaN or None. The head's name is the index.
        """
        return pd.DataFrame([head.as_dict() for head in self.result.heads]).set_index("head")

    def knockout(
        self, model: Any = None, heads: Sequence[str] | None = None
    ) -> AbstractContextManager[None]:
        """Knock out the chosen heads, or others by name, while a `with` block runs.

        `model` is by default the one that `locate` was handed.

        Raises:
            BadOption: if `locate` was told a name, and no model is given here, or if it found no
                heads and none are named here.
            ModelRefused: if the model's heads are not found or fail the proof.
        """
        model = self.model if model is None else model
        if model is None:
            raise BadOption(
                "Which model? found.knockout(model) takes what caploc.load_model or transformers "
                "loaded."
            )
        chosen = self.top if heads is None else heads
        if not len(chosen):
            raise BadOption("No head was found; name some: found.knockout(model, ['L0H5']).")
        return knockout(model, chosen)

    def _repr_html_(self) -> str:
        """The card and the most needed heads, as a notebook shows them."""
        heads = self.to_frame().reset_index()[COLUMNS].head(SHOWN)
        table = heads.to_html(index=False, border=0, float_format="{:.3f}".format, na_rep="–")
        report = f"<p>Report: <code>{escape(str(self.report))}</code></p>"
        return f"{write_html(make_card(self.result))}{table}{report}"


def locate(  # noqa: PLR0913  (what is no option of a study is its own parameter)
    model: Any,
    task: Any,
    asked: str | Pairs | None = None,
    *,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Any,
) -> Findings:
    """Find the heads that a task depends on, as `caploc locate` does.

    `model` is a Hugging Face id, a local folder or a name of `caploc models`; `task` an lm-eval
    task, a path to a YAML, or one of `caploc tasks`, or a list of (prompt, answer). A model that
    you loaded, of transformers or peft, comes with its tokenizer, and the task after it.

        found = caploc.locate("smollm2", "words/past", budget=1000)
        found = caploc.locate(model, tokenizer, [("The capital of France is", " Paris"), ...])
        found.top

    An example of a list is asked as it is written: mind the space between prompt and answer. It is
    right if the answer is what the model would say next, token by token as its tokenizer writes the
    answer.

    `options` are those of the command line, with `_` for `-` (`caploc locate --help-all`): method,
    budget, top, goal, also, spare, mode, limit, device ... Files go to `out` (a folder below runs/
    if absent), and the same call goes on where an earlier one stopped.

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; rows already measured are kept.
        Stopped: if it was interrupted; likewise.
    """
    loaded, wanted = opened(model, task, asked, options)
    name = model if loaded is None else loaded.name
    called = wanted if isinstance(wanted, str) else name_examples(wanted)
    short = Path(name).name if is_folder(Path(name)) else name
    kind = {options.get("components", HEADS)} - {HEADS}
    way = options.get("method", Study.method)
    folder = Path(out or default_folder(short, way, *kind, called))
    made = name_task(wanted, folder) if isinstance(wanted, str) else write_task(wanted, folder)
    said = {"model": name, "task": str(made), **options}
    for each in {*LISTED} & {*options}:
        names = [options[each]] if isinstance(options[each], str | Path) else options[each]
        said[each] = [name_task(str(one), folder) for one in names]
    study = build(Study, with_general_task(said))
    check_read(options, study.method, study.settings.goal)
    check_engine(study.model.backend)
    call = call_of(
        [model, task, *([] if asked is None else [asked])], options | {"out": str(folder)}
    )
    with ExitStack() as stack:
        progress = stack.enter_context(console.progress(quiet))
        engine = stack.enter_context(answering(loaded, study.model.backend)) if loaded else None
        found = run_study(study, folder, progress, command=call, engine=engine)
    if not quiet:
        console.say(write_text(make_card(found.result), found.report, console.width()))
        for note in () if found.result.top else found.result.search.notes:
            console.say(note)
    mine = None if loaded is None else loaded.model
    return Findings(found.result, found.folder, found.report, mine)


def opened(
    model: Any, task: Any, asked: str | Pairs | None, options: Mapping[str, Any]
) -> tuple[LoadedModel | None, str | Pairs]:
    """Return a model that was handed over, proved, and the task or its examples.

    Raises BadOption if what was handed over is not a model, a tokenizer and a task, in this order,
    or options say how to load it; ModelRefused if the model's heads are not found or fail the
    proof.
    """
    if isinstance(model, str) and asked is not None:
        raise BadOption("A model by its name is followed by the task alone: locate(name, task).")
    tokenizer, wanted = (None, task) if asked is None else (task, asked)
    if not isinstance(wanted, str | list | tuple):
        raise BadOption(
            f"The task is {type(wanted).__name__}; give a name, or a list of (prompt, answer)."
        )
    if isinstance(model, str):
        return None, wanted
    if other := options.keys() & flags(ModelOptions).keys() - {"engine"}:
        raise BadOption(
            f"{min(other)}= says how a model is loaded, and yours is; give the model's name."
        )
    return model if isinstance(model, LoadedModel) else proved(model, tokenizer), wanted


def call_of(first: Sequence[Any], options: Mapping[str, Any]) -> str:
    """The call of `locate`; what only the program has, such as a model, goes by its type."""
    said = [repr(each) if isinstance(each, str) else type(each).__name__ for each in first]
    named = (f"{k}={v!r}" for k, v in options.items())
    return f"caploc.locate({', '.join([*said, *named])})"
