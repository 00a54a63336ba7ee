"""What the exhibits are made of: finished runs of a model, and scores without any of its heads.

A setup (`real.toml`, `paper.toml`) says which runs these are, which task plays which part, and how
the paper calls them. Rows of scores lie beside the runs, in their store: what was asked once, by a
run or here, is not asked again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from caploc.components import Head, Heads
from caploc.declaration import Allowed, ModelOptions, with_general_task
from caploc.errors import BadOption, pick
from caploc.files import read_toml
from caploc.finished import FinishedRun
from caploc.folder import RESULT, claim
from caploc.measurement import Meters
from caploc.naming import placed
from caploc.options import build
from caploc.progress import Progress
from caploc.recovery import paired_standard_error
from caploc.result import Result
from caploc.studies.file import Place, StudyFile, folder_names
from caploc.study import Study
from caploc.tasks.catalog import TaskOptions
from caploc.tasks.task import Task
from caploc.universal import HeadCost, Intact, judge_universality
from caploc.validation import Comparison, score_both, scored_differences

WIDTH = 1.96  # standard errors on either side of a 95 % interval
LEVEL = 0.05
TRIED = 100  # examples of each task that a candidate for a universal head is tried on alone
GENERAL, KNOWLEDGE = "general", "knowledge"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Benchmark:
    """A column of the paper's tables: a task, and the part it plays.

    Heads are found for it by the studies whose task has its label. `group` is the capability;
    tasks of a `family` (the group, if absent) are twins. `relative`: shown as a share of the intact
    score. `choice`: a multiple-choice question. `differs` says in what it is not the paper's.
    """

    label: str
    task: str
    group: str
    family: str = ""
    relative: bool = False
    choice: bool = False
    differs: str = ""

    @property
    def kin(self) -> str:
        return self.family or self.group


@dataclass(frozen=True)
class Setup:
    """Which studies stand behind the exhibits, and which benchmarks they show.

    `studies` are all of the file, by their folders; `models` and `methods` go by the labels there.
    """

    about: str
    main: str  # the search whose heads the exhibits are about
    lead: str  # the model that some exhibits are about
    out: Path
    studies: Mapping[str, tuple[Place, Study]]
    methods: tuple[str, ...]
    models: Mapping[str, ModelOptions]
    benchmarks: tuple[Benchmark, ...]
    top: int = 5
    most: int = 10  # heads of the longest curve
    limit: int | None = None  # examples of each score

    @classmethod
    def read(cls, name: str, allowed: Allowed) -> "Setup":
        """Read a setup that lies here, by its name, or a TOML file of one's own."""
        known = {path.stem: path for path in FOLDER.glob("*.toml") if ".studies" not in path.name}
        path = known.get(name, Path(name))
        if not path.is_file():
            raise BadOption(f"There is no setup {name!r}; name {', '.join(known)}, or a TOML file.")
        content = read_toml(path)
        benchmarks = tuple(Benchmark(**each) for each in content.pop("benchmark"))
        place = path.parent / content.pop("studies")
        file, may = StudyFile.model_validate(read_toml(place)), {"allow_code": allowed.code}
        built = [
            (each, build(Study, with_general_task(said) | may, place.parent))
            for each, said in file.places()
        ]
        names = folder_names([each for each, _ in built])
        return cls(
            **content,
            out=place.parent / file.out if file.out else Path("runs") / place.stem,
            studies=dict(zip(names, built, strict=True)),
            methods=tuple(file.labels("methods")),
            models={each.models: study.model for each, study in built},
            benchmarks=benchmarks,
        )

    def narrowed(self, models: Sequence[str], only: Sequence[str], limit: int | None) -> "Setup":
        """Keep some models, each a label or LABEL=FOLDER, and some benchmarks; another limit."""
        setup = self if limit is None else replace(self, limit=limit)
        if models:
            chosen: dict[str, ModelOptions] = {}
            for label, _, place in (text.partition("=") for text in models):
                named = pick(self.models, label, "model")
                chosen[label] = replace(named, name=placed(place)) if place else named
            lead = self.lead if self.lead in chosen else next(iter(chosen))
            setup = replace(setup, models=chosen, lead=lead)
        if only:
            table = {each.label: each for each in self.benchmarks}
            kept = {pick(table, label, "benchmark").label for label in only}
            some = tuple(each for each in self.benchmarks if each.label in kept)
            setup = replace(setup, benchmarks=some)
        return setup

    def of_group(self, *groups: str) -> list[Benchmark]:
        return [each for each in self.benchmarks if each.group in groups]

    @property
    def general(self) -> list[Benchmark]:
        return self.of_group(GENERAL)

    def wanted(self, methods: Sequence[str]) -> dict[str, Study]:
        """Choose the studies of these models, benchmarks and methods, by their folders."""
        labels = {each.label for each in self.benchmarks}
        return {
            name: replace(study, model=self.models[place.models])
            for name, (place, study) in self.studies.items()
            if place.models in self.models and place.methods in methods and place.tasks in labels
        }


