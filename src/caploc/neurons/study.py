"""A study of neurons, and what every command on neurons works with.

A command opens a session, finds something with it, and writes a file of results and a page.

Neurons are found on a task's training examples where it has a training split, and judged on its
evaluation examples. A task without one gives every other evaluation example to finding, and the
rest to judging: no question is on both sides.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from caploc import designs
from caploc.contents import RunFile, read_file, restore
from caploc.declaration import Allowed, ModelOptions
from caploc.engine.encoding import RequestEncoder, Span
from caploc.errors import BadData, BadOption, UserError, pick
from caploc.folder import NEURONS, RUN, claim
from caploc.measurement import Meters
from caploc.neurons.engine import Batcher, Erasure, NeuronEngine
from caploc.neurons.finding import (
    Finder,
    TaskNeurons,
    deal_subsets,
    score_cache,
)
from caploc.neurons.model import NeuronModel, find_sites
from caploc.neurons.options import NeuronStudy
from caploc.neurons.result import LocatedFile
from caploc.options import TaskOptions
from caploc.pairs import identify
from caploc.progress import Progress, Silent
from caploc.store import Row, Store
from caploc.tasks.catalog import can_train
from caploc.tasks.defects import one_of_each_question
from caploc.tasks.harness import digest_data
from caploc.tasks.task import Generate, LogLikelihood, Task
from caploc.wording import called, called_apart


def read_located(folder: Path) -> LocatedFile:
    """Read the neurons of a finished run; raises UserError."""
    return read_file(folder / NEURONS, LocatedFile)


def check_scorable(model: ModelOptions) -> None:
    """Refuse, before weights are read, what cannot score neurons.

    Raises BadOption; ModelRefused if the model's neurons are not covered.
    """
    weights = model.weights()
    find_sites(weights.empty)
    if model.workers is not None:
        raise BadOption("Neurons are found in one process; leave out --workers.")
    if model.quantize == "4bit" and weights.device.type == "cpu":
        raise BadOption(
            "Weights of --quantize 4bit compute without gradients on a CPU, and scores of neurons "
            "need some; choose 8bit, or a GPU."
        )


@dataclass(frozen=True)
class TaskSource:
    """A task's examples on both sides.

    `finding` asks for the log-probability of gold answers, of the examples `find_on`. `judging` is
    the task itself and `gold` the log-probability of its gold answers; `judge_on` are the examples
    of both that no finding sees.
    """

    name: str
    finding: Task
    find_on: list[int]
    judging: Task
    gold: Task
    judge_on: list[int]

    def spans(self, wording: RequestEncoder) -> list[Span]:
        """Encode prompt and gold answer of the finding examples."""
        return _as_spans(self.finding, self.find_on, wording)

    def lessons(self, wording: RequestEncoder) -> list[Span]:
        """Encode the same to learn from: an answer that the model writes ends as the task ends it.

        Without its end a tuned model would answer rightly and go on.
        """
        return _as_spans(self.finding, self.find_on, wording, self.end(wording))

    def end(self, wording: RequestEncoder) -> str:
        """Find what ends a written answer: the first stop string, else the model's end of text.

        Empty where answers are chosen and not written.
        """
        first, *_ = self.judging.requests(self.judge_on[0])
        return wording.prompt(first).stops[0] if isinstance(first, Generate) else ""

    def judged_spans(self, wording: RequestEncoder, limit: int | None) -> list[Span]:
        """Encode prompt and gold answer of the first judging examples."""
        return _as_spans(self.gold, self.judge_on[:limit], wording)


def with_end(answer: str, end: str) -> str:
    """Put its end to an answer that may already hold the beginning of that end."""
    held = next(count for count in range(len(end), -1, -1) if answer.endswith(end[:count]))
    return answer + end[held:]


def _as_spans(
    task: Task, examples: Sequence[int], wording: RequestEncoder, end: str = ""
) -> list[Span]:
    """Encode some examples' prompts and gold answers, with their `end`; windows of texts apart."""
    found: list[Span] = []
    for example in examples:
        for request in task.requests(example):
            assert not isinstance(request, Generate)
            if isinstance(request, LogLikelihood) and end:
                request = replace(request, continuation=with_end(request.continuation, end))
            found += wording.spans(request)
    return found


