"""Can single facts be located? Fidelity and reliability of three families of locators.

Knowledge neurons, causal tracing and circuits each say where a fact is. Fidelity asks whether they
say the same of every wording of it, and no more so than of other facts; reliability, whether the
evidence that each method offers is particular to what it located.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from caploc.cache import Cache, digest
from caploc.errors import BadData, BadOption
from caploc.files import read_text
from caploc.folder import FIDELITY, LEDGER, RELIABILITY, claim
from caploc.lookup import pick
from caploc.models.loading import LoadedModel, load_model
from caploc.neurons.circuits import CircuitLocator, circuit_reliability, others_of
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
    Tracer,
    intervention_reliability,
    locate_facts,
    noise_level,
)
from caploc.neurons.sites import NeuronModel, as_neurons
from caploc.neurons.study import YES_NO, Finding, Reported, Row, bounds, ranged, run_command
from caploc.progress import Progress, Silent
from caploc.report import drawing
from caploc.report.exhibits import NOTHING, Exhibit, Value
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
        FIDELITY: (fidelity_headline, fidelity_exhibits),
        RELIABILITY: (reliability_headline, reliability_exhibits),
    }[file]

    def find(lab: FactLab) -> Finding:
        found = lab.fidelity() if file == FIDELITY else lab.reliability()
        title = f"{page.capitalize()} of located facts in {study.model.name}"
        facts = {"facts": len(lab.facts), **lab.known[1]}
        results = {"model": study.model.name, **facts, "methods": found}
        return Finding(file, results, title, headline_of(found), exhibits_of(found), page=page)

    return run_command(open_facts(study, folder, progress, command), find, folder, command)


Results = Mapping[str, Any]  # by method, or of one method
NAMES = {
    "neurons": "knowledge neurons",
    "tracing": "causal tracing (ROME)",
    "circuits": "knowledge circuits",
}
ARMS = ("rewrites", "same_relation", "unrelated", "random")


def fidelity_headline(found: Results) -> str:
    """Say the answer in a sentence."""
    clear = [name for name in found if (margin_of(found[name])["low"] or 0) > 0]
    if not clear:
        return "No method locates a fact's wordings more alike than other facts of its relation"
    names = ", ".join(NAMES[name] for name in clear)
    return (
        f"{names}: wordings of one fact are located more alike than other facts of its relation "
        f"({len(clear)} of {len(found)} methods)"
    )


def margin_of(result: Results) -> Any:
    """Take the margin's interval: of the overlap, or of agreement on the layer."""
    margin = result["margin"]
    return margin["agreement"] if "agreement" in margin else margin["largest"]


def fidelity_exhibits(found: Results) -> list[Exhibit]:
    """Show whether wordings of a fact are located alike."""
    sets = {name: each for name, each in found.items() if "units" in each}
    exhibits = [wordings_exhibit(sets)] if sets else []
    return exhibits + ([traced_layers_exhibit(found["tracing"])] if "tracing" in found else [])


def wordings_exhibit(found: Results) -> Exhibit:
    """Show the overlap of sets located for wordings of one fact, and its controls."""
    rows: list[Row] = []
    for name, each in found.items():
        for measure, title in (("largest", "overlap"), ("iou", "IoU"), ("reference", "kept")):
            rows.append(
                (
                    f"{NAMES[name]}, {title}",
                    f"{each['facts']}",
                    Value(each["size"], digits=1),
                    *(ranged(each[arm][measure]) for arm in ("same_prompt", *ARMS)),
                    ranged(each["margin"][measure]),
                )
            )
    columns = (
        "locator; facts; mean size; same prompt again; rewrites; other facts, same relation; "
        "unrelated facts; random in layers; margin"
    )
    return Exhibit(
        "fidelity",
        "Is a fact located alike however it is worded?",
        tuple(columns.split("; ")),
        rows,
        [
            "Overlap is by the larger set; kept, the share of the prompt's set that the rewrite's "
            "has too. The margin is rewrites less other facts of the relation: only above 0 is "
            "there anything of the single fact. Intervals are 95 %, over facts. The formulas are "
            "ours; the paper's are not known to us."
        ],
        partial(
            drawing.draw_points,
            [NAMES[name] for name in found],
            {
                arm.replace("_", " "): [bounds(each[arm]["largest"]) for each in found.values()]
                for arm in ARMS
            },
            label="overlap by the larger set",
        ),
    )


def traced_layers_exhibit(result: Results) -> Exhibit:
    """Show the agreement of wordings on the layer that causal tracing names."""
    arms = ("rewrites", "same_prompt", "same_relation", "unrelated", "chance", "margin")
    rows: list[Row] = [
        (
            arm.replace("_", " "),
            *(ranged(result[arm][measure]) for measure in ("agreement", "distance", "spearman")),
        )
        for arm in arms
    ]
    return Exhibit(
        "fidelity-layers",
        "Does causal tracing name one layer for a fact?",
        ("compared with", "same layer", "layers apart", "Spearman of profiles"),
        rows,
        [
            f"{result['facts']} facts; {result['wrong']} of {result['prompts']} prompts are left "
            "out because the model answers them wrongly. Share of a fact's wordings in their most "
            f"frequent layer: {ranged(result['modal_share'])}. The traced layers of the facts: "
            + ", ".join(f"L{n} {count}" for n, count in enumerate(result["peaks"]))
            + "."
        ],
        partial(
            drawing.curves,
            {
                "prompts": list(enumerate(map(float, result["peaks"]))),
                "rewrites": list(enumerate(map(float, result["rewrite_peaks"]))),
            },
            across="layer with the largest indirect effect",
            up="prompts",
        ),
    )


