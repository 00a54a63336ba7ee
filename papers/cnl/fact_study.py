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
from caploc.errors import BadData, pick
from caploc.folder import LEDGER, claim
from caploc.models.loading import LoadedModel, load_model
from caploc.naming import OURS
from caploc.neurons.model import NeuronModel, as_neurons
from caploc.neurons.study import write_result
from caploc.progress import Progress, Silent
from caploc.stats import JsonRecord
from caploc.tasks.catalog import load_task
from caploc.tasks.task import prompt_of
from caploc.workbench import ModelOptions
from papers.cnl.circuits import CircuitLocator, circuit_reliability, others_of
from papers.cnl.editing import Editor, covariances, edit_reliability
from papers.cnl.facts import (
    Fact,
    read_facts,
    read_rewrites,
    with_rewrites,
    word_facts,
)
from papers.cnl.fidelity import ARMS, FactAnswers, FactLocator, known_facts, wording_fidelity
from papers.cnl.knowledge_neurons import (
    SHARE,
    STEPS,
    KnowledgeNeurons,
    Tracer,
    intervention_reliability,
    noise_level,
)
from papers.exhibits import Exhibit, Value, dots, interval, write_all

PACKAGED: dict[str, Callable[..., tuple[Fact, ...]]] = {"words/facts": word_facts}
METHODS = ("neurons", "tracing", "circuits")
FIDELITY, RELIABILITY = "fidelity", "reliability"
NEURON_ARMS = ("located", "random", "other_fact")
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

    def check(self) -> None:
        """Refuse, before weights are loaded, unknown methods, and files that cannot be read."""
        for method in self.methods:
            pick(dict.fromkeys(METHODS), method, "way to locate facts")
        self.model.check()
        facts = self.read()
        if self.texts is not None:
            self.covariance_texts(facts)

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


