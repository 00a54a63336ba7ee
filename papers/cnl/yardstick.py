"""Facts and capabilities on one yardstick: the same score, rule, number of prompts and words.

Sets located by some prompts are held against sets located by others, by the larger set. Two sets
are of *one fact* (the same question, in other words or after other demonstrations), of *one
capability* (other questions of the same task, or other facts of the same relation), or of *two
capabilities*. A fact's margin is the first rate less the second, a capability's the second less the
third: what each adds to what it is made of. Prompts are alone (one), or the scores of several are
averaged first; their words are the same on both sides or others; before the question stand no
demonstrations, the same ones on both sides, or others. Sentences of ordinary text are a control:
what sets share that are of no capability. The design is ours.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from tqdm import tqdm

from caploc.files import digest
from caploc.neurons.attribution import Gates, measure_target, score_batch
from caploc.neurons.engine import Batch
from caploc.neurons.model import NeuronModel
from caploc.neurons.options import Attribution
from caploc.neurons.stats import mean_interval, paired_interval
from caploc.neurons.study import TaskSource
from caploc.neurons.threshold import SIGMA, above, best
from caploc.tasks.task import LogLikelihood
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.prompts import Encoder

TOGETHER = 8  # prompts in a pass
SHOTS = 3  # demonstrations
SHARE = 0.0015  # of all neurons
SENTENCE = r"(?:^|\. )([A-Z][a-z]*(?:,? [a-z]+){11})( [a-z]+)\b"  # twelve words, and the next
RULES: dict[str, Callable[[Any], Any]] = {
    f"best {100 * SHARE:g} %": lambda scores: best(scores, SHARE),
    f"{SIGMA:g} sigma": above,
}
KINDS = ("tasks", "relations")  # intervals are over these; else over sets
ALONE, SAME, OTHER = "none", "the same", "others"
Rates = Float64[np.ndarray, "first second"]
Scores = Float32[np.ndarray, "prompts neurons"]


@dataclass(frozen=True)
class Asked:
    """A prompt whose subject is its whole question, and what it asks: a fact of a capability."""

    prompt: FactPrompt
    capability: str
    fact: str

    def after(self, demonstrations: Sequence["Asked"]) -> "Asked":
        """Put other questions with their answers before it."""
        before = [each.prompt.text + each.prompt.target for each in demonstrations]
        text = "\n\n".join([*before, self.prompt.text])
        return replace(self, prompt=replace(self.prompt, text=text))


Groups = Sequence[Sequence[Asked]]  # the prompts of each set


def asked_of(prompt: FactPrompt, capability: str, fact: str) -> Asked:
    """Take a prompt whose whole text is the question."""
    return Asked(FactPrompt(prompt.text, prompt.text, prompt.target), capability, fact)


def wordings_of(fact: Fact) -> list[Asked]:
    """List a fact's prompt and its rewrites, its relation as the capability."""
    return [asked_of(p, str(fact.relation), fact.name) for p in (fact.prompt, *fact.rewrites)]


def examples_of(source: TaskSource, capability: str) -> list[Asked]:
    """List a task's finding examples, each as a fact of its own."""
    found = []
    for number in source.find_on:
        (request, *_) = source.finding.requests(number)
        assert isinstance(request, LogLikelihood)
        prompt = FactPrompt(request.context, None, request.continuation)
        found.append(asked_of(prompt, capability, f"{source.name} {number}"))
    return found


def sentences() -> list[Asked]:
    """List sentences of plain words from Python's own manual, each asked for its thirteenth word.

    Which there are depends on the version of Python.
    """
    texts = [re.sub(r"\s+", " ", text) for _, text in sorted(topics.items())]
    found = [each for text in texts for each in re.findall(SENTENCE, text)]
    return [
        asked_of(FactPrompt(text, None, answer), "text", text)
        for text, answer in dict(found).items()
    ]


def exchanged(asked: Sequence[Asked]) -> list[Asked]:
    """Give each question the answer of the next that has another."""
    found = []
    for number, each in enumerate(asked):
        others = [other.prompt.target for other in (*asked[number:], *asked[:number])]
        answer = next((other for other in others if other != each.prompt.target), others[0])
        found.append(replace(each, prompt=replace(each.prompt, target=answer)))
    return found