@dataclass(frozen=True)
class Scored:
    """A score intact and with heads knocked out, on the same examples; NaN is not known.

    Errors are over examples, that of the drop of paired differences. `chance` is that of guessing.
    """

    intact: float
    intact_stderr: float
    score: float
    stderr: float
    drop: float
    drop_stderr: float
    chance: float = 0.0

    @classmethod
    def of(cls, both: Comparison) -> "Scored":
        """Take the scores and their paired difference, of which equal ones are no certainty."""
        lost, binary = scored_differences(both.intact_rows, both.knocked_out_rows)
        error = paired_standard_error(lost, binary=binary) if lost.size > 1 else nan
        ends = [(each.score, each.stderr) for each in (both.intact, both.knocked_out)]
        intact, score = (tuple(nan if x is None else x for x in each) for each in ends)
        return cls(*intact, *score, intact[0] - score[0], error, both.task.metric.chance)

    def relative(self) -> "Scored":
        """Return it as shares of the intact score; all NaN where that is 0 or not known.

        The error of the share `r` that is left, by the delta method: `var r = (r² var I + var K - 2
        r cov(I, K)) / I²`, with I the intact score, K what is left, and `cov(I, K) = (var I + var K
        - var(I - K)) / 2`.
        """
        left = self.score / self.intact if self.intact else nan
        if isnan(left):
            return Scored(*[nan] * 6)
        intact, cut, change = self.intact_stderr, self.stderr, self.drop_stderr
        covariance = (intact**2 + cut**2 - change**2) / 2
        covariance = min(max(covariance, -intact * cut), intact * cut)  # rounded errors may not fit
        variance = left**2 * intact**2 + cut**2 - 2 * left * covariance
        error = max(variance, 0.0) ** 0.5 / abs(self.intact)
        return Scored(1.0, 0.0, left, error, 1 - left, error)


