"""Can single facts be located? Fidelity and reliability of three families of locators.

Knowledge neurons, causal tracing and circuits each say where a fact is. Fidelity asks whether they
say the same of every wording of it, and no more so than of other facts; reliability, whether the
evidence that each method offers is particular to what it located.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from caploc.errors import BadData, BadOption
from caploc.exhibits.exhibit import Exhibit
from caploc.exhibits.page import write_exhibits
from caploc.files import read_text
from caploc.folder import FIDELITY, LEDGER, RELIABILITY, claim, versions, write_json
from caploc.ledger import Ledger, digest
from caploc.lookup import pick
from caploc.models.loading import LoadedModel, load_model
from caploc.neurons.circuits.locator import CircuitLocator, Keeping, circuit_locator
from caploc.neurons.circuits.pairs import demo_counterparts, others_of
from caploc.neurons.circuits.reliability import circuit_reliability
from caploc.neurons.exhibits.facts import (
    fidelity_headline,
    reliability_headline,
    shown_fidelity,
    shown_reliability,
)
from caploc.neurons.facts.covariance import covariances
from caploc.neurons.facts.demo import demo_facts, demo_texts
from caploc.neurons.facts.edit_reliability import edit_reliability
from caploc.neurons.facts.editing import Editor
from caploc.neurons.facts.facts import Fact
from caploc.neurons.facts.fidelity import fidelity
from caploc.neurons.facts.knowledge_neurons import KnowledgeNeurons
from caploc.neurons.facts.known import Answers, known_facts
from caploc.neurons.facts.layer_fidelity import layer_fidelity
from caploc.neurons.facts.reading import LONGEST, read_facts
from caploc.neurons.facts.reliability import locate_facts, reliability
from caploc.neurons.facts.rewrites import read_rewrites, with_rewrites
from caploc.neurons.facts.tracing import Tracer, noise_level
from caploc.neurons.loading import NeuronModel, as_neurons
from caploc.progress import Progress, Silent
from caploc.workbench import ModelOptions

FORMS = ("lines", "counterfact", "zsre")
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
        """Refuse every mistake that can be seen before weights are loaded.

        Raises:
            UserError: in one sentence.
        """
        for method in self.methods:
            pick(dict.fromkeys(METHODS), method, "way to locate facts")
        pick(dict.fromkeys(FORMS), self.form, "form of facts")
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
        """The facts of the file.

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
        """Texts for the covariance of neurons.

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
    ledger: Ledger
    progress: Progress

    @cached_property
    def heads(self) -> LoadedModel:
        """The model as its heads."""
        return load_model(**self.study.model.loading())

    @cached_property
    def neurons(self) -> NeuronModel:
        """The model as its neurons."""
        return as_neurons(self.heads)

    @cached_property
    def known(self) -> tuple[tuple[Fact, ...], dict[str, Any]]:
        """The facts that the model knows, and how many there were.

        Raises:
            BadData: if it knows fewer than two.
        """
        facts, told = self.study.read(), dict[str, Any]()
        if self.study.rewrites is not None:
            texts = read_rewrites(Path(self.study.rewrites))
            facts, filtered = with_rewrites(facts, texts, Answers(self.neurons).right)
            told["rewrites"] = filtered.as_dict()
        facts, known = known_facts(self.neurons, facts, rewrites=True, progress=self.progress)
        if len(facts) < 2:
            raise BadData(
                f"{self.study.model.name} answers {len(facts)} of {known.facts} facts rightly; "
                "facts that it does not know are nowhere to be located. Give others."
            )
        return facts[: self.study.count], told | {"known": known.as_dict()}

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts that are located."""
        return self.known[0]

    @cached_property
    def circuits(self) -> CircuitLocator:
        """The locator of circuits."""
        prompts = [p for fact in self.study.read() for p in (fact.prompt, *fact.rewrites)]
        counterparts = demo_counterparts if self.study.facts in DEMO else others_of(prompts)
        keeping = Keeping(share=self.study.share, steps=self.study.steps)
        return circuit_locator(self.heads, counterparts, keeping=keeping, seed=self.study.seed)

    @cached_property
    def tracer(self) -> Tracer:
        """The locator of layers."""
        noise = noise_level(self.neurons, [fact.prompt for fact in self.facts])
        return Tracer(self.neurons, noise, seed=self.study.seed)

    def paired(self) -> tuple[Fact, ...]:
        """The facts whose prompt, and those of their rewrites that, can be corrupted."""
        found = []
        for fact in self.facts:
            if self.circuits.pair(fact.prompt) is None:
                continue
            rewrites = tuple(r for r in fact.rewrites if self.circuits.pair(r) is not None)
            found.append(Fact(fact.name, fact.relation, fact.prompt, rewrites, fact.neighbours))
        return tuple(found)

    def recall(self, what: str, measure: Callable[[], Any]) -> Any:
        """What was measured before, or is now."""
        asked = asdict(self.study) | {"methods": None, "what": what, "read": self.read}
        return self.ledger.recall(asked | {"model": self.heads.fingerprint}, measure)

    @cached_property
    def read(self) -> str:
        """A short name of what the study's files say: they may be edited between two calls."""
        told = {"facts": self.study.read(), "used": self.facts}
        texts = None if self.study.texts is None else self.study.covariance_texts(self.facts)
        listed = {name: [fact.as_dict() for fact in facts] for name, facts in told.items()}
        return digest(listed | {"texts": texts})

    def fidelity(self) -> dict[str, Any]:
        """Each method's fidelity."""
        seed, progress = self.study.seed, self.progress
        ways: dict[str, Callable[[], Any]] = {
            "neurons": lambda: fidelity(
                KnowledgeNeurons(self.neurons), self.facts, seed=seed, progress=progress
            ).as_dict(),
            "tracing": lambda: layer_fidelity(
                self.tracer, self.facts, seed=seed, progress=progress
            ).as_dict(),
            "circuits": lambda: fidelity(
                self.circuits, self.paired(), seed=seed, progress=progress
            ).as_dict(),
        }
        return {name: self.recall(f"fidelity {name}", ways[name]) for name in self.study.methods}

    def reliability(self) -> dict[str, Any]:
        """Each method's reliability.

        Raises:
            BadData: if there are too few texts for an edit; told before anything is measured.
        """
        if "tracing" in self.study.methods:
            self.study.covariance_texts(self.facts)
        ways = {
            "neurons": self.suppressed,
            "tracing": self.edited,
            "circuits": lambda: circuit_reliability(
                self.circuits,
                self.facts,
                draws=self.study.draws,
                seed=self.study.seed,
                progress=self.progress,
            ).as_dict(),
        }
        return {name: self.recall(f"reliability {name}", ways[name]) for name in self.study.methods}

    def suppressed(self) -> dict[str, Any]:
        """Knowledge neurons at zero and doubled."""
        located = locate_facts(KnowledgeNeurons(self.neurons), self.facts, progress=self.progress)
        return reliability(
            self.neurons,
            self.facts,
            located,
            draws=self.study.draws,
            seed=self.study.seed,
            progress=self.progress,
        ).as_dict()

    def edited(self) -> dict[str, Any]:
        """Rank-one edits at every layer."""
        layers = [n for n, site in enumerate(self.neurons.projections) if site is not None]
        texts = self.study.covariance_texts(self.facts)
        moments = covariances(self.neurons, texts, layers, progress=self.progress)
        return edit_reliability(
            self.neurons,
            self.facts,
            editor=Editor(self.neurons, moments),
            profiler=self.tracer,
            seed=self.study.seed,
            progress=self.progress,
        ).as_dict()


