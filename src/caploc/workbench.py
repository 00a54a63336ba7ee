"""What every command works on: a model's engine, its tasks, the store, and the running cost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from transformers import PreTrainedTokenizerBase

from caploc.components import Grid, Heads, find_grid
from caploc.cost import Cost
from caploc.engine import check_engine
from caploc.engine.api import HeadModel, Model_co, RowEngine
from caploc.errors import BadOption, UserError, pick
from caploc.measurement import Meter
from caploc.models.devices import SPREAD
from caploc.models.loading import (
    LoadedModel,
    Weights,
    check_model,
    choose_weights,
    load_model,
    load_tokenizer,
)
from caploc.models.placement import SCHEMES
from caploc.models.sources import ModelSource, find_source
from caploc.modes import Intervention, Sources
from caploc.options import ZERO, Mode, ModelFields, TaskOptions, Workers, record
from caploc.store import Question, Store
from caploc.tasks.catalog import load_task, wants_chat_template
from caploc.tasks.task import Task, prompt_of
from caploc.tasks.taskfiles import find_code

if TYPE_CHECKING:  # what is loaded once a model is, or workers are asked for
    from caploc.engine.batch import BatchEngine

MOST_TASKS = 256  # of a study: its own and those beside it; each is loaded and scored


@record(frozen=True)
class ModelOptions(ModelFields):
    """Which model, and how it is loaded; see `caploc.load_model`.

    With `workers` each of them loads it and answers rows.
    """

    workers: Workers | None = None

    score: ClassVar[Any] = None  # a `ScoreAnswer` for tasks that leave it to the program

    def check(self) -> Heads:
        """Refuse, by a UserError, what shows before weights are read; return the model's grid."""
        if self.revision is not None and not self.revision.isprintable():
            raise BadOption(f"--revision must be a branch, tag or commit; got {self.revision!r}.")
        check_engine(self.backend, "--workers" if self.workers is not None else None)
        if self.workers is None:
            return check_model(**self.loading())
        from caploc.workers.ray_backend import check_workers

        check_workers(self.workers, self.device)
        if self.quantize is not None:
            pick(SCHEMES, self.quantize, "quantization")
        return self.weights().check(self.projections)

    def check_here(self, why: str) -> None:
        """Refuse, by a BadOption, a model of workers that this process, too, has to load."""
        if self.workers is None:
            return
        try:
            replace(self, workers=None).check()
        except UserError as error:
            raise BadOption(f"{error} This process itself {why}.") from error

    def source(self) -> ModelSource:
        """Find the model's files; raises UserError if there is no such model."""
        return find_source(self.name, self.revision, self.gguf)

    def fingerprint(self) -> str:
        """Tell its weights from others; raises UserError if there is no such model."""
        return self.source().fingerprint()

    def loading(self) -> dict[str, Any]:
        """List the arguments of `load_model`."""
        fields = asdict(self)
        del fields["batch_size"], fields["workers"], fields["backend"]
        return fields

    def weights(self) -> Weights:
        """Find the weights to be loaded; none is read. Those of workers as if plain and spread."""
        how = self.loading()
        del how["projections"]
        if self.workers is not None:
            # their machines may have devices, memory and packages that this one has not
            how |= {"device": SPREAD, "quantize": None}
        return choose_weights(**how)

    def hint(self) -> str | None:
        """Say how rows would take less time, as far as is known before weights are read."""
        return None if self.workers is not None else self.weights().quicker

    def engine(self) -> "BatchEngine[LoadedModel]":
        """Load the model, find and prove its heads."""
        from caploc.engine.batch import BatchEngine

        return BatchEngine(load_model(**self.loading()), self.batch_size, backend=self.backend)

    @contextmanager
    def answering(self) -> Iterator[RowEngine[HeadModel]]:
        """Answer rows by an engine of this process, or by workers while the block runs."""
        if self.workers is None:
            yield self.engine()
            return
        from caploc.workers.distributed import DistributedEngine, WorkerRecipe
        from caploc.workers.ray_backend import WorkerPool

        recipe = WorkerRecipe(self.loading(), self.batch_size)
        with DistributedEngine(WorkerPool(self.workers, recipe, self.device)) as engine:
            yield engine

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(
            self.name,
            revision=self.revision,
            gguf=self.gguf,
            trust_remote_code=self.trust_remote_code,
        )

    def tasks(self, names: Sequence[str], options: TaskOptions) -> list[Task]:
        """Load tasks and build their requests; of the model only the tokenizer is read.

        A task that wants a chat template gets the plain prompt where the tokenizer has none.
        """
        chat = None
        if options.chat_template or any(map(wants_chat_template, names)):
            tokenizer = self.tokenizer()
            if options.chat_template or tokenizer.chat_template is not None:
                from caploc.engine.encoding import chat_template

                chat = chat_template(tokenizer)
        return [load_task(name, options, chat, self.score) for name in names]