def measure_facts(
    question: str,
    study: FactStudy,
    folder: Path,
    progress: Progress | None = None,
    command: str = "",
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Measure `fidelity` (is every wording located alike?) or `reliability` of each method.

    Reliability asks whether what was located, and nothing else, does what is said of it. Writes a
    JSON file of that name, and tables in a folder of that name.
    """
    study.check()
    # `draws` and `texts` are of reliability alone, which shares the folder with fidelity
    fields = asdict(study) | {"kind": "facts", "methods": None, "draws": None, "texts": None}
    with claim(folder, fields, command):
        lab = FactLab(study, Cache(folder / LEDGER), progress or Silent())
        if question == RELIABILITY and "tracing" in study.methods:
            study.covariance_texts(lab.facts)  # a mistake shows before anything is measured
        measure = getattr(lab, question)
        found = {
            method: lab.recall(f"{question} {method}", partial(measure, method))
            for method in study.methods
        }
        results = {"model": study.model.name, "facts": len(lab.facts), **lab.known[1]}
        result = write_result(folder / f"{question}.json", results | {"methods": found}, command)
        shown = show_fidelity(found) if question == FIDELITY else show_reliability(found)
        title = f"{question.capitalize()} of located facts in {study.model.name}"
        write_all(shown, folder / question, title, command)
    return result, shown


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


def margin_of(result: Results) -> Any:
    """Take the margin's interval: of the overlap, or of agreement on the layer."""
    margin = result["margin"]
    return margin["agreement"] if "agreement" in margin else margin["largest"]


def show_fidelity(found: Results) -> list[Exhibit]:
    """Show every measure of every method, by what a wording is held against."""
    rows = [
        {
            "locator, measure": f"{NAMES[name]}, {title}",
            "facts": each["facts"],
            "mean size": Value(each["size"], digits=1),
        }
        | {arm.replace("_", " "): interval(each["arms"][arm][measure]) for arm in ARMS}
        | {"margin": interval(each["margin"][measure])}
        for name, each in found.items()
        for measure, title in MEASURES.items()
        if measure in each["margin"]
    ]
    notes = [
        "Overlap is by the larger set; kept, the share of the prompt's set that the rewrite's has "
        "too. Of tracing: do both peak in one layer, how many layers lie between the peaks, and "
        "how alike are the profiles (Spearman)? Random: sets as large in every layer, or the "
        "layers of a profile dealt anew. The margin is rewrites less other facts of the relation: "
        "only above 0 (of layers apart, below) is there anything of the single fact. Intervals are "
        "95 %, over facts. The formulas are ours; the paper's are not known to us."
    ]
    table = Exhibit.of("fidelity", "Is a fact located alike however it is worded?", rows, notes)
    arms = [arm.replace("_", " ") for arm in ARMS]
    shown = [replace(table, chart=dots(table.frame, "locator, measure", arms))]
    if peaks := found.get("tracing", {}).get("peaks"):
        layers = [{"layer": f"L{layer}", "facts": count} for layer, count in enumerate(peaks)]
        shown.append(Exhibit.of("fidelity-layers", "Where causal tracing peaks", layers))
    return shown


def show_reliability(found: Results) -> list[Exhibit]:
    """Show what each method's own intervention does, and one measure for all."""
    shown, gains = [], dict[str, Any]()
    if neurons := found.get("neurons"):
        rows = [
            {"intervention": f"{name}, on {'the fact' if place == 'fact' else place}"}
            | {arm.replace("_", " "): interval(each[arm]) for arm in NEURON_ARMS}
            | {"gain in sd of draws": Value(each["gain"]["pooled_gain"], digits=1)}
            for name in ("suppress", "enhance")
            for place, each in neurons[name].items()
        ]
        note = (
            f"Relative change of the gold answer's probability, {neurons['facts']} facts, "
            f"{neurons['size']:.1f} neurons each, {neurons['draws']} draws."
        )
        title = "Knowledge neurons set to zero and doubled"
        shown.append(Exhibit.of("reliability-neurons", title, rows, [note]))
        gains["knowledge neurons, suppressed"] = neurons["suppress"]["fact"]["gain"]
    if edits := found.get("tracing"):
        measures = "efficacy", "generalization", "specificity", "score"
        rows = [
            {"layer edited": f"L{each['layer']}"}
            | {name: interval(each[name]) for name in measures}
            | {"traced effect": interval(each["effect"])}
            | {"facts traced to it": edits["traced"].count(each["layer"])}
            for each in edits["layers"]
        ]
        note = (
            f"{edits['facts']} facts. Spearman of score and traced effect over layers: "
            f"{interval(edits['correlation'])}; the traced layer scores as well as the best for "
            f"{interval(edits['hit'])} of facts, a layer drawn at random for "
            f"{interval(edits['hit_by_chance'])}."
        )
        title = "Rank-one edits at every layer, not only where tracing points"
        shown.append(Exhibit.of("reliability-edits", title, rows, [note]))
        gains["rank-one edit at the traced layer"] = {"gain": edits["gain"]}
    if circuits := found.get("circuits"):
        rows = [
            {"circuit": each["name"], "facts": each["facts"]}
            | {"faithfulness": interval(each["faithfulness"])}
            | {
                "P(gold)": interval(each["probability"]),
                "median rank": Value(each["rank"], digits=1),
            }
            | {f"Hit@{top}": Value(each["hits"][top]) for top in ("1", "10")}
            for each in circuits["arms"]
        ]
        note = (
            f"{circuits['edges']:,} edges are kept, {100 * circuits['share_of_edges']:.1f} % of "
            "all (the paper's chains are 2.6 % of the model; of what is not known to us). All "
            "other edges carry what they do on a prompt about another subject. Without a "
            f"counterpart of equal length: {len(circuits['unpaired'])} facts; answered wrongly: "
            f"{len(circuits['unknown'])}."
        )
        table = Exhibit.of("reliability-circuits", "Circuits run alone", rows, [note])
        shown.append(replace(table, chart=dots(table.frame, "circuit", ["faithfulness"])))
        gains |= {f"circuit: {arm}": each for arm, each in circuits["gains"].items()}
    rows = [
        {
            "locator": name,
            "mean over facts": interval(each["gain"]),
            "of the mean effects": Value(each.get("pooled_gain"), digits=1),
            "p": Value(each.get("p")),
        }
        for name, each in gains.items()
    ]
    note = (
        "For each fact, (effect of the located - mean effect of random) / sd of random; of the "
        "edit, the traced layer against the other layers. Random sets that do next to nothing have "
        "a small deviation and make large gains: compare the arms of one locator."
    )
    title = "One measure for all: effect beyond random, in standard deviations of random draws"
    return [*shown, Exhibit.of("common-metric", title, rows, [note])]
