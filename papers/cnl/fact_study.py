"""Can single facts be located? Fidelity and reliability of three families of locators.

Knowledge neurons, causal tracing and circuits each say where a fact is. Fidelity asks whether they
say the same of every wording of it, and no more so than of other facts; reliability, whether the
evidence that each method offers is particular to what it located.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from caploc.errors import BadData
from caploc.files import digest
from caploc.models.loading import LoadedModel
from caploc.neurons.model import NeuronModel
from caploc.tasks.catalog import load_task
from caploc.tasks.task import prompt_of
from papers.cnl.circuits import CircuitLocator, circuit_reliability, others_of
from papers.cnl.editing import Editor, Recall, covariances, edit_reliability, write_contexts
from papers.cnl.facts import Fact, read_facts
from papers.cnl.fidelity import wording_fidelity
from papers.cnl.knowledge_neurons import KnowledgeNeurons, intervention_reliability
from papers.cnl.preset import Facts
from papers.cnl.prompts import FactAnswers, known_facts
from papers.cnl.tracing import Tracer, noise_level

FEWEST_TEXTS = 20  # for the covariance of a rank-one edit
# Whose prompts serve beside those of words/facts, which alone have too few positions.
TEXT_TASKS = "past plural capital antonym category country french next".split()
TEXTS = 60  # of each


@dataclass
class FactStudy:
    """The facts of a set that a model knows, and what locates them; `recall` knows what was found.

    Raises BadData if the model knows fewer than two.
    """

    loaded: LoadedModel
    neurons: NeuronModel
    name: str
    asked: Facts
    seed: int
    recall: Recall

    def measure(self, question: str) -> dict[str, Any]:
        """Measure `fidelity` or `reliability` of each method."""
        facts, counts = self.known
        rest = self.asked.model_dump(exclude={"sets", "methods"})
        read = digest({"asked": rest, "facts": [each.as_dict() for each in (*self.all, *facts)]})
        found = {
            method: self.recall(
                f"{question} {method} of {read}", partial(getattr(self, question), method)
            )
            for method in self.asked.methods
        }
        return {"facts": len(facts), **counts, "methods": found}

    @cached_property
    def all(self) -> tuple[Fact, ...]:
        return read_facts(self.name, self.seed)

    @cached_property
    def known(self) -> tuple[tuple[Fact, ...], dict[str, Any]]:
        """The facts that the model knows, and how many there were."""
        facts, counts = known_facts(FactAnswers(self.neurons), self.all, self.asked.count)
        return facts, {"known": counts}

    @cached_property
    def knowledge(self) -> KnowledgeNeurons:
        return KnowledgeNeurons(self.neurons, self.asked.neuron_steps)

    @cached_property
    def tracer(self) -> Tracer:
        noise = noise_level(self.neurons, [fact.prompt for fact in self.known[0]])
        return Tracer(self.neurons, noise, seed=self.seed)

    @cached_property
    def circuits(self) -> CircuitLocator:
        others = others_of(p for fact in self.all for p in (fact.prompt, *fact.rewrites))
        steps = self.asked.circuit_steps
        return CircuitLocator(self.loaded, others, self.asked.share, steps, seed=self.seed)

    def fidelity(self, method: str) -> dict[str, Any]:
        """Hold what is located for wordings of a fact against each other."""
        if method == "neurons":
            return wording_fidelity(self.knowledge, self.known[0], seed=self.seed)
        if method == "tracing":
            return wording_fidelity(self.tracer, self.known[0], seed=self.seed)
        pair = self.circuits.pair  # only what can be corrupted
        facts = [
            replace(fact, rewrites=tuple(r for r in fact.rewrites if pair(r) is not None))
            for fact in self.known[0]
            if pair(fact.prompt) is not None
        ]
        return wording_fidelity(self.circuits, facts, seed=self.seed)

    def reliability(self, method: str) -> dict[str, Any]:
        """Intervene as the method's own protocol does; for tracing, by edits at every layer."""
        facts, seed, draws = self.known[0], self.seed, self.asked.draws
        if method == "neurons":
            return intervention_reliability(self.knowledge, facts, draws=draws, seed=seed)
        if method == "circuits":
            return circuit_reliability(self.circuits, facts, draws=draws, seed=seed)
        texts = self.covariance_texts()
        layers = [n for n, site in enumerate(self.neurons.projections) if site is not None]
        contexts = write_contexts(self.neurons, self.asked.contexts, seed)
        editor = Editor(self.neurons, covariances(self.neurons, texts, layers), contexts=contexts)
        read = digest({"texts": texts, "contexts": contexts})
        return edit_reliability(
            facts, editor=editor, profiler=self.tracer, seed=seed,
            recall=lambda what, measure: self.recall(f"{what} with {read}", measure),
        )  # fmt: skip

    def covariance_texts(self) -> list[str]:
        """Find texts for the covariance of neurons; raises BadData if there are too few."""
        if self.asked.texts is not None:
            found = Path(self.asked.texts).read_text(encoding="utf-8").splitlines()
            found = [line for line in found if line.strip()]
        else:
            prompts = [p for f in self.known[0] for p in (f.prompt, *f.rewrites, *f.neighbours)]
            found = [prompt.text + prompt.target for prompt in prompts]
            if self.name == "words/facts":
                tasks = [load_task(f"words/{name}") for name in TEXT_TASKS]
                found += [prompt_of(t.requests(n)[0]) for t in tasks for n in t.first(TEXTS)]
        if len(found) < FEWEST_TEXTS:
            raise BadData(
                f"A rank-one edit needs {FEWEST_TEXTS} texts or more for the covariance of "
                f"neurons; there are {len(found)}. Name a file as `texts` in the preset."
            )
        return found