def reliability_headline(found: Results) -> str:
    """Say the answer in a sentence."""
    parts = []
    if "neurons" in found:
        kept = found["neurons"]["conditions"]
        parts.append(f"knowledge neurons meet {sum(kept.values())} of {len(kept)} conditions")
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


def reliability_exhibits(found: Results) -> list[Exhibit]:
    """Show whether what was located does what its method says."""
    ways = {"neurons": suppression_exhibit, "tracing": edits_exhibit, "circuits": circuits_exhibit}
    return [ways[name](each) for name, each in found.items()] + [gains_exhibit(found)]


def suppression_exhibit(result: Results) -> Exhibit:
    """Show the relative change of the gold answer's probability under each intervention."""
    rows: list[Row] = []
    for name in ("suppress", "enhance"):
        for place in ("fact", "rewrites", "unrelated"):
            watched = result[name][place]
            rows.append(
                (
                    f"{name}, on {'the fact' if place == 'fact' else place}",
                    *(ranged(watched[arm]) for arm in ("located", "random", "other_fact")),
                    Value(watched["gain"]["pooled_gain"], digits=1),
                )
            )
    kept = ", ".join(
        f"{name.replace('_', ' ')}: {YES_NO[met]}" for name, met in result["conditions"].items()
    )
    return Exhibit(
        "reliability-neurons",
        "Knowledge neurons set to zero and doubled",
        ("intervention", "located", "random in layers", "another fact's", "gain in sd of draws"),
        rows,
        [
            f"Relative change of the gold answer's probability, {result['facts']} facts, "
            f"{result['size']:.1f} neurons each, {result['draws']} draws. Conditions of "
            f"reliability (ours): {kept}."
        ],
    )


def edits_exhibit(result: Results) -> Exhibit:
    """Show rank-one edits at every layer beside the traced effect."""
    shown = ("efficacy", "generalization", "specificity", "score", "effect")
    rows: list[Row] = [
        (
            f"L{layer['layer']}",
            *(ranged(layer[name]) for name in shown),
            str(result["traced"].count(layer["layer"])),
        )
        for layer in result["layers"]
    ]
    columns = (
        "layer edited; efficacy; generalization; specificity; score; traced effect; "
        "facts traced to it"
    )
    return Exhibit(
        "reliability-edits",
        "Rank-one edits at every layer, not only where tracing points",
        tuple(columns.split("; ")),
        rows,
        [
            f"{result['facts']} facts. Spearman of score and traced effect over layers: "
            f"{ranged(result['correlation'])}; the traced layer scores as well as the best for "
            f"{ranged(result['hit'])} of facts, a layer drawn at random for "
            f"{ranged(result['hit_by_chance'])}."
        ],
        partial(
            drawing.curves,
            {
                "score of edits": [(x["layer"], x["score"]["mean"]) for x in result["layers"]],
                "traced effect": [(x["layer"], x["effect"]["mean"]) for x in result["layers"]],
            },
            across="layer",
            up="mean over facts",
        ),
    )


def circuits_exhibit(result: Results) -> Exhibit:
    """Show circuits run alone, beside complements, other facts' and random ones."""
    rows: list[Row] = [
        (
            arm["name"],
            str(arm["facts"]),
            ranged(arm["faithfulness"]),
            ranged(arm["probability"]),
            Value(arm["rank"], digits=1),
            *(Value(hit) for hit in arm["hits"].values()),
        )
        for arm in result["arms"]
    ]
    hits = [f"Hit@{k}" for k in result["arms"][0]["hits"]]
    return Exhibit(
        "reliability-circuits",
        "Circuits run alone",
        ("circuit", "facts", "faithfulness", "P(gold)", "median rank", *hits),
        rows,
        [
            f"{result['edges']:,} edges are kept, {100 * result['share_of_edges']:.1f} % of all "
            "(the paper's chains are 2.6 % of the model; of what is not known to us). All other "
            "edges carry what they do on a prompt about another subject. Without a counterpart of "
            f"equal length: {len(result['unpaired'])} facts; answered wrongly: "
            f"{len(result['unknown'])}."
        ],
    )


def gains_exhibit(found: Results) -> Exhibit:
    """Show one measure for all locators: how far the located effect is beyond random ones."""
    gains: dict[str, Results] = {}
    if "neurons" in found:
        gains["knowledge neurons, suppressed"] = found["neurons"]["suppress"]["fact"]["gain"]
    if "tracing" in found:
        gains["rank-one edit at the traced layer"] = {"gain": found["tracing"]["gain"]}
    if "circuits" in found:
        gains |= {f"circuit: {arm}": each for arm, each in found["circuits"]["gains"].items()}
    rows: list[Row] = [
        (
            name,
            ranged(each["gain"]),
            Value(each["pooled_gain"], digits=1) if "pooled_gain" in each else NOTHING,
            Value(each["p"]) if "p" in each else NOTHING,
        )
        for name, each in gains.items()
    ]
    return Exhibit(
        "common-metric",
        "One measure for all: effect beyond random, in standard deviations of random draws",
        ("locator", "mean over facts", "of the mean effects", "p"),
        rows,
        [
            "For each fact, (effect of the located - mean effect of random) / sd of random; of the "
            "edit, the traced layer against the other layers. Random sets that do next to nothing "
            "have a small deviation and make large gains: compare the arms of one locator."
        ],
    )