@contextmanager
def opened(
    study: FactStudy, folder: Path, progress: Progress | None, command: str
) -> Iterator[FactLab]:
    """A study's folder, claimed, and what is needed to work on it.

    Raises:
        FolderTaken: if it holds another study, or another process has it open.
    """
    study.check()
    fields = asdict(study) | {"kind": "facts", "methods": None}
    with claim(folder, fields, command):
        yield FactLab(study, Ledger(folder / LEDGER), progress or Silent())


def measure_fidelity(
    study: FactStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Whether every wording of a fact is located alike; writes `fidelity.json`.

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    with opened(study, folder, progress, command) as lab:
        found = lab.fidelity()
        result = written(lab, found, command)
        write_json(folder / FIDELITY, result)
    exhibits = shown_fidelity(found)
    title = f"Fidelity of located facts in {study.model.name}"
    write_exhibits(folder / "fidelity", title, fidelity_headline(found), [], exhibits, command)
    return result, exhibits


def measure_reliability(
    study: FactStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Whether what was located, and not anything else, does what each method says of it.

    Writes `reliability.json`.

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; what was measured is kept.
    """
    with opened(study, folder, progress, command) as lab:
        found = lab.reliability()
        result = written(lab, found, command)
        write_json(folder / RELIABILITY, result)
    exhibits = shown_reliability(found)
    title = f"Reliability of located facts in {study.model.name}"
    write_exhibits(
        folder / "reliability", title, reliability_headline(found), [], exhibits, command
    )
    return result, exhibits


def written(lab: FactLab, found: dict[str, Any], command: str) -> dict[str, Any]:
    """What the files hold."""
    return {
        "schema": 1,
        "model": lab.study.model.name,
        "facts": len(lab.facts),
        **lab.known[1],
        "methods": found,
        "command": command,
        "versions": versions(),
    }