def mean_of(parts: Sequence[Scored]) -> Scored:
    """Average scores of tasks that share no example: their variances add up."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Scored(*[nan] * 6)
    table = np.array([astuple(each) for each in parts])
    intact, _, score, _, drop, _, chance = table.mean(axis=0).tolist()
    errors = (np.sqrt((table**2).sum(axis=0)) / len(table)).tolist()
    return Scored(intact, errors[1], score, errors[3], drop, errors[5], chance)


@dataclass
class Measured:
    """A model's finished runs, by task and method, and scores with any heads knocked out.

    `notes` is what an exhibit has to say below; whoever fills one empties it first.
    """

    setup: Setup
    label: str
    runs: Mapping[tuple[str, str], Result]  # by the labels of benchmark and method
    bench: Meters[Any]
    options: TaskOptions
    progress: Progress
    known: dict[Any, Comparison] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        return self.label == self.setup.lead

    @property
    def grid(self) -> Heads:
        return self.bench.engine.loaded.grid

    def run(self, benchmark: Benchmark, label: str = "") -> Result | None:
        """Return the finished run of a benchmark by a method, the main one if none is named."""
        return self.runs.get((benchmark.label, label or self.setup.main))

    @property
    def localized(self) -> list[Benchmark]:
        """The benchmarks that heads were looked for."""
        return [each for each in self.setup.benchmarks if self.run(each) is not None]

    @property
    def capabilities(self) -> list[Benchmark]:
        return [each for each in self.localized if each.group != KNOWLEDGE]

    @property
    def subjects(self) -> list[Benchmark]:
        return [each for each in self.localized if each.group == KNOWLEDGE]

    def compare(
        self, benchmark: Benchmark, heads: Sequence[Head], limit: int | None = None
    ) -> Comparison:
        """Score a benchmark intact and with heads knocked out, on its first examples."""
        limits = [each for each in (limit, self.setup.limit) if each is not None]
        most = min(limits, default=None)
        key = benchmark.task, frozenset(heads), most
        if key not in self.known:
            task = self.task(benchmark)
            mask = self.grid.mask(heads)
            meter = self.bench.meter(task)
            self.known[key] = score_both(meter, mask, task.first(most), self.progress)
        return self.known[key]

    def task(self, benchmark: Benchmark) -> Task:
        """Load a benchmark's task; raises BadOption if its metric is better when lower."""
        if benchmark.task not in self.tasks:
            (task,) = self.setup.models[self.label].tasks([benchmark.task], self.options)
            if not task.metric.higher_is_better:
                raise BadOption(
                    f"{task.metric.name} of {task.name} is better when lower; choose another one."
                )
            self.tasks[benchmark.task] = task
        return self.tasks[benchmark.task]

    def score(
        self, benchmark: Benchmark, heads: Sequence[Head], limit: int | None = None
    ) -> Scored:
        """Score a benchmark as tables show it: some as a share of the intact score."""
        found = Scored.of(self.compare(benchmark, heads, limit))
        return found.relative() if benchmark.relative and limit is None else found

    def mean(self, benchmarks: Sequence[Benchmark], heads: Sequence[Head]) -> Scored:
        """Average the scores of benchmarks."""
        return mean_of([self.score(each, heads) for each in benchmarks])

    def ranking(self, benchmark: Benchmark, label: str = "") -> list[Head]:
        """Return the heads that a search found for a benchmark, the most needed first.

        Those that the check confirms come first, then others that were found, then others of a
        negative effect.
        """
        result = self.run(benchmark, label)
        if result is None:
            return []
        checked = result.validation
        first = [*result.top, *checked.costly, *checked.unconfirmed]
        return [Head.parse(name) for name in dict.fromkeys([*first, *result.ranking()])]

    def heads(self, benchmark: Benchmark, label: str = "", count: int = 0) -> list[Head]:
        """Return the first heads that a search found for a benchmark, universal ones left out.

        As in the paper there is one search, and universal heads leave its ranking afterwards.
        """
        left = [head for head in self.ranking(benchmark, label) if head not in self.universal]
        wanted = count or self.setup.top
        if len(left) < wanted:
            self.notes.append(
                f"{label or self.setup.main} found {len(left)} of {wanted} heads for "
                f"{benchmark.label} on {self.label}; no other head is added."
            )
        return left[:wanted]

    @cached_property
    def universal(self) -> list[Head]:
        """Heads that several families of tasks need, tried alone on every benchmark.

        With the universal heads out of the rankings others come first: trials go on until no new
        candidate turns up.
        """
        tried = self.candidates([])
        while True:
            found = self.judged(tried)
            new = [head for head in self.candidates(found) if head not in tried]
            if not new:
                return found
            tried += new

    def candidates(self, struck: Sequence[Head]) -> list[Head]:
        """List heads among the first found for two families or more, the most often first."""
        kin: dict[Head, set[str]] = {}
        for benchmark in self.localized:
            left = [head for head in self.ranking(benchmark) if head not in struck]
            for head in left[: self.setup.top]:
                kin.setdefault(head, set()).add(benchmark.kin)
        often = Counter({head: len(each) for head, each in kin.items() if len(each) > 1})
        return [head for head, _ in often.most_common()]

    def judged(self, heads: Sequence[Head]) -> list[Head]:
        """Try heads alone on every benchmark; return those that caploc calls universal."""
        costs: dict[str, dict[Head, HeadCost]] = {}
        intact: dict[str, Intact] = {}
        for benchmark in self.setup.benchmarks:
            for head in heads:
                found = self.score(benchmark, [head], TRIED)
                if not isnan(found.drop + found.drop_stderr):
                    error = 0.0 if isnan(found.intact_stderr) else found.intact_stderr
                    intact[benchmark.label] = Intact(found.intact, error, found.chance)
                    cost = HeadCost(-found.drop, found.drop_stderr)
                    costs.setdefault(benchmark.label, {})[head] = cost
        families = {each.label: each.kin for each in self.setup.benchmarks}
        return self.grid.named_in(judge_universality(costs, intact, families).universal)


@contextmanager
def open_measured(
    setup: Setup, label: str, folder: Path, progress: Progress, allowed: Allowed
) -> Iterator[Measured]:
    """Load a model of the runs in a folder, to score it with any heads knocked out."""
    model = setup.models[label]
    runs = {
        (place.tasks, place.methods): FinishedRun.read(folder / name, allowed).result
        for name, (place, _) in setup.studies.items()
        if place.models == label and (folder / name / RESULT).is_file()
    }
    if not runs:
        raise BadOption(f"{folder} holds no finished run of {label}; let its studies run first.")
    scores = folder / f"scores-{label}"
    with (
        claim(scores, {"model": model.name, "scores": setup.about}, "") as store,
        model.answering() as engine,
    ):
        options = TaskOptions(allow_code=allowed.code)
        yield Measured(setup, label, runs, Meters(engine, store), options, progress)