def load_source(
    model: ModelOptions,
    name: str,
    options: TaskOptions,
    examples: int | None,
    seed: int,
    progress: Progress | None = None,
) -> TaskSource:
    """Load a task's examples, `examples` of them drawn from the seed for finding (None: all).

    A question that stands there several times is asked once, or neurons would be judged on what
    they were found on. Raises UserError if the task cannot be loaded, or has no gold answers;
    BadData if fewer than 2 examples are left for finding or for judging.
    """

    def ask_once(way: TaskOptions, progress: Progress | None = None) -> Task:
        (task,) = model.tasks([name], way)
        return one_of_each_question(task, 1.0, progress or Silent())

    by_gold = replace(options, outcome="logprob", metric=None)
    judging = ask_once(replace(options, outcome="metric"), progress)
    try:
        gold = ask_once(by_gold)
    except BadOption as error:  # its advice, --outcome metric, is none for neurons
        why = str(error).partition(";")[0]
        raise BadOption(f"{why}, by which neurons are found; name another task.") from error
    everything = list(range(judging.size))
    finding, pool, judge_on = gold, everything[::2], everything[1::2]
    if can_train(name, options):
        finding = ask_once(replace(by_gold, training=True))
        pool, judge_on = fresh_questions(finding, judging, progress or Silent()), everything
    if min(len(pool), len(judge_on)) < 2:
        raise BadData(
            f"Task {name} leaves {len(pool)} questions to find neurons on and {len(judge_on)} "
            "others to judge them on; at least 2 each are needed."
        )
    size = len(pool) if examples is None else min(examples, len(pool))
    drawn = designs.draw_examples(len(pool), size, seed=seed)
    return TaskSource(name, finding, [pool[each] for each in drawn], judging, gold, judge_on)


def fresh_questions(finding: Task, judging: Task, progress: Progress) -> list[int]:
    """List the training examples whose questions are not judged on; tell of the others."""
    judged = {judging.example(each).question for each in range(judging.size)}
    fresh = [n for n in range(finding.size) if finding.example(n).question not in judged]
    if dropped := finding.size - len(fresh):
        progress.tell(
            f"{called(finding.name)}: {dropped:,} training examples put questions that are judged "
            "on; they are left out."
        )
    return fresh


def outcomes_of(rows: Sequence[Row]) -> Float64[np.ndarray, " examples"]:
    """List the outcome of each row; NaN where there is none."""
    return np.array([row.outcome for row in rows])


@dataclass
class NeuronSession:
    """A study of neurons at work: its tasks' examples, the rows, and what was found.

    Whatever is found is found once; the model is loaded when something is asked of it.
    """

    study: NeuronStudy
    store: Store
    folder: Path
    progress: Progress
    sources: dict[str, TaskSource]
    kept: dict[str, TaskNeurons] = field(default_factory=dict)

    @cached_property
    def meters(self) -> Meters[NeuronModel]:
        """Meter tasks under sets of neurons.

        Raises UserError if the model is not the one whose neurons lie in the folder.
        """
        engine = NeuronEngine.of(self.study.model.engine())
        self.check_same(engine.loaded.fingerprint)
        return Meters(engine, self.store, intervention=Erasure())

    @property
    def model(self) -> NeuronModel:
        """The model, loaded and proved."""
        return self.meters.engine.loaded

    @cached_property
    def wording(self) -> RequestEncoder:
        """What encodes examples; no weights are read for it."""
        return RequestEncoder(self.study.model.weights().empty, self.study.model.tokenizer())

    def check_same(self, own: str) -> None:
        """Refuse, by a UserError, a model that is not the one whose neurons were located."""
        written = self.folder / NEURONS
        if written.exists() and read_located(self.folder).model.fingerprint != own:
            raise UserError(
                f"The model {self.study.model.name} has changed since neurons were located in "
                f"{self.folder}; run `caploc neurons locate` into a new folder."
            )

    def spans(self, task: str) -> list[Span]:
        return self.sources[task].spans(self.wording)

    def finder(self) -> Finder:
        """Make what finds neurons."""
        study, cache = self.study, score_cache(self.folder)
        batcher = Batcher(self.model.model, study.model.batch_size)
        return Finder(self.model, study.attribution, study.rule, cache, self.progress, batcher)

    def found(self, task: str) -> TaskNeurons:
        if task not in self.kept:
            spans, study = self.spans(task), self.study
            self.kept[task] = self.finder().find(task, spans, study.subsets, least=study.least)
        return self.kept[task]

    def with_neurons(self, tasks: Sequence[str], purpose: str) -> list[str]:
        """List those of some tasks (none: all) that have a neuron; raises UserError if none has."""
        asked = find_tasks(self.study.tasks, tasks)
        found = [task for task in asked if self.found(task).located.any()]
        if not found:
            raise UserError(
                f"No neuron is located for {', '.join(asked)}, so there is none to {purpose}; "
                "locate again with a lower --sigma, a --share, or more examples."
            )
        return found


