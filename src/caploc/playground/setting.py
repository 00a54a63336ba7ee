"""What a playground is opened on, and what its page may ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from caploc.components import Heads
from caploc.declaration import Allowed, ModelOptions
from caploc.errors import BadOption, UserError
from caploc.finished import FinishedRun
from caploc.folder import finished_in
from caploc.options import TaskOptions
from caploc.tasks.catalog import check_data, check_task_name

MOST_TOKENS = 2048  # of one answer
MOST_TURNS = 100  # of a talk
MOST_SCORED = 2000  # examples that are scored at once
MOST_CHARACTERS = 1_000_000  # of a prompt; the model's window is far below


class PageRequest(BaseModel):
    """Anything the page asks; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExampleRequest(PageRequest):
    """An example of a task by its number, or any."""

    task: str
    number: int | None = None


class Turn(PageRequest):
    """What was said before: a message, and what each side answered."""

    user: str = Field(max_length=MOST_CHARACTERS)
    intact: str = Field(max_length=MOST_CHARACTERS)
    knocked_out: str = Field(max_length=MOST_CHARACTERS)


class PageQuestion(PageRequest):
    """A prompt, or an example of a task, and the heads to knock out.

    With `example` the prompt, its stops and its length are the task's own. With `chat` the prompt
    is a message in the model's chat template, after the `turns` of a talk in which each side
    remembers its own answers.
    """

    heads: list[str] = Field(max_length=1_000_000)
    prompt: str = Field(default="", max_length=MOST_CHARACTERS)
    example: ExampleRequest | None = None
    new_tokens: int = Field(default=64, ge=1, le=MOST_TOKENS)
    stops: list[str] = Field(default=[], max_length=16)
    chat: bool = False
    turns: list[Turn] = Field(default=[], max_length=MOST_TURNS)


class AttentionRequest(PageRequest):
    """One head's attention over a question's prompt and what was said so far."""

    question: PageQuestion
    said: list[int] = Field(max_length=MOST_TOKENS)
    head: str
    knocked_out: bool = False
    choice: int = Field(default=0, ge=0)
    side: Literal["intact", "knocked_out"] = "intact"  # whose talk it follows


class ScoreRequest(PageRequest):
    """The first examples of a task, to be scored with and without heads."""

    heads: list[str] = Field(max_length=1_000_000)
    task: str
    examples: int = Field(default=50, ge=1, le=MOST_SCORED)


class HeadsRequest(PageRequest):
    """Heads to save, and the run whose ranking they were taken from."""

    heads: list[str]
    run: int | None = None


@dataclass(frozen=True)
class Setting:
    """A model and what is laid out beside it.

    `tasks` holds how each task is asked. Programs that the model writes for a task are judged, in
    the sandbox, only if `judges_code`; without it they are shown and nothing else.
    """

    model: ModelOptions
    runs: tuple[FinishedRun, ...] = ()
    tasks: Mapping[str, TaskOptions] = field(default_factory=dict)
    judges_code: bool = False

    def check(self) -> Heads:
        """Refuse, by a UserError, what can be seen before data or weights are loaded."""
        for name, options in self.tasks.items():
            check_data(options)
            # a code task may be loaded, and is judged only if `judges_code`
            check_task_name(name, replace(options, allow_code=True))
        return self.model.check()


def open_runs(folder: Path, allowed: Allowed | None = None) -> tuple[FinishedRun, ...]:
    """Read the finished run of a folder, or those in the folders below it, of one model.

    Raises UserError if there is none, or they are of several models.
    """
    runs = tuple(FinishedRun.read(each, allowed) for each in finished_in(folder))
    models = {run.result.model.fingerprint for run in runs}
    if len(models) > 1:
        raise UserError(
            f"The runs in {folder} are of {len(models)} models; name the folder of one run."
        )
    return runs


def make_setting(
    runs: Sequence[FinishedRun],
    model: str | None,
    loading: ModelOptions,
    tasks: Sequence[str],
    options: TaskOptions,
) -> Setting:
    """Put a setting together: runs bring their model and tasks, `tasks` are asked with `options`.

    `loading` says how a model is loaded and, where `model` names none and there is no run, which.
    A run's model is loaded as the run did, on any device.

    Raises:
        BadOption: if the model is another than the runs', or loaded in another way; or if files
            are given and no task to read them.
    """
    if options.data and not tasks:
        raise BadOption("--data is for a task that --task names; name it, or leave --data out.")
    found = runs_model(runs[0], model, loading) if runs else loading
    named = dict.fromkeys(tasks, options)
    # Those of runs are asked as there: what they located first, then those beside it.
    located = {run.study.task: run.study.options for run in runs}
    beside = {
        name: run.study.options.plain()
        for run in runs
        for name in run.study.other_tasks
        if name not in located
    }
    return Setting(found, tuple(runs), {**located, **beside, **named}, options.allow_code)


def runs_model(run: FinishedRun, model: str | None, loading: ModelOptions) -> ModelOptions:
    """Return the model of a run on the device asked for.

    Raises BadOption if another is named, or another way to load it.
    """
    found = run.study.model
    if model is not None and model != found.name:
        raise BadOption(
            f"The run in {run.folder} is of {found.name!r}, not of {model!r}; leave --model out, "
            "or leave the folder out."
        )
    usual = ModelOptions(loading.name, device=loading.device)
    if loading != usual:
        raise BadOption(
            f"The model of the run in {run.folder} is loaded as the run did; leave --dtype, "
            "--revision, --projections and --trust-remote-code out (--device may be given)."
        )
    return found if loading.device == "auto" else replace(found, device=loading.device)