@dataclass(frozen=True)
class PromptScorer:
    """Scores prompts one by one, each divided by the sum of its sizes; keeps them in a folder.

    With `question` the neurons of the question's positions count alone, by `gradient`.
    """

    neurons: NeuronModel
    folder: Path
    attribution: Attribution
    question: bool = False

    def score(self, asked: Sequence[Asked]) -> Scores:
        texts = [[each.prompt.text, each.prompt.target] for each in asked]
        name = digest({"texts": texts, "model": self.neurons.fingerprint, "question": self.question,
                       "score": [self.attribution.method, self.attribution.steps]})  # fmt: skip
        path = self.folder / f"{name}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, self._score([each.prompt for each in asked]))
        found: Scores = np.load(path)
        return found

    def _score(self, prompts: Sequence[FactPrompt]) -> Scores:
        encoder = Encoder(self.neurons)
        encoded = [encoder.encode(each) for each in prompts]
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].tokens))
        found = np.empty((len(encoded), self.neurons.grid.size), np.float32)
        for first in tqdm(range(0, len(order), TOGETHER), "prompts scored", disable=None):
            numbers = order[first : first + TOGETHER]
            batch = Batch.of([encoded[n].span for n in numbers], self.neurons.model.device)
            starts = torch.tensor([[encoded[n].subject[0]] for n in numbers])
            found[numbers] = self.score_batch(batch, starts.to(batch.tokens.device)).cpu().numpy()
        return found / np.abs(found).sum(axis=1, keepdims=True)

    def score_batch(self, batch: Batch, starts: torch.Tensor) -> torch.Tensor:
        if not self.question:
            return score_batch(self.attribution, self.neurons, batch)
        places = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        ones = torch.ones(batch.size, device=batch.tokens.device)
        gates = Gates(self.neurons.projections, ones, positions=places >= starts)
        with gates.applied(), torch.enable_grad():
            return gates.gradients(measure_target(self.attribution, self.neurons, batch))


def locate_groups(scorer: PromptScorer, groups: Groups, rule: str) -> Bool[np.ndarray, "groups n"]:
    """Average the scores of each group's prompts, and choose."""
    scores = scorer.score([each for group in groups for each in group])
    parts = np.split(scores, np.cumsum([len(group) for group in groups])[:-1])
    return np.stack([RULES[rule](part.mean(axis=0, dtype=float)) for part in parts])


def agree(
    scorer: PromptScorer, first: Groups, second: Groups, rule: str, *, by_capability: bool
) -> dict[str, Any]:
    """Hold every set of one side against every set of the other, by what both are of.

    Intervals are over the sets of the first side, or over capabilities. A group is of one fact if
    all of its prompts are; the same prompts are not held against themselves.
    """
    sides = (locate_groups(scorer, groups, rule) for groups in (first, second))
    one, other = (sets.astype(np.float32) for sets in sides)
    largest = np.maximum(one.sum(axis=1)[:, None], other.sum(axis=1)[None])
    rates = np.divide(one @ other.T, largest, out=np.full(largest.shape, np.nan), where=largest > 0)

    def alike(of: Callable[[Sequence[Asked]], Any]) -> Bool[np.ndarray, "first second"]:
        return np.array([[of(a) == of(b) for b in second] for a in first])

    capability = alike(lambda group: group[0].capability)
    fact = alike(lambda group: frozenset(each.fact for each in group))
    pairs = {
        "fact": fact & ~alike(list),
        "capability": capability & ~fact,
        "apart": ~capability,
    }
    names = [group[0].capability for group in first] if by_capability else list(range(len(first)))
    means = {}
    for name, mask in pairs.items():
        rows = [
            np.concatenate([rates[n][mask[n]] for n in range(len(first)) if names[n] == each])
            for each in dict.fromkeys(names)
        ]
        means[name] = np.array([np.nanmean(row) if (~np.isnan(row)).any() else np.nan
                                for row in rows])  # fmt: skip
    return {
        "sets": len(first),
        "size": float(one.sum(axis=1).mean()),
        **{name: mean_interval(each).as_dict() for name, each in means.items()},
        "fact_margin": paired_interval(means["fact"], means["capability"]).as_dict(),
        "capability_margin": paired_interval(means["capability"], means["apart"]).as_dict(),
    }


def pool(asked: Sequence[Asked], size: int) -> list[list[Asked]]:
    """Put the prompts of each capability together, `size` in a set."""
    found = []
    for _, members in groupby(asked, lambda each: each.capability):
        each = list(members)
        found += [each[n : n + size] for n in range(0, len(each) - size + 1, size)]
    return found


def single(asked: Sequence[Asked]) -> list[list[Asked]]:
    """Put each prompt into a set of its own."""
    return [[each] for each in asked]


