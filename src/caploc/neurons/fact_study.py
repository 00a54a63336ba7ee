"""Can single facts be located? Fidelity and reliability of three families of locators.

Knowledge neurons, causal tracing and circuits each say where a fact is. Fidelity asks whether they
say the same of every wording of it, and no more so than of other facts; reliability, whether the
evidence that each method offers is particular to what it located.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from caploc.cache import Cache, digest
from caploc.errors import BadData, BadOption, pick
from caploc.folder import FIDELITY, LEDGER, RELIABILITY, claim
from caploc.models.loading import LoadedModel, load_model
from caploc.models.neurons import NeuronModel, as_neurons
from caploc.naming import OURS
from caploc.neurons.attribution import POINTS
from caploc.neurons.circuits import CircuitLocator, circuit_reliability, others_of
from caploc.neurons.editing import Editor, covariances, edit_reliability
from caploc.neurons.facts import FactAnswers, FactLocator, known_facts, wording_fidelity
from caploc.neurons.knowledge_neurons import (
    SHARE,
    STEPS,
    KnowledgeNeurons,
    Tracer,
    intervention_reliability,
    noise_level,
)
from caploc.neurons.study import Finding, Reported
from caploc.progress import Progress, Silent
from caploc.report.tabulation import fill_tables, ranged
from caploc.stats import JsonRecord
from caploc.tasks.catalog import load_task
from caploc.tasks.facts import (
    Fact,
    read_facts,
    read_rewrites,
    with_rewrites,
    word_facts,
)
from caploc.tasks.task import prompt_of
from caploc.workbench import ModelOptions

PACKAGED: dict[str, Callable[..., tuple[Fact, ...]]] = {"words/facts": word_facts}
METHODS = ("neurons", "tracing", "circuits")
FACTS = 30
CIRCUIT_SHARE = 0.05  # of all edges that a circuit keeps
FEWEST_TEXTS = 20  # for the covariance of a rank-one edit
# Whose prompts serve beside those of the packaged facts, which alone have too few positions.
TEXT_TASKS = "past plural capital antonym category country french next".split()
TEXTS = 60  # of each


@dataclass(frozen=True)
class FactStudy:
    """Which facts of which model, and how they are located.

    `facts` is a file or one of `PACKAGED`; `rewrites` a file of further
    wordings. `count` facts that the model knows are used (None: all).
    A circuit keeps a `share` of the edges, scored in `steps`. A knowledge neuron scores at least
    `neuron_share` of the prompt's largest, by an integral of `neuron_steps` points that lie as
    `neuron_rule` says. `texts` is a file of texts, one a line, for the covariance that a rank-one
    edit needs; without it the facts' prompts serve, and of packaged facts those of word tasks too.
    """

    model: ModelOptions
    facts: str
    rewrites: str | None = None
    methods: tuple[str, ...] = METHODS
    count: int | None = FACTS
    draws: int = 20
    share: float = CIRCUIT_SHARE
    steps: int = 20
    neuron_share: float = SHARE
    neuron_steps: int = STEPS
    neuron_rule: str = "midpoint"
    texts: str | None = None
    seed: int = 0

    def check(self) -> "FactStudy":
        """Refuse every mistake that can be seen before weights are loaded."""
        for method in self.methods:
            pick(dict.fromkeys(METHODS), method, "way to locate facts")
        if self.count is not None and self.count < 2:
            raise BadOption(f"--count must be 2 or more facts; got {self.count}.")
        if self.draws < 5:
            raise BadOption(f"--draws must be 5 or more; got {self.draws}.")
        for name in ("share", "neuron_share"):
            if not 0 < (share := getattr(self, name)) <= 1:
                option = name.replace("_", "-")
                raise BadOption(f"--{option} must be above 0 and at most 1; got {share:g}.")
        if min(self.steps, self.neuron_steps) < 1:
            raise BadOption(
                f"--steps and --neuron-steps must be 1 or more; got {self.steps} and "
                f"{self.neuron_steps}."
            )
        pick(POINTS, self.neuron_rule, "rule for the points of an integral")
        self.model.check()
        facts = self.read()
        if self.texts is not None:
            self.covariance_texts(facts)
        return self

    def read(self) -> tuple[Fact, ...]:
        """Read the facts; raises BadData if the file is not there or a line of it is no fact."""
        if self.facts.startswith(OURS):
            return pick(PACKAGED, self.facts, "set of facts")(seed=self.seed)
        return read_facts(Path(self.facts))

    def covariance_texts(self, facts: Sequence[Fact]) -> list[str]:
        """Find texts for the covariance of neurons; raises BadData if too few can be read."""
        if self.texts is not None:
            try:
                lines = Path(self.texts).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise BadData(f"--texts {self.texts} cannot be read ({error}).") from error
            found = [line for line in lines if line.strip()]
        else:
            prompts = [p for f in facts for p in (f.prompt, *f.rewrites, *f.neighbours)]
            found = [prompt.text + prompt.target for prompt in prompts]
            if self.facts in PACKAGED:
                tasks = [load_task(f"words/{name}") for name in TEXT_TASKS]
                found += [prompt_of(t.requests(n)[0]) for t in tasks for n in t.first(TEXTS)]
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

        Raises BadData if it knows fewer than two.
        """
        facts, counts = self.study.read(), dict[str, Any]()
        if self.study.rewrites is not None:
            texts = read_rewrites(Path(self.study.rewrites))
            facts, filtered = with_rewrites(facts, texts, FactAnswers(self.neurons).right)
            counts["rewrites"] = filtered
        facts, known = known_facts(self.neurons, facts, progress=self.progress)
        if len(facts) < 2:
            raise BadData(
                f"{self.study.model.name} answers {len(facts)} of {known['facts']} facts rightly; "
                "facts that it does not know are nowhere to be located. Give others."
            )
        return facts[: self.study.count], counts | {"known": known}

    @property
    def facts(self) -> tuple[Fact, ...]:
        return self.known[0]

    @cached_property
    def circuits(self) -> CircuitLocator:
        study = self.study
        prompts = [p for fact in study.read() for p in (fact.prompt, *fact.rewrites)]
        return CircuitLocator(
            self.heads, others_of(prompts), study.share, study.steps, seed=study.seed
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

    @cached_property
    def knowledge(self) -> KnowledgeNeurons:
        study = self.study
        return KnowledgeNeurons(
            self.neurons, study.neuron_steps, study.neuron_rule, study.neuron_share
        )

    def recall(self, what: str, measure: Callable[[], JsonRecord]) -> Any:
        asked = asdict(self.study) | {"methods": None, "what": what, "read": self._read}
        asked |= {"model": self.heads.fingerprint}
        if what.startswith("fidelity"):  # which the settings of reliability do not change
            asked |= {"draws": None, "texts": None}
        return self.cache.recall(asked, measure)

    @cached_property
    def _read(self) -> str:
        """A short name of what the study's files say: they may be edited between two calls."""
        facts = {"facts": self.study.read(), "used": self.facts}
        texts = None if self.study.texts is None else self.study.covariance_texts(self.facts)
        listed = {name: [fact.as_dict() for fact in each] for name, each in facts.items()}
        return digest(listed | {"texts": texts})

    def fidelity(self, method: str) -> JsonRecord:
        how: dict[str, Any] = {"seed": self.study.seed, "progress": self.progress}
        if method == "circuits":
            return wording_fidelity(self.circuits, self.paired(), **how)
        locator: FactLocator = self.tracer if method == "tracing" else self.knowledge
        return wording_fidelity(locator, self.facts, **how)

    def reliability(self, method: str) -> JsonRecord:
        """Intervene as the method's own protocol does; for tracing, by edits at every layer."""
        how: dict[str, Any] = {"seed": self.study.seed, "progress": self.progress}
        if method == "neurons":
            return intervention_reliability(
                self.knowledge, self.facts, draws=self.study.draws, **how
            )
        if method == "circuits":
            return circuit_reliability(self.circuits, self.facts, draws=self.study.draws, **how)
        layers = [n for n, site in enumerate(self.neurons.projections) if site is not None]
        texts = self.study.covariance_texts(self.facts)
        editor = Editor(
            self.neurons, covariances(self.neurons, texts, layers, progress=self.progress)
        )
        read = digest({"texts": texts})

        def recall(what: str, measure: Callable[[], Any]) -> Any:
            return self.recall(f"{what} with {read}", measure)

        return edit_reliability(
            self.facts, editor=editor, profiler=self.tracer, recall=recall, **how
        )


def _measure(
    file: str,
    study: FactStudy,
    folder: Path,
    progress: Progress | None = None,
    *,
    command: str = "",
) -> Reported:
    """Measure what a file holds, and show it on a page beside it."""
    study.check()
    page = Path(file).stem
    headline_of, views_of = {
        FIDELITY: (fidelity_headline, fidelity_views),
        RELIABILITY: (reliability_headline, reliability_views),
    }[file]
    # `draws` is of reliability alone, which shares the folder with fidelity
    fields = asdict(study) | {"kind": "facts", "methods": None, "draws": None, "texts": None}
    with claim(folder, fields, command):
        lab = FactLab(study, Cache(folder / LEDGER), progress or Silent())
        if file == RELIABILITY and "tracing" in study.methods:
            study.covariance_texts(lab.facts)  # a mistake shows before anything is measured
        measure = getattr(lab, page)
        found = {
            method: lab.recall(f"{page} {method}", partial(measure, method))
            for method in study.methods
        }
        title = f"{page.capitalize()} of located facts in {study.model.name}"
        results = {"model": study.model.name, "facts": len(lab.facts), **lab.known[1]}
        results["methods"] = found
        shown = fill_tables(page, {"methods": found, **views_of(found)})
        finding = Finding(file, results, title, headline_of(found), shown, page=page)
        return finding.write(folder, command)


# Is every wording located alike? Does what was located, and nothing else, do what is said of it?
measure_fidelity, measure_reliability = partial(_measure, FIDELITY), partial(_measure, RELIABILITY)
Results = Mapping[str, Any]  # by method, or of one method
NAMES = {
    "neurons": "knowledge neurons",
    "tracing": "causal tracing (ROME)",
    "circuits": "knowledge circuits",
}
MEASURES = {
    "largest": "overlap",
    "iou": "IoU",
    "reference": "kept",
    "agreement": "same layer",
    "distance": "layers apart",
    "spearman": "Spearman of profiles",
}


def fidelity_headline(found: Results) -> str:
    """Say the answer in a sentence: each method's margin, and whose is clearly above 0."""
    margins = ", ".join(f"{NAMES[name]} {ranged(margin_of(found[name]))}" for name in found)
    clear = [NAMES[name] for name in found if (margin_of(found[name])["low"] or 0) > 0]
    surely = f"clearly above 0 for {', '.join(clear)}" if clear else "clearly above 0 for none"
    return (
        "Wordings of one fact are located more alike than other facts of its relation by "
        f"{margins}: {surely}"
    )


def margin_of(result: Results) -> Any:
    """Take the margin's interval: of the overlap, or of agreement on the layer."""
    margin = result["margin"]
    return margin["agreement"] if "agreement" in margin else margin["largest"]


def fidelity_views(found: Results) -> dict[str, Any]:
    """List what the page shows: every measure of every method."""
    return {
        "sets": [
            {"title": f"{NAMES[name]}, {title}", "found": each, "measure": measure}
            for name, each in found.items()
            for measure, title in MEASURES.items()
            if measure in each["margin"]
        ]
    }


def reliability_headline(found: Results) -> str:
    """Say the answer in a sentence."""
    parts = []
    if "neurons" in found:
        own = found["neurons"]["suppress"]["fact"]
        parts.append(
            "without its knowledge neurons the probability of a fact's answer changes by "
            f"{ranged(own['located'])} of itself (random {ranged(own['random'])}, another fact's "
            f"{ranged(own['other_fact'])})"
        )
    if "tracing" in found:
        related = ranged(found["tracing"]["correlation"])
        parts.append(f"edits succeed where tracing points with a correlation of {related}")
    if "circuits" in found:
        arms = {arm["name"]: ranged(arm["faithfulness"]) for arm in found["circuits"]["arms"]}
        parts.append(
            f"circuits keep {arms['located']} of the answer, those of other facts "
            f"{arms['same relation']}"
        )
    told = "; ".join(parts)
    return told[:1].upper() + told[1:]


def reliability_views(found: Results) -> dict[str, Any]:
    """List what the page shows beside the files' own: interventions, and one measure for all."""
    watched, gains = [], {}
    if "neurons" in found:
        watched = [
            {
                "title": f"{name}, on {'the fact' if place == 'fact' else place}",
                "found": found["neurons"][name][place],
            }
            for name in ("suppress", "enhance")
            for place in ("fact", "rewrites", "unrelated")
        ]
        gains["knowledge neurons, suppressed"] = found["neurons"]["suppress"]["fact"]["gain"]
    if "tracing" in found:
        edit = {"gain": found["tracing"]["gain"], "pooled_gain": None, "p": None}
        gains["rank-one edit at the traced layer"] = edit
    if "circuits" in found:
        gains |= {f"circuit: {arm}": each for arm, each in found["circuits"]["gains"].items()}
    return {"watched": watched, "gains": gains}
