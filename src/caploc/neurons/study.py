"""A study of neurons, what every command on neurons works with, and how each hands on its findings.

A command opens a folder, finds something with a lab, and hands on a `Finding`: a file of results
and a page. `run_command` is the one place that does this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from caploc.contents import read_contents, typed
from caploc.engine import BatchEngine
from caploc.engine.wording import Span, Wording
from caploc.errors import BadOption, UserError
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.folder import NEURONS, RUN, claim, versions, write_json
from caploc.measurement import Cost, Meter
from caploc.models.loading import LoadedModel
from caploc.neurons.attribution import Attribution
from caploc.neurons.cutting import Cutter, Mode, NeuronEngine
from caploc.neurons.examples import Source, load_source
from caploc.neurons.finding import Finder, Found
from caploc.neurons.proof import NeuronModel, as_neurons
from caploc.neurons.scores import Rule, ScoreCache, digest
from caploc.progress import Progress, Silent
from caploc.store import Question, Store
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.tasks.task import Task
from caploc.workbench import Allowed, ModelOptions

EXAMPLES = 400  # of each task, to find neurons on
Lab = TypeVar("Lab")
Reported = tuple[dict[str, Any], list[Exhibit]]  # what the file holds, and what the page shows


@dataclass(frozen=True)
class NeuronStudy:
    """What to do: the neurons of some tasks in one model.

    `examples` of each task (fewer if it has fewer) are dealt into `subsets`; a neuron is the
    task's if it is chosen in a share `least` of them (1: in all).
    """

    model: ModelOptions
    tasks: tuple[str, ...]
    attribution: Attribution = field(default_factory=Attribution)
    rule: Rule = field(default_factory=Rule)
    options: TaskOptions = field(default_factory=TaskOptions)
    examples: int | None = EXAMPLES
    subsets: int = 2
    least: float = 1.0
    seed: int = 0

    def check(self) -> "NeuronStudy":
        """Refuse every mistake that can be seen before data or weights are loaded.

        Raises:
            UserError: in one sentence.
        """
        if not self.tasks:
            raise BadOption("Name at least one task, such as --task demo/addition.")
        if self.subsets < 2:
            raise BadOption(f"--subsets must be 2 or more; got {self.subsets}.")
        if self.examples is not None and self.examples < self.subsets:
            raise BadOption(
                f"--examples must be at least one for each of {self.subsets} subsets; got "
                f"{self.examples}."
            )
        if not 0 < self.least <= 1:
            raise BadOption(f"--least must be above 0 and at most 1; got {self.least:g}.")
        self.attribution.check()
        self.rule.check()
        self.options.check()
        for name in self.tasks:
            check_task_name(name, self.options)
        self.model.check()
        return self

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> "NeuronStudy":
        """Read the study of a run from its file."""
        parts = {
            "model": ModelOptions(**fields["model"]),
            "attribution": Attribution(**fields["attribution"]),
            "rule": Rule(**fields["rule"]),
            "options": TaskOptions(**fields["options"]),
            "tasks": tuple(fields["tasks"]),
        }
        return typed(cls(**fields | parts))


@dataclass
class NeuronBench:
    """A loaded model, found and proved as heads and as neurons, with its store and scores."""

    engine: BatchEngine[LoadedModel]
    neurons: NeuronModel
    store: Store
    scores: ScoreCache
    cost: Cost = field(default_factory=Cost)
    meters: dict[Question, Meter] = field(default_factory=dict)
    cutters: dict[str, Cutter] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: BatchEngine[LoadedModel], store: Store, folder: Path) -> "NeuronBench":
        return cls(engine, as_neurons(engine.loaded), store, ScoreCache(folder))

    @property
    def wording(self) -> Wording:
        return self.engine.wording

    def meter(
        self, task: Task, mode: Mode | None = None, reference: Sequence[Span] = (), seed: int = 0
    ) -> Meter:
        """Make the meter of a task whose masks are sets of neurons, cut by `mode` (None: zero).

        `reference` are the examples whose activations stand in, where the mode needs some. There is
        one meter a question, so that no row is counted twice.
        """
        mode = mode or Mode()
        way = f"neurons {mode}"
        if mode.needs_reference:
            spans = [[list(span.inputs), list(span.continuation)] for span in reference]
            way += f" of {digest({'spans': spans})}"
        if mode.name == "resample":
            way += f" seed {seed}"
        if way not in self.cutters:
            self.cutters[way] = Cutter.of(self.neurons, mode, reference, seed)
        loaded = self.engine.loaded
        question = Question(
            loaded.fingerprint, loaded.dtype, task.name, task.version, task.outcome_kind, way
        )
        if question not in self.meters:
            engine = NeuronEngine(self.engine, self.cutters[way])
            self.meters[question] = Meter(engine, self.store, task, question, self.cost)
        return self.meters[question]


@dataclass
class NeuronLab:
    """A study's model, store and tasks; everything found is found once."""

    study: NeuronStudy
    store: Store
    folder: Path
    progress: Progress = field(default_factory=Silent)
    sources: dict[str, Source] = field(default_factory=dict)
    kept: dict[str, Found] = field(default_factory=dict)

    @cached_property
    def bench(self) -> NeuronBench:
        """The model, loaded when it is first needed: data are checked before.

        Raises:
            UserError: if it is not the model whose neurons lie in the folder.
        """
        for task in self.study.tasks:
            self.source(task)
        bench = NeuronBench.of(self.study.model.engine(), self.store, self.folder)
        found, own = self.folder / NEURONS, bench.neurons.fingerprint
        if found.exists() and read_contents(found)["model"]["fingerprint"] != own:
            raise UserError(
                f"The model {self.study.model.name} has changed since neurons were located in "
                f"{self.folder}; run `caploc neurons locate` into a new folder."
            )
        return bench

    def source(self, task: str) -> Source:
        if task not in self.sources:
            study = self.study
            self.sources[task] = load_source(
                study.model, task, study.options, study.examples, study.seed
            )
        return self.sources[task]

    def spans(self, task: str) -> list[Span]:
        return self.source(task).spans(self.bench.wording)

    def finder(self, attribution: Attribution | None = None) -> Finder:
        """Make what finds neurons, by the study's score or another."""
        study, bench = self.study, self.bench
        asked = attribution or study.attribution
        return Finder(bench.neurons, asked, study.rule, bench.scores, self.progress)

    def found(self, task: str) -> Found:
        if task not in self.kept:
            subsets, least = self.study.subsets, self.study.least
            self.kept[task] = self.finder().find(task, self.spans(task), subsets, least=least)
        return self.kept[task]


