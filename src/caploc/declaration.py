"""What is asked for: a model, and a study of it with all its options, each declared once.

The command line, files of many studies, the Python call and run.json are this record. Neither
PyTorch nor lm-eval is imported before a model or a task is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import AfterValidator

from caploc import designs
from caploc.components import HEADS, KINDS, Grid, Heads, find_grid, resolve_excluded
from caploc.errors import BadOption, pick
from caploc.naming import are_twins, default_others
from caploc.options import (
    MOST_MASKS,
    MOST_ROWS,
    PATCH,
    Mode,
    Option,
    Settings,
    TaskOptions,
    Workers,
    check_device,
    flag_of,
    flags,
    one_of,
    record,
)
from caploc.registries import ENGINES, METHODS, PACKED

if TYPE_CHECKING:  # what is loaded once a model is, or workers are asked for
    from transformers import PreTrainedTokenizerBase

    from caploc.engine.api import HeadModel, RowEngine
    from caploc.engine.batch import BatchEngine
    from caploc.models.loading import LoadedModel, Weights
    from caploc.models.sources import ModelSource
    from caploc.modes import Intervention
    from caploc.tasks.task import Request, Task

PAPER_EXAMPLES = 100  # that the paper's methods find heads on
SCAN_EXAMPLES = 400  # that the default search draws on, at most
FINDING = 2 / 3  # of a small task's examples, to find heads on; the rest is for the check
FRESH = 600  # examples kept for the check, at most
CHECKED = 100  # of them that no search sees: the finding and its controls are on them
FEWEST_FRESH = 20  # below which there is no check on fresh examples; so few no search sees
SEARCHED = 60  # examples of a spared task or a twin that the search may use
JUDGED = 240  # others, on which sets are judged, at most
CURVED = 100  # examples of each task, at most, that a run draws its own curve on


@record(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded; see `caploc.load_model`.

    With `workers` each of them loads it and answers rows.
    """

    panel: ClassVar[str] = "Model"
    name: Annotated[
        str,
        Option(
            "Hugging Face id, folder, GGUF file, or a name of `caploc models`.", "model", path=True
        ),
    ]
    device: Annotated[
        str,
        AfterValidator(check_device),
        Option(
            "auto, cpu, cuda, cuda:1, mps; spread: over all devices, memory and disk.", basic=True
        ),
    ] = "auto"
    dtype: Annotated[str, Option("auto (the checkpoint's), float32, bfloat16, float16.")] = "auto"
    revision: Annotated[str | None, Option("Branch, tag or commit on the Hub.")] = None
    trust_remote_code: Annotated[
        bool,
        Option(
            "Run code from the model's repository, or named by the file of a run's task.",
            trust=True,
        ),
    ] = False
    batch_size: Annotated[
        int | None, Ge(1), Option("Rows in a batch at most; measured if absent.")
    ] = None
    quantize: Annotated[str | None, Option("Quantize weights with bitsandbytes: 8bit or 4bit.")] = (
        None
    )
    backend: Annotated[
        str,
        one_of(ENGINES, "engine"),
        Option(
            "packed (caploc's own), vllm, or plain (transformers' generate, nothing shared).",
            "engine",
        ),
    ] = PACKED
    workers: Workers | None = None

    def check(self) -> Heads:
        """Refuse, by a UserError, what shows before weights are read; return the model's grid."""
        from caploc.engine import check_engine

        if self.revision is not None and not self.revision.isprintable():
            raise BadOption(f"--revision must be a branch, tag or commit; got {self.revision!r}.")
        check_engine(self.backend, "--workers" if self.workers is not None else None)
        if self.workers is not None:
            from caploc.models.placement import SCHEMES
            from caploc.workers.ray_backend import check_workers

            check_workers(self.workers, self.device)
            if self.quantize is not None:
                pick(SCHEMES, self.quantize, "quantization")
        return self.weights().check()

    def source(self) -> "ModelSource":
        """Find the model's files; raises UserError if there is no such model."""
        from caploc.models.sources import find_source

        return find_source(self.name, self.revision)

    def loading(self) -> dict[str, Any]:
        """List the arguments of `load_model`."""
        fields = asdict(self)
        del fields["batch_size"], fields["workers"], fields["backend"]
        return fields

    def weights(self) -> "Weights":
        """Find the weights to be loaded; none is read. Those of workers as if plain and spread."""
        from caploc.models.devices import SPREAD
        from caploc.models.loading import choose_weights

        how = self.loading()
        if self.workers is not None:
            # their machines may have devices, memory and packages that this one has not
            how |= {"device": SPREAD, "quantize": None}
        return choose_weights(**how)

    def engine(self) -> "BatchEngine[LoadedModel]":
        """Load the model, find and prove its heads."""
        from caploc.engine.batch import BatchEngine
        from caploc.models.loading import load_model

        return BatchEngine(load_model(**self.loading()), self.batch_size, backend=self.backend)

    @contextmanager
    def answering(self) -> "Iterator[RowEngine[HeadModel]]":
        """Answer rows by an engine of this process, or by workers while the block runs."""
        if self.workers is None:
            yield self.engine()
            return
        from caploc.engine.encoding import RequestEncoder
        from caploc.workers.distributed import DistributedEngine, WorkerRecipe
        from caploc.workers.ray_backend import WorkerPool

        recipe = WorkerRecipe(self.loading(), self.batch_size)
        encoder = RequestEncoder(self.weights().empty, self.tokenizer())
        pool = WorkerPool(self.workers, recipe, self.device)
        with DistributedEngine(pool, encoder.misfit) as engine:
            yield engine

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        from caploc.models.loading import load_tokenizer

        return load_tokenizer(
            self.name,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
        )

    def tasks(
        self,
        names: Sequence[str],
        options: TaskOptions,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> "list[Task]":
        """Load tasks and build their requests; of the model only the tokenizer is read.

        A task that wants a chat template gets the plain prompt where the tokenizer has none.
        `tokenizer` is one that is loaded already.
        """
        from caploc.tasks.catalog import load_task, wants_chat_template

        chat = None
        if options.chat_template or any(map(wants_chat_template, names)):
            tokenizer = tokenizer or self.tokenizer()
            if options.chat_template or tokenizer.chat_template is not None:
                from caploc.engine.encoding import chat_template

                chat = chat_template(tokenizer)
        return [load_task(name, options, chat) for name in names]


@dataclass(frozen=True)
class Draw:
    """A task's examples: to search on, to compare sets on, and held out, which no search sees.

    Of a task with few, all are to search on.
    """

    searched: list[int]
    fresh: list[int]
    held_out: list[int]

    @property
    def kept(self) -> list[int]:
        """Those that heads are not searched on."""
        return self.held_out + self.fresh

    @property
    def judged(self) -> list[int]:
        """Those that findings are checked on."""
        return self.held_out or self.searched


def split_examples(size: int, seed: int) -> tuple[list[int], list[int]]:
    """Draw examples of another task, to search on and to judge on; of few, half for each."""
    count = min(SEARCHED, max(size // 2, 1))
    drawn = designs.draw_examples(size, min(size, count + JUDGED), seed=seed)
    return drawn[:count], drawn[count:] or drawn[:count]


@record(frozen=True)
class Study:
    """What to do: one task on one model with one method. Everything else follows from it.

    `settings.budget`, in rows, is what the default search may spend; for the other methods it
    decides the number of masks (or, for those that draw none, of examples). `examples` are those
    that heads are found on (None: as many as suits the method and the task). `other_tasks` are
    scored before and after, to see what else breaks; so are those that a specific set must
    `spare`, and its `twins`, the task in other words, which it must break as well (none named:
    those that caploc brings; `none`: no such). `limit` caps the examples of every final score;
    `components` says what is knocked out, and those that hold heads of `exclude` (names, files of
    heads) are left in and never named;
    `controls` is the number of random sets of heads to compare with, and 0 leaves out that
    check. `quick` leaves out the curve over the named heads. `track` names an experiment of
    MLflow that the run is logged to. `leave_out` is the share of a task's examples that may be left
    out because they cannot be asked as they stand.
    """

    panel: ClassVar[str] = "Search and checks"
    model: ModelOptions
    task: Annotated[
        str, MinLen(1), Option("Task, group, tag or YAML, or pairs (.jsonl, .csv)", path=True)
    ]
    method: Annotated[str, one_of(METHODS, "method"), Option(f"{', '.join(METHODS)}")] = "scan"
    components: Annotated[
        str,
        one_of(KINDS, "kind of component"),
        Option("What to knock out: heads, groups (of query heads that share keys), layers."),
    ] = HEADS
    settings: Settings = field(default_factory=Settings)
    examples: Annotated[
        int | None,
        Ge(1),
        Le(MOST_ROWS),
        Option("Examples to find heads on; depends on method and task if absent."),
    ] = None
    options: TaskOptions = field(default_factory=TaskOptions)
    other_tasks: Annotated[
        tuple[str, ...],
        Option("Another task to score before and after", "also", basic=True, path=True),
    ] = ()
    spare: Annotated[
        tuple[str, ...],
        Option("A task that --goal specific must leave alone", basic=True, path=True),
    ] = ()
    twins: Annotated[
        tuple[str, ...],
        Option(
            "The task in other words, for --goal specific to break as well (if absent, the "
            "one that caploc brings; none: the task alone)",
            "twin",
            path=True,
            goals=("specific",),
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Option("Heads never to knock out: L0H6,L3H1, or a file of heads", path=True),
    ] = ()
    mode: Mode = field(default_factory=Mode)
    controls: Annotated[int, Ge(0), Option("Random sets of heads to compare with.")] = 20
    limit: Annotated[
        int | None, Ge(1), Option("Score on the first N examples only.", basic=True)
    ] = None
    quick: Annotated[bool, Option("Skip the curve over the named heads.", basic=True)] = False
    track: Annotated[str | None, MinLen(1), Option("Log the run to this experiment of MLflow.")] = (
        None
    )
    leave_out: Annotated[
        float,
        Ge(0),
        Lt(1),
        Option("Share of a task's examples that may be left out: empty, too long, without answer."),
    ] = 0.0

    def __post_init__(self) -> None:
        goal, seekers = self.settings.goal, flags(Study)["goal"].option.methods
        if goal == "specific" and self.method not in seekers:
            raise BadOption(
                f"--goal specific is for --method {seekers[0]}: no other method looks for sets "
                "that leave tasks alone. Leave out the method or the goal."
            )
        if goal == "specific" and not self.spare:
            raise BadOption(
                "--goal specific needs a task to leave alone, or several: name them with --spare."
            )
        if goal != "specific" and self.spare:
            raise BadOption(
                f"--spare is for --goal specific; got --goal {goal}. Add that goal, or name the "
                "tasks with --also, to see what they lose."
            )
        if both := {self.task, *self.twins} & {*self.spare}:
            raise BadOption(f"--spare {min(both)} is the task to break, or its twin.")
        if self.task in self.twins:
            raise BadOption(f"--twin {self.task} is the task itself.")

    @property
    def seeks_set(self) -> bool:
        """Tell whether the search is to find a set; only the default one has goals."""
        return METHODS[self.method].has_goals and self.settings.goal != "heads"

    @property
    def names_sets(self) -> bool:
        """Tell whether heads are named for what they do together."""
        return self.seeks_set or METHODS[self.method].names_sets

    @property
    def seeks_specific(self) -> bool:
        """Tell whether this set must leave other tasks alone."""
        return self.seeks_set and self.settings.goal == "specific"

    @property
    def beside(self) -> tuple[str, ...]:
        """All tasks but the one that heads are searched for, each once."""
        names = dict.fromkeys((*self.twins, *self.spare, *self.other_tasks))
        return tuple(name for name in names if name != self.task)

    @property
    def named_tasks(self) -> tuple[str, ...]:
        return (self.task, *self.beside, *self.mode.tasks)

    def is_twin(self, name: str) -> bool:
        """Tell whether a task is this one in other words."""
        return name in self.twins or are_twins(name, self.task)

    def check(self, heads: Heads) -> "Study":
        """Refuse, by a UserError, what can be refused before data or weights are loaded.

        `heads` are the model's. Returns the study with its budget spent, its excluded heads by
        name and its twins.
        """
        from caploc.tasks.catalog import check_task_name

        study = self.with_twins()
        study.options.check_files()
        study.mode.check_beside(study.beside)
        if study.track is not None:
            from caploc.tracking import check_tracking

            check_tracking(study.track)
        for name in study.named_tasks:
            check_task_name(name, study.options)
        grid = find_grid(study.components, heads)
        sized = study.sized(grid)
        if not study.exclude:
            return sized
        excluded = resolve_excluded(study.exclude, heads, grid, study.settings.top)
        return replace(sized, exclude=excluded)

    def with_twins(self) -> "Study":
        """Return the study with the tasks in other words that a specific set must break too."""
        twins = [name for name in self.twins if name != "none"]
        if self.seeks_specific and not self.twins:
            from caploc.tasks.catalog import list_twins

            twins = [name for name in list_twins(self.task) if name not in self.spare]
        return replace(self, twins=tuple(twins))

    def sized(self, grid: Grid[Any]) -> "Study":
        """Turn a budget of rows into masks, or into examples, if it buys one round of them."""
        heads = grid.size
        if self.settings.top > heads:
            raise BadOption(
                f"--top {self.settings.top} is more than the {heads} {grid.COMPONENT.KIND}s of "
                f"{self.model.name}."
            )
        from caploc.search import Problem

        method, budget = METHODS[self.method], self.settings.budget
        examples = self.examples or PAPER_EXAMPLES
        method.check(Problem(heads, range(examples), self.settings))
        if method.masks is None:
            return self
        if method.draws_masks:
            designs.check_mask_size(heads, self.settings.rate)
        if budget is None:
            return self
        need = examples if method.draws_masks else method.masks(Problem(heads, (), self.settings))
        if (bought := budget // need) < 1:
            raise BadOption(
                f"--budget {budget} is too small: {self.method} needs {need} rows or more."
            )
        settings = replace(self.settings, budget=None)
        if method.draws_masks:
            if bought > MOST_MASKS:
                raise BadOption(
                    f"--budget {budget} buys {bought} masks, and {MOST_MASKS:,} are the most; "
                    "lower it, or raise --examples."
                )
            return replace(self, settings=replace(settings, masks=bought), examples=examples)
        return replace(self, settings=settings, examples=bought)

    def tasks(
        self,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> "dict[str, Task]":
        """Load the task, the first, and those beside it, which are asked in their own way."""
        load, others = partial(self.model.tasks, tokenizer=tokenizer), self.beside
        loaded = [*load([self.task], self.options), *load(others, self.options.plain())]
        return dict(zip((self.task, *others), loaded, strict=True))

    def intervention(
        self,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> "Intervention":
        """Load what it takes to knock heads out as the mode says."""
        from caploc.modes import Intervention

        # its examples are its own, also where the task's are said by --data
        own = replace(self.options, data={})
        corrupted = self.model.tasks(self.mode.tasks, own, tokenizer)
        return Intervention(self.mode, self.settings.seed, corrupted[0] if corrupted else None)

    def without_defects(
        self, tasks: "Mapping[str, Task]", misfit: "Callable[[Request], str | None]"
    ) -> "dict[str, Task]":
        """Leave out examples that cannot be asked as they stand, or raise BadData that names them.

        Looked at are those that the study may ask; fewer examples make it ask others, which are
        looked at in turn.
        """
        from caploc.tasks.defects import without_defects

        kept = {}
        for name, task in tasks.items():
            left = without_defects(task, self.may_ask(name, task), misfit, self.leave_out)
            while left.size < task.size:
                task = left
                left = without_defects(task, self.may_ask(name, task), misfit, self.leave_out)
            kept[name] = left
        return kept

    def may_ask(self, name: str, task: "Task") -> list[int]:
        """List the examples of the task of this name that the study may ask."""
        asked = {*task.first(self.limit)}
        if name == self.task:
            draw = self.draw(task.size)
            asked |= {*draw.searched, *draw.kept}
        elif self.seeks_specific:
            asked |= {*chain(*split_examples(task.size, self.settings.seed))}
        return sorted(asked)

    def draw(self, size: int) -> Draw:
        """Draw the examples of the task, of so many."""
        most = size - FEWEST_FRESH if size >= 2 * FEWEST_FRESH else size
        usual = min(SCAN_EXAMPLES, max(1, round(FINDING * size)), most)
        scans = METHODS[self.method].has_goals
        count = self.examples or (usual if scans else min(PAPER_EXAMPLES, size))
        searched = designs.draw_examples(size, count, seed=self.settings.seed)
        # more examples begin with those of fewer
        longer = designs.draw_examples(size, min(size, count + FRESH), seed=self.settings.seed)
        kept = longer[count:] if len(longer) >= count + FEWEST_FRESH else []
        # half of them are for comparing sets, where there are sets to compare
        most = max(len(kept) // 2, FEWEST_FRESH) if self.names_sets else len(kept)
        held_out = min(CHECKED, most)
        return Draw(searched, kept[held_out:], kept[:held_out])

    def curve_examples(self, tasks: "Mapping[str, Task]") -> dict[str, list[int]]:
        """Choose those of each task that its curve is drawn on: of the checks, `CURVED` at most."""
        own = self.draw(tasks[self.task].size).judged[: min(CHECKED, self.limit or CHECKED)]
        sides = {*self.twins, *self.spare} if self.seeks_specific else set()
        chosen = {
            name: split_examples(task.size, self.settings.seed)[1][: self.limit]
            if name in sides
            else task.first(self.limit)
            for name, task in tasks.items()
        }
        return {name: each[:CURVED] for name, each in (chosen | {self.task: own}).items()}


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
        """Refuse, by a BadOption, a task's file that can run Python code, unless allowed."""
        from caploc.tasks.taskfiles import find_code

        if not self.remote_code and (code := find_code(task)):
            raise BadOption(
                f"{where} names the task {task}, which can run Python code ({code}) with your "
                "rights; if you trust whoever made it, add --trust-remote-code."
            )


LISTED = ("also", "spare", "twin", "exclude")  # options that hold names


def with_general_task(said: Mapping[str, Any]) -> dict[str, Any]:
    """Add the general task that every one is held against, unless an empty list asks for none."""
    others = said.get("also")
    if said.get("mode") == PATCH or "task" not in said or (others is not None and not others):
        return dict(said)
    general = default_others(said["task"])
    return dict(said) | {"also": tuple(dict.fromkeys((*(others or ()), *general)))}


def check_read(said: Iterable[str], method: str, goal: str) -> None:
    """Refuse an option that this method, or this goal, would not read.

    Raises BadOption with the option, and what reads it.
    """
    for name in said:
        option = flags(Study)[name].option
        flag = flag_of(name)
        if option.methods and method not in option.methods:
            raise BadOption(
                f"{flag} is for --method {', '.join(option.methods)}; got --method {method}, which "
                "does not read it. Leave it out, or name a method that does."
            )
        if option.goals and goal not in option.goals:
            raise BadOption(
                f"{flag} is for --goal {', '.join(option.goals)}; got --goal {goal}. Leave it "
                "out, or name that goal."
            )


def check_places(model: ModelOptions, options: TaskOptions) -> None:
    """Refuse, in a second or two, files of examples and devices that are not there."""
    options.check_files()
    if model.workers is None and model.device not in ("auto", "cpu"):
        from caploc.models.devices import SPREAD, pick_device  # loads torch alone

        pick_device("auto" if model.device == SPREAD else model.device)