def find_tasks(known: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Find tasks of a study, by their names, as tables call them, or by a file of pairs; none: all.

    Raises UnknownName for one that the study has not.
    """
    same = {identify(task): task for task in known}
    titles = {title: task for task, title in called_apart(known).items()}
    found = [same.get(identify(name)) or pick(titles, name, "task of the run") for name in asked]
    return list(dict.fromkeys(found or known))


@contextmanager
def open_study(
    study: NeuronStudy,
    folder: Path,
    progress: Progress | None,
    command: str,
    *,
    others: Sequence[str] = (),
) -> Iterator[NeuronSession]:
    """Check a study, load its tasks and `others`, and open its folder.

    A mistake leaves no folder behind.
    """
    study.check()
    sources = {
        name: load_source(study.model, name, study.options, study.examples, study.seed, progress)
        for name in dict.fromkeys((*study.tasks, *others))
    }
    for name in study.tasks:
        deal_subsets(name, sources[name].find_on, study.subsets)
    data = digest_data([source.judging for source in sources.values()])
    trained = [
        each.finding.in_metric() for each in sources.values() if each.finding is not each.gold
    ]
    data |= {f"{name} (training)": digest for name, digest in digest_data(trained).items()}
    with claim(folder, asdict(study) | {"kind": "neurons"}, command, data) as store:
        yield NeuronSession(study, store, folder, progress or Silent(), sources)


@contextmanager
def reopen_study(
    folder: Path,
    progress: Progress | None,
    allowed: Allowed | None,
    *,
    tasks: Sequence[str],
    others: Sequence[str] = (),
) -> Iterator[NeuronSession]:
    """Open the folder of a finished `locate` again; raises UnknownName for `tasks` not of it."""
    study, command = read_study(folder, allowed)
    find_tasks(study.tasks, tasks)
    with open_study(study, folder, progress, command, others=others) as session:
        yield session


def read_study(folder: Path, allowed: Allowed | None = None) -> tuple[NeuronStudy, str]:
    """Read the study of a folder of `caploc neurons locate`, and its command.

    `allowed` says what may be run for it. Raises UserError if it holds none, or one of another
    version, or asks for what is not allowed.
    """
    written = read_file(folder / RUN, RunFile) if (folder / RUN).exists() else RunFile(study={})
    fields = dict(written.study)
    if fields.pop("kind", None) != "neurons":
        raise UserError(
            f"{folder} holds no run of `caploc neurons locate`; name the folder of one."
        )
    try:
        study = restore(NeuronStudy, fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The run in {folder} was written by another version of caploc ({error}); run `caploc "
            "neurons locate` again into a new folder."
        ) from error
    where = f"The run in {folder}"
    (allowed or Allowed()).check(where, study.model, study.options, study.tasks)
    return study, written.command
