"""Can single facts be located? Fidelity and reliability of three families of locators.

Knowledge neurons, causal tracing and circuits each say where a fact is. Fidelity asks whether they
say the same of every wording of it, and no more so than of other facts; reliability, whether the
evidence that each method offers is particular to what it located.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from caploc.cache import Cache, digest
from caploc.errors import BadData, BadOption
from caploc.files import read_text
from caploc.folder import FIDELITY, LEDGER, RELIABILITY, claim
from caploc.lookup import pick
from caploc.models.loading import LoadedModel, load_model
from caploc.neurons import fact_pages as pages
from caploc.neurons.circuits import CircuitLocator, circuit_reliability, others_of
from caploc.neurons.cutting import NeuronModel, as_neurons
from caploc.neurons.demo_facts import demo_counterparts, demo_facts, demo_texts
from caploc.neurons.editing import Editor, covariances, edit_reliability
from caploc.neurons.facts import (
    FORMS,
    LONGEST,
    Fact,
    FactAnswers,
    known_facts,
    read_facts,
    read_rewrites,
    with_rewrites,
)
from caploc.neurons.fidelity import layer_fidelity, wording_fidelity
from caploc.neurons.knowledge_neurons import (
    KnowledgeNeurons,
    intervention_reliability,
    locate_facts,
)
from caploc.neurons.study import Finding, Reported, run_command
from caploc.neurons.tracing import Tracer, noise_level
from caploc.progress import Progress, Silent
from caploc.stats.intervals import JsonRecord
from caploc.workbench import ModelOptions

DEMO = {"demo/quiz": "quiz", "demo/statement": "statement"}
METHODS = ("neurons", "tracing", "circuits")
FACTS = 30
CIRCUIT_SHARE = 0.05  # of all edges that a circuit keeps
FEWEST_TEXTS = 20  # for the covariance of a rank-one edit


@dataclass(frozen=True)
class FactStudy:
    """Which facts of which model, and how they are located.

    `facts` is a file of the `form` named, or the demo model's `demo/quiz` or `demo/statement`;
    `rewrites` a file of further wordings. `count` facts that the model knows are used (None: all).
    A circuit keeps a `share` of the edges. `texts` is a file of texts, one a line, for the
    covariance that a rank-one edit needs; without it the facts' own prompts serve.
    """

    model: ModelOptions
    facts: str
    form: str = "lines"
    rewrites: str | None = None
    methods: tuple[str, ...] = METHODS
    count: int | None = FACTS
    draws: int = 20
    share: float = CIRCUIT_SHARE
    steps: int = 20
    texts: str | None = None
    seed: int = 0

    def check(self) -> "FactStudy":
        """Refuse every mistake that can be seen before weights are loaded."""
        for method in self.methods:
            pick(dict.fromkeys(METHODS), method, "way to locate facts")
        pick(FORMS, self.form, "form of facts")
        if self.count is not None and self.count < 2:
            raise BadOption(f"--count must be 2 or more facts; got {self.count}.")
        if self.draws < 5:
            raise BadOption(f"--draws must be 5 or more; got {self.draws}.")
        if not 0 < self.share <= 1:
            raise BadOption(f"--share must be above 0 and at most 1; got {self.share:g}.")
        if self.steps < 1:
            raise BadOption(f"--steps must be 1 or more; got {self.steps}.")
        self.model.check()
        facts = self.read()
        if self.texts is not None:
            self.covariance_texts(facts)
        return self

    def read(self) -> tuple[Fact, ...]:
        """Read the facts.

        Raises:
            BadData: if the file is not there or a line of it is no fact.
        """
        if self.facts in DEMO:
            return demo_facts(DEMO[self.facts], seed=self.seed)
        if self.facts.startswith("demo/"):
            raise BadOption(
                f"There are no facts {self.facts!r}; the demo model's are {', '.join(DEMO)}."
            )
        return read_facts(Path(self.facts), self.form)

    def covariance_texts(self, facts: Sequence[Fact]) -> list[str]:
        """Find texts for the covariance of neurons.

        Raises:
            BadData: if the file cannot be read or there are too few.
        """
        if self.texts is not None:
            try:
                lines = read_text(self.texts, LONGEST, follow=True).splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise BadData(f"--texts {self.texts} cannot be read ({error}).") from error
            found = [line for line in lines if line.strip()]
        elif self.facts in DEMO:
            return demo_texts(seed=self.seed)
        else:
            prompts = [p for f in facts for p in (f.prompt, *f.rewrites, *f.neighbours)]
            found = [prompt.text + prompt.target for prompt in prompts]
        if len(found) < FEWEST_TEXTS:
            raise BadData(
                f"A rank-one edit needs {FEWEST_TEXTS} texts or more for the covariance of "
                f"neurons; there are {len(found)}. Name a file with --texts."
            )
        return found


@dataclass
class FactLab:
    """The model and the facts it knows, and what was measured before."""

    study: FactStudy
    cache: Cache
    progress: Progress

    @cached_property
    def heads(self) -> LoadedModel:
        return load_model(**self.study.model.loading())

    @cached_property
    def neurons(self) -> NeuronModel:
        return as_neurons(self.heads)

    @cached_property
    def known(self) -> tuple[tuple[Fact, ...], dict[str, Any]]:
        """The facts that the model knows, and how many there were.

        Raises:
            BadData: if it knows fewer than two.
        """
        facts, counts = self.study.read(), dict[str, Any]()
        if self.study.rewrites is not None:
            texts = read_rewrites(Path(self.study.rewrites))
            facts, filtered = with_rewrites(facts, texts, FactAnswers(self.neurons).right)
            counts["rewrites"] = filtered.as_dict()
        facts, known = known_facts(self.neurons, facts, rewrites=True, progress=self.progress)
        if len(facts) < 2:
            raise BadData(
                f"{self.study.model.name} answers {len(facts)} of {known.facts} facts rightly; "
                "facts that it does not know are nowhere to be located. Give others."
            )
        return facts[: self.study.count], counts | {"known": known.as_dict()}

    @property
    def facts(self) -> tuple[Fact, ...]:
        return self.known[0]

    @cached_property
    def circuits(self) -> CircuitLocator:
        study = self.study
        prompts = [p for fact in study.read() for p in (fact.prompt, *fact.rewrites)]
        counterparts = demo_counterparts if study.facts in DEMO else others_of(prompts)
        return CircuitLocator.of(
            self.heads, counterparts, share=study.share, steps=study.steps, seed=study.seed
        )

    @cached_property
    def tracer(self) -> Tracer:
        noise = noise_level(self.neurons, [fact.prompt for fact in self.facts])
        return Tracer(self.neurons, noise, seed=self.study.seed)

    def paired(self) -> tuple[Fact, ...]:
        """List the facts whose prompt, and those of their rewrites that, can be corrupted."""
        pair = self.circuits.pair
        return tuple(
            replace(fact, rewrites=tuple(r for r in fact.rewrites if pair(r) is not None))
            for fact in self.facts
            if pair(fact.prompt) is not None
        )

    def recall(self, what: str, measure: Callable[[], JsonRecord]) -> Any:
        """Recall what was measured before, or measure it."""
        asked = asdict(self.study) | {"methods": None, "what": what, "read": self._read}
        asked |= {"model": self.heads.fingerprint}
        return self.cache.recall(asked, measure)

    @cached_property
    def _read(self) -> str:
        """A short name of what the study's files say: they may be edited between two calls."""
        facts = {"facts": self.study.read(), "used": self.facts}
        texts = None if self.study.texts is None else self.study.covariance_texts(self.facts)
        listed = {name: [fact.as_dict() for fact in each] for name, each in facts.items()}
        return digest(listed | {"texts": texts})

    def fidelity(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"seed": self.study.seed, "progress": self.progress}
        ways: dict[str, Callable[[], JsonRecord]] = {
            "neurons": lambda: wording_fidelity(
                KnowledgeNeurons(self.neurons), self.facts, **asked
            ),
            "tracing": lambda: layer_fidelity(self.tracer, self.facts, **asked),
            "circuits": lambda: wording_fidelity(self.circuits, self.paired(), **asked),
        }
        return {name: self.recall(f"fidelity {name}", ways[name]) for name in self.study.methods}

    def reliability(self) -> dict[str, Any]:
        """Measure each method's reliability."""
        study = self.study
        if "tracing" in study.methods:
            study.covariance_texts(self.facts)
        asked: dict[str, Any] = {"seed": study.seed, "progress": self.progress}
        drawn = asked | {"draws": study.draws}
        ways: dict[str, Callable[[], JsonRecord]] = {
            "neurons": lambda: self.suppress(**drawn),
            "tracing": lambda: self.edit(**asked),
            "circuits": lambda: circuit_reliability(self.circuits, self.facts, **drawn),
        }
        return {name: self.recall(f"reliability {name}", ways[name]) for name in study.methods}

    def suppress(self, **asked: Any) -> JsonRecord:
        """Set knowledge neurons to zero and double them."""
        located = locate_facts(KnowledgeNeurons(self.neurons), self.facts, progress=self.progress)
        return intervention_reliability(self.neurons, self.facts, located, **asked)

    def edit(self, **asked: Any) -> JsonRecord:
        """Make rank-one edits at every layer."""
        layers = [n for n, site in enumerate(self.neurons.projections) if site is not None]
        texts = self.study.covariance_texts(self.facts)
        editor = Editor(
            self.neurons, covariances(self.neurons, texts, layers, progress=self.progress)
        )
        return edit_reliability(
            self.neurons, self.facts, editor=editor, profiler=self.tracer, **asked
        )


