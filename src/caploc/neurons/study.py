"""A study of neurons: which model, which tasks, how neurons are scored and chosen."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from caploc.contents import read_contents, typed
from caploc.errors import BadOption, UserError
from caploc.folder import NEURONS, RUN, claim
from caploc.neurons.attribution import Attribution
from caploc.neurons.bench import NeuronBench
from caploc.neurons.examples import Source, source
from caploc.neurons.finding import Finder, Found
from caploc.neurons.rule import Rule
from caploc.progress import Progress, Silent
from caploc.store import Store
from caploc.tasks.catalog import TaskOptions, check_task_name
from caploc.workbench import Allowed, ModelOptions

EXAMPLES = 400  # of each task, to find neurons on


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
        """The study of a run, from its file.

        Raises:
            KeyError, TypeError, ValueError: if a field is missing, unknown or not of its type.
        """
        parts = {
            "model": ModelOptions(**fields["model"]),
            "attribution": Attribution(**fields["attribution"]),
            "rule": Rule(**fields["rule"]),
            "options": TaskOptions(**fields["options"]),
            "tasks": tuple(fields["tasks"]),
        }
        return typed(cls(**fields | parts))


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
        """A task's examples."""
        if task not in self.sources:
            study = self.study
            self.sources[task] = source(
                study.model, task, study.options, study.examples, study.seed
            )
        return self.sources[task]

    def finder(self, attribution: Attribution | None = None, rule: Rule | None = None) -> Finder:
        """What finds neurons, in the study's way or another."""
        study = self.study
        return Finder(
            self.bench.neurons,
            attribution or study.attribution,
            rule or study.rule,
            self.bench.shelf,
            self.progress,
        )

    def found(self, task: str) -> Found:
        """The task's neurons."""
        if task not in self.kept:
            spans = self.source(task).spans(self.bench.wording)
            study = self.study
            self.kept[task] = self.finder().find(task, spans, study.subsets, least=study.least)
        return self.kept[task]


@contextmanager
def opened(
    study: NeuronStudy, folder: Path, progress: Progress | None, command: str
) -> Iterator[NeuronLab]:
    """A study's folder, claimed, and what is needed to work on it.

    Raises:
        FolderTaken: if it holds another study, or another process has it open.
    """
    study.check()
    with claim(folder, asdict(study) | {"kind": "neurons"}, command) as store:
        yield NeuronLab(study, store, folder, progress or Silent())


def read_study(folder: Path, allowed: Allowed | None = None) -> tuple[NeuronStudy, str]:
    """The study of a folder of `caploc neurons locate`, and its command.

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
