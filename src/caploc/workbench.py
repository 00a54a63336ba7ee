"""What every command works on: a model's engine, its tasks, the store, and the running cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic

from caploc.engine import BatchEngine, chat_template
from caploc.engine.engine import Model
from caploc.errors import BadOption
from caploc.heads import HeadGrid
from caploc.measurement import Cost, Meter
from caploc.models.loading import LoadedModel, check_model, load_model, load_tokenizer
from caploc.store import Question, Store
from caploc.tasks.catalog import TaskOptions, load_task, wants_chat_template
from caploc.tasks.task import Task


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded; see `caploc.load_model`."""

    name: str
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    projections: str | None = None
    batch_size: int | None = None

    def check(self) -> HeadGrid:
        """Refuse what can be refused before weights are read; return the model's grid.

        Raises:
            UserError: in one sentence.
        """
        if self.batch_size is not None and self.batch_size < 1:
            raise BadOption(f"--batch-size must be 1 or more; got {self.batch_size}.")
        return check_model(**self.loading())

    def loading(self) -> dict[str, Any]:
        """The arguments of `load_model`."""
        fields = asdict(self)
        del fields["batch_size"]
        return fields

    def engine(self) -> BatchEngine[LoadedModel]:
        """Load the model, find and prove its heads."""
        return BatchEngine(load_model(**self.loading()), self.batch_size)

    def tasks(self, names: Sequence[str], options: TaskOptions) -> list[Task]:
        """Load tasks and build their requests; of the model only the tokenizer is read.

        A task that wants a chat template gets the plain prompt where the tokenizer has none.

        Raises:
            UserError: in one sentence.
        """
        chat = None
        if options.chat_template or any(map(wants_chat_template, names)):
            tokenizer = load_tokenizer(
                self.name, revision=self.revision, trust_remote_code=self.trust_remote_code
            )
            if options.chat_template or tokenizer.chat_template is not None:
                chat = chat_template(tokenizer)
        return [load_task(name, options, chat) for name in names]


@dataclass
class Workbench(Generic[Model]):
    """A loaded model, the store its rows go to, and what they cost so far."""

    engine: BatchEngine[Model]
    store: Store
    cost: Cost = field(default_factory=Cost)
    meters: dict[Question, Meter] = field(default_factory=dict)

    def meter(self, task: Task) -> Meter:
        """The meter of a task on this model; one a question, so that no row is counted twice."""
        loaded = self.engine.loaded
        question = Question(
            loaded.fingerprint, loaded.dtype, task.name, task.version, task.outcome_kind
        )
        if question not in self.meters:
            self.meters[question] = Meter(self.engine, self.store, task, question, self.cost)
        return self.meters[question]