@contextmanager
def open_facts(
    study: FactStudy, folder: Path, progress: Progress | None, command: str
) -> Iterator[FactLab]:
    """Claim a study's folder, and open what is needed to work on it."""
    study.check()
    fields = asdict(study) | {"kind": "facts", "methods": None}
    with claim(folder, fields, command):
        yield FactLab(study, Cache(folder / LEDGER), progress or Silent())


def measure_fidelity(
    study: FactStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> Reported:
    """Ask whether every wording of a fact is located alike; writes `fidelity.json`."""
    return _measure(FIDELITY, study, folder, progress, command)


def measure_reliability(
    study: FactStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> Reported:
    """Ask whether what was located, and not anything else, does what each method says of it.

    Writes `reliability.json`.
    """
    return _measure(RELIABILITY, study, folder, progress, command)


def _measure(
    file: str, study: FactStudy, folder: Path, progress: Progress | None, command: str
) -> Reported:
    """Measure what a file holds, and show it on a page beside it."""
    page = Path(file).stem
    headline_of, exhibits_of = {
        FIDELITY: (pages.fidelity_headline, pages.fidelity_exhibits),
        RELIABILITY: (pages.reliability_headline, pages.reliability_exhibits),
    }[file]

    def find(lab: FactLab) -> Finding:
        found = lab.fidelity() if file == FIDELITY else lab.reliability()
        title = f"{page.capitalize()} of located facts in {study.model.name}"
        facts = {"facts": len(lab.facts), **lab.known[1]}
        results = {"model": study.model.name, **facts, "methods": found}
        return Finding(file, results, title, headline_of(found), exhibits_of(found), page=page)

    return run_command(open_facts(study, folder, progress, command), find, folder, command)