Comparison = tuple[dict[str, Any], Groups, Groups]  # what is compared, and both sides


def compare_facts(facts: Sequence[Fact], contexts: int, drawn: int) -> Iterator[Comparison]:
    """Compare facts: alone in other and the same words, by two wordings, by some contexts.

    After demonstrations `drawn` facts of each relation are asked, each in `contexts` of them a
    side; and relations are compared as capabilities, by as many facts.
    """
    worded = [wordings_of(fact) for fact in facts]
    prompts = [each[0] for each in worded]
    rewrites = [each for words in worded for each in words[1:]]

    def told(prompts: int, words: str, shown: str) -> dict[str, Any]:
        return {"of": "facts", "prompts": prompts, "words": words, "demonstrations": shown}

    yield told(1, OTHER, ALONE), single(prompts), single(rewrites)
    yield told(1, SAME, ALONE), single(prompts), single(prompts)
    several = [words for words in worded if len(words) >= 4]
    yield told(2, OTHER, ALONE), [w[0:3:2] for w in several], [w[1:4:2] for w in several]
    random = np.random.default_rng(0)
    sides: tuple[list[list[Asked]], list[list[Asked]]] = ([], [])
    for relation in dict.fromkeys(each.capability for each in prompts):
        own = [each for each in prompts if each.capability == relation]
        for each in own[:drawn]:
            others = [other for other in own if other != each]
            for side in sides:
                places = [random.permutation(len(others))[:SHOTS] for _ in range(contexts)]
                side.append([each.after([others[n] for n in some]) for some in places])
    yield told(contexts, SAME, OTHER), *sides
    first, second = ([group[0] for group in side] for side in sides)
    yield told(1, SAME, OTHER), single(first), single(second)
    some = told(contexts, SAME, OTHER) | {"of": "relations"}
    yield some, pool(first, contexts), pool(second, contexts)


def compare_tasks(
    tasks: Mapping[str, Sequence[Sequence[Asked]]], size: int
) -> Iterator[Comparison]:
    """Compare word tasks, each in own and in other words, `size` examples a side: alone and pooled.

    Raises ValueError if a task has fewer than twice as many and demonstrations for both sides.
    """
    if not tasks:
        return
    sides: dict[str, list[Asked]] = {}

    def add(name: str, asked: Sequence[Asked], shown: Sequence[Asked] = ()) -> None:
        sides.setdefault(name, []).extend(each.after(shown) for each in asked)

    for own, twin in tasks.values():
        one, two = own[:size], own[size : 2 * size]
        shown = own[2 * size : 2 * size + SHOTS]
        others = own[2 * size + SHOTS : 2 * (size + SHOTS)]
        if len(others) < SHOTS or len(twin) < size + SHOTS:
            raise ValueError(f"{own[0].capability} has {len(own)} examples, too few.")
        for name, before in ((ALONE, ()), (SAME, shown)):
            add(f"first {name}", one, before)
            add(f"second {name}", two, before)
        add("second others", two, others)
        add("twin none", twin[:size])
        add("twin others", twin[:size], twin[size : size + SHOTS])
        add("exchanged", exchanged(two), shown)
    for words, second, shown in (
        (SAME, "second none", ALONE), (OTHER, "twin none", ALONE), (SAME, "second the same", SAME),
        (SAME, "second others", OTHER), (OTHER, "twin others", OTHER),
        ("the same, answers exchanged", "exchanged", SAME),
    ):  # fmt: skip
        first = sides[f"first {ALONE if shown == ALONE else SAME}"]
        for count in (1, size):
            told = {"of": "tasks", "prompts": count, "words": words, "demonstrations": shown}
            yield told, pool(first, count), pool(sides[second], count)


def compare_texts(tasks: Sequence[Asked], size: int) -> Iterator[Comparison]:
    """Compare as many sentences with others, and with the tasks' questions: alone and pooled."""
    text = sentences()[: 2 * len(tasks)]
    for count in (1, size) if tasks else ():
        told = {"of": "texts", "prompts": count, "words": OTHER, "demonstrations": ALONE}
        yield told, pool(text[0::2], count), pool([*text[1::2], *tasks], count)


def compare_all(scorer: PromptScorer, comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Make every comparison by every rule; a row for each."""
    return [
        {**told, "rule": rule} | agree(scorer, *sides, rule, by_capability=told["of"] in KINDS)
        for told, *sides in comparisons
        for rule in RULES
        if all(sides)
    ]