@contextmanager
def open_study(
    study: NeuronStudy, folder: Path, progress: Progress | None, command: str
) -> Iterator[NeuronLab]:
    """Claim a study's folder, and open what is needed to work on it."""
    study.check()
    with claim(folder, asdict(study) | {"kind": "neurons"}, command) as store:
        yield NeuronLab(study, store, folder, progress or Silent())


@contextmanager
def reopen_study(
    folder: Path, progress: Progress | None, allowed: Allowed | None
) -> Iterator[NeuronLab]:
    """Open the folder of a finished `locate` again."""
    study, command = read_study(folder, allowed)
    with open_study(study, folder, progress, command) as lab:
        yield lab


def read_study(folder: Path, allowed: Allowed | None = None) -> tuple[NeuronStudy, str]:
    """Read the study of a folder of `caploc neurons locate`, and its command.

    `allowed` says what may be run for it.

    Raises:
        UserError: if it holds none, or one of another version, or asks for what is not allowed.
    """
    written = read_contents(folder / RUN) if (folder / RUN).exists() else {}
    fields = dict(written.get("study", {}))
    if fields.pop("kind", None) != "neurons":
        raise UserError(
            f"{folder} holds no run of `caploc neurons locate`; name the folder of one."
        )
    try:
        study = NeuronStudy.restored(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The run in {folder} was written by another version of caploc ({error}); run `caploc "
            "neurons locate` again into a new folder."
        ) from error
    where = f"The run in {folder}"
    (allowed or Allowed()).check(where, study.model, study.options, study.tasks)
    return study, str(written.get("command", ""))


@dataclass(frozen=True)
class Finding:
    """What a command found: the results for its `file`, and the page that tells them.

    The page lies in `page` inside the run's folder, beside the pages of other commands.
    """

    file: str
    results: dict[str, Any]
    title: str
    headline: str
    exhibits: list[Exhibit]
    lines: list[str] = field(default_factory=list)
    page: str = ""


def run_command(
    opened: AbstractContextManager[Lab], find: Callable[[Lab], Finding], folder: Path, command: str
) -> Reported:
    """Let a command find something in an open study; write its file and its page."""
    with opened as lab:
        finding = find(lab)
        result = {"schema": 1, **finding.results, "command": command, "versions": versions()}
        write_json(folder / finding.file, result)
    told = finding.title, finding.headline, finding.lines, finding.exhibits
    write_exhibits(folder / finding.page, *told, command)
    return result, finding.exhibits