@dataclass(frozen=True)
class Allowed:
    """What only the command line may say: a file, or a run's folder, may come from anyone."""

    code: bool = False  # programs that a model writes are run
    remote_code: bool = False  # code of a model's repository, or that a task's file names, is run
    workers: Workers | None = None

    def check(
        self, where: str, model: ModelOptions, options: TaskOptions, tasks: Sequence[str]
    ) -> None:
        """Refuse what a file (`where` says which) asks for and may not; raises BadOption."""
        check_task_count(where, len(tasks))
        if model.trust_remote_code and not self.remote_code:
            raise BadOption(
                f"{where} asks to run the Python code of the model {model.name}; if you trust "
                "whoever made both, add --trust-remote-code."
            )
        if options.allow_code and not self.code:
            raise BadOption(
                f"{where} asks to run programs that the model writes; add --allow-code to run them "
                "in bubblewrap (docs/security.md)."
            )
        for task in tasks:
            self.check_task(where, task)

    def check_task(self, where: str, task: str) -> None:
        """Refuse, by a BadOption, a task's file beside Python code, if that was not allowed."""
        if not self.remote_code and (code := find_code(task)):
            raise BadOption(
                f"{where} names the task {task}, which can run Python code ({code}) with your "
                "rights; if you trust whoever made it, add --trust-remote-code."
            )


def check_task_count(where: str, count: int) -> None:
    """Refuse, by a BadOption, more tasks than `MOST_TASKS`; `where` says what names them."""
    if count > MOST_TASKS:
        raise BadOption(
            f"{where} names {count:,} tasks, and a study has at most {MOST_TASKS}; name fewer, or "
            "a group of them."
        )


def load_intervention(
    model: ModelOptions, mode: Mode, options: TaskOptions, seed: int
) -> Intervention:
    """Load what it takes to knock heads out as a mode says."""
    corrupted = model.tasks(mode.tasks, options)
    return Intervention(mode, seed, corrupted[0] if corrupted else None)


def check_pairs(model: ModelOptions, intervention: Intervention, task: Task) -> None:
    """Refuse, by a BadOption, corrupted prompts that are not as long as the task's own."""
    corrupted = intervention.corrupted
    if corrupted is None:
        return
    intervention.sources(task)
    tokenizer = model.tokenizer()
    unlike = []
    for example in range(task.size):
        pair = task.in_metric().requests(example)[0], corrupted.requests(example)[0]
        counts = [len(tokenizer(prompt_of(request))["input_ids"]) for request in pair]
        unlike += [(example, *counts)] if counts[0] != counts[1] else []
    if unlike:
        number, own, other = unlike[0]
        raise BadOption(
            f"--corrupted {corrupted.name}: of {len(unlike):,} of {task.size:,} examples the "
            f"corrupted prompt has not as many tokens as the prompt of {task.name} (example "
            f"{number}: {other}, not {own}); word them so that it has."
        )


@dataclass
class Workbench(Generic[Model_co]):
    """A loaded model, the store its rows go to, and what they cost so far.

    `components` is the kind, of `KINDS`, that masks are over; None leaves them over what the engine
    cuts, heads or neurons. `intervention` says what takes the place of heads that are knocked out.
    """

    engine: RowEngine[Model_co]
    store: Store
    cost: Cost = field(default_factory=Cost)
    meters: dict[Question, Meter] = field(default_factory=dict)
    intervention: Intervention = field(default_factory=Intervention)
    sources: dict[tuple[str, str, str], Sources | None] = field(default_factory=dict)
    components: str | None = None

    @property
    def grid(self) -> Grid[Any]:
        """The grid that masks are over."""
        cut: Any = self.engine.loaded.grid
        return cut if self.components is None else find_grid(self.components, cut)

    def meter(self, task: Task, *, repeat: int = 0) -> Meter:
        """Return the meter of a task; one a question, so that no row is counted twice.

        With `repeat` rows that were measured are asked anew, and kept apart.
        """
        loaded = self.engine.loaded
        what = task.name, task.version, task.outcome_kind
        if what not in self.sources:
            self.sources[what] = self.intervention.sources(task)
        sources = self.sources[what]
        mode = ZERO if sources is None else sources.question
        question = Question(loaded.fingerprint, loaded.dtype, *what, mode, repeat)
        if question in self.meters:
            return self.meters[question]
        meter = Meter(self.engine, self.store, task, question, self.cost, sources, self.grid)
        self.meters[question] = meter
        return meter
