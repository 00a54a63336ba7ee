"""What a model makes of a fact, and whether what is located is faithful to it, however worded.

A fact's prompt is read as tokens with its answer. That the same must come out however a fact is
worded is the idea of Huang et al. (ICLR 2025); its formulas are not known to us, and these are
ours. For a fact's prompt q and a rewrite r, with P the located set (of neurons, of edges):

    reference |P(q) & P(r)| / |P(q)|,   largest (by the larger set),   iou

and where a method gives a profile of effects over layers: do both peak in one layer (`agreement`),
how many layers lie between their peaks (`distance`), and how alike are they (`spearman`)?

A high rate alone says little: it is held against prompts of other facts, and the *margin* is the
rate with the fact's own rewrites less that with rewrites of other facts of the same relation. Only
a margin clearly above 0 speaks for single facts being located; a high rate with no margin is what
the relation's, or the form's, prompts have in common.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64

from caploc.components import Grid
from caploc.designs import generator
from caploc.engine.encoding import RequestEncoder
from caploc.engine.plain import ScoredText, equally_long, score_texts
from caploc.engine.scores import ContinuationScore
from caploc.errors import BadData, ModelRefused
from caploc.models.loading import CutModel
from caploc.neurons.sets import overlap_rates, rank_correlation
from caploc.progress import Progress, Silent
from caploc.stats import Interval, JsonRecord, mean_interval
from caploc.stats.chance import random_sets
from papers.cnl.facts import Fact, FactPrompt, check_names

TOGETHER = 64  # prompts in a forward pass


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt with its answer.

    `tokens` are those of the text and of the answer but its last, from which nothing is predicted;
    the last `len(answer)` positions predict `answer`. `subject` are the positions of the subject's
    tokens, empty where there is none.
    """

    tokens: tuple[int, ...]
    answer: tuple[int, ...]
    subject: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """The first predicting position: that of the text's last token."""
        return len(self.tokens) - len(self.answer)

    def first(self) -> "Encoded":
        """Leave only the first token of the answer to come."""
        return Encoded(self.tokens[: self.start + 1], self.answer[:1], self.subject)


class Encoder:
    """Turns prompts into tokens: what is read, what is to come, and where the subject stands.

    Tokens are those of lm-eval's Hugging Face model (special tokens included), except that a space
    at the end of a prompt stays with the prompt where the tokenizer lets it; lm-eval gives it to
    the answer, whose first token would then be a bare space for a tokenizer of bytes.
    """

    def __init__(self, loaded: CutModel) -> None:
        self.wording = RequestEncoder(loaded.model, loaded.tokenizer)
        self.tokenizer = loaded.tokenizer
        self.longest = int(self.wording.harness.max_length)

    def encode(self, prompt: FactPrompt, answer: str | None = None) -> Encoded:
        """Encode a prompt with its target, or with another answer.

        Raises BadData if it does not fit the model's window, or the answer has no token of its own.
        """
        encode, text = self.wording.harness.tok_encode, prompt.text
        answer = prompt.target if answer is None else answer
        context, whole = encode(text), encode(text + answer)
        if whole[: len(context)] != context:  # the tokenizer joins the last space and the answer
            text = text.rstrip()
            context = encode(text)
        wanted = whole[len(context) :]
        if not wanted or not context:
            raise BadData(f"{answer!r} after {prompt.text!r} has no token of its own.")
        tokens = (*context, *wanted[:-1])
        self._check(prompt.text, len(tokens))
        subject = self._subject(text, tuple(context), prompt.subject) if prompt.subject else ()
        return Encoded(tokens, tuple(wanted), subject)

    def read(self, text: str, subject: str) -> Encoded:
        """Encode a text without an answer; its last position predicts nothing that is known."""
        tokens = tuple(self.wording.harness.tok_encode(text))
        self._check(text, len(tokens))
        return Encoded(tokens, (), self._subject(text, tokens, subject))

    def _check(self, text: str, tokens: int) -> None:
        if tokens > self.longest:
            raise BadData(
                f"The prompt {text[:40]!r}... has {tokens} tokens; the model's window takes "
                f"{self.longest}."
            )

    def _subject(self, text: str, tokens: tuple[int, ...], subject: str) -> tuple[int, ...]:
        """Find the tokens that hold a part of the subject, where it stands last."""
        if subject not in text:
            raise BadData(f"The subject {subject!r} does not occur in {text!r}.")
        start = text.rindex(subject)
        return tuple(
            position
            for position, (first, end) in enumerate(self._offsets(text, tokens))
            if first < start + len(subject) and end > start and end > first
        )

    def _offsets(self, text: str, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        name = type(self.tokenizer).__name__
        if not self.tokenizer.is_fast:
            raise ModelRefused(
                f"The tokenizer {name} does not say where its tokens stand in a text, so that a "
                "subject cannot be found; use its fast version."
            )
        for special in (True, False):
            found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
            if tuple(found["input_ids"]) == tokens:
                return list(found["offset_mapping"])
        raise ModelRefused(
            f"The tokenizer {name} encodes {text[:40]!r} in two ways, so that a subject cannot be "
            "found."
        )


class FactAnswers:
    """Asks a model for the probability of answers, edits included."""

    def __init__(self, loaded: CutModel) -> None:
        self.loaded, self.encoder = loaded, Encoder(loaded)

    def right(self, prompt: FactPrompt) -> bool:
        return self.to([self.encoder.encode(prompt)])[0].greedy

    def log_probabilities(
        self, asked: Sequence[tuple[FactPrompt, str]]
    ) -> Float64[np.ndarray, " asked"]:
        """Average the log-probability over the tokens of each answer after its prompt."""
        encoded = [self.encoder.encode(*each) for each in asked]
        sums = np.array([found.logprob for found in self.to(encoded)], dtype=float)
        return sums / [len(each.answer) for each in encoded]

    def to(self, encoded: Sequence[Encoded]) -> list[ContinuationScore]:
        """Say what the model makes of each prompt's answer, in the order given."""
        results: dict[int, ContinuationScore] = {}
        intact = np.zeros(self.loaded.grid.size, dtype=bool)
        for alike in equally_long(range(len(encoded)), lambda at: encoded[at].tokens):
            for first in range(0, len(alike), TOGETHER):
                places = alike[first : first + TOGETHER]
                some = [encoded[place] for place in places]
                texts = [ScoredText(each.tokens, (intact, None), [each.answer]) for each in some]
                for place, (score,) in zip(places, score_texts(self.loaded, texts), strict=True):
                    results[place] = score
        return [results[place] for place in range(len(encoded))]


def known_facts(
    loaded: CutModel, facts: Sequence[Fact], *, progress: Progress | None = None
) -> tuple[tuple[Fact, ...], dict[str, int]]:
    """Keep the facts whose prompt the model answers rightly, and of their rewrites the right ones.

    Counts `facts` and `facts_known`, `rewrites` and `rewrites_known`, these of all facts. Raises
    BadData if a prompt does not fit the model's window, or no fact is known.
    """
    shown, asker = progress or Silent(), FactAnswers(loaded)
    shown.start("facts known", len(facts))
    kept, given, rewrites_known = [], 0, 0
    for fact in facts:
        given += len(fact.rewrites)
        encoded = [asker.encoder.encode(prompt) for prompt in (fact.prompt, *fact.rewrites)]
        first, *others = asker.to(encoded)
        shown.advance(1, sum(len(each.tokens) for each in encoded))
        right = tuple(p for p, found in zip(fact.rewrites, others, strict=True) if found.greedy)
        rewrites_known += len(right)
        if first.greedy:
            kept.append(replace(fact, rewrites=right))
    if not kept:
        raise BadData(
            f"The model answers none of the {len(facts)} facts rightly, so nothing can be located; "
            "give facts that it knows."
        )
    counts = {"facts": len(facts), "facts_known": len(kept)}
    return tuple(kept), counts | {"rewrites": given, "rewrites_known": rewrites_known}


ARMS = ("rewrites", "same_relation", "unrelated", "random")
SET_MEASURES = ("reference", "largest", "iou")
LAYER_MEASURES = ("agreement", "distance", "spearman")
Profile = Float64[np.ndarray, " layers"]
Located = Bool[np.ndarray, " units"] | Profile  # a set, or effects by layer
Intervals = dict[str, Interval]  # of means over facts, facts resampled, by measure


@runtime_checkable
class FactLocator(Protocol):
    """Finds what a prompt's answer rests on, the same for the same prompt.

    That is a set of `units`, drawn at random within a layer of the `grid`, or an effect for each
    layer (NaN where there is none to have); None where the prompt is of no use.
    """

    name: str
    units: str

    @property
    def grid(self) -> Grid: ...
    def locate(self, prompt: FactPrompt) -> Located | None: ...


@dataclass(frozen=True)
class WordingPair:
    """A fact's prompt and, by arm, whose rewrite it is held against, of the fact or of another.

    All are numbers: the prompt's fact; the partner's, and which of its rewrites. None where there
    is no partner. That all are rewrites keeps differences of form out of the comparison.
    """

    fact: int
    partners: dict[str, tuple[int, int] | None]


def pair_wordings(facts: Sequence[Fact], seed: int) -> list[WordingPair]:
    """Make one pair for each rewrite of each fact, its partners drawn at random.

    A partner's rewrite has the same number, counted round. A fact whose relation is not known has
    no related facts, and is unrelated only to facts of a known relation. Raises BadData if no fact
    has a rewrite.
    """
    random = generator(seed)
    usable = [number for number, fact in enumerate(facts) if fact.rewrites]
    if not usable:
        raise BadData("No fact has a rewrite to compare it with; give some.")

    def partner(fact: int, rewrite: int, same: bool) -> tuple[int, int] | None:
        pool = [
            other
            for other in usable
            if other != fact and are_related(facts[fact], facts[other]) is same
        ]
        if not pool:
            return None
        other = pool[int(random.integers(len(pool)))]
        return other, rewrite % len(facts[other].rewrites)

    pairs = []
    for fact in usable:
        for rewrite in range(len(facts[fact].rewrites)):
            own = fact, rewrite
            related, unrelated = (partner(fact, rewrite, same) for same in (True, False))
            pairs.append(
                WordingPair(fact, dict(zip(ARMS, (own, related, unrelated, own), strict=True)))
            )
    return pairs


def are_related(first: Fact, second: Fact) -> bool | None:
    """Ask whether two facts are of one relation; None where that of both is unknown."""
    if first.relation is None and second.relation is None:
        return None
    return first.relation == second.relation


def mean_by_fact(
    owners: Sequence[int], values: Sequence[float], facts: int
) -> Float64[np.ndarray, " facts"]:
    """Average each fact's values that are not missing; NaN where it has none."""
    owned, given = np.asarray(owners, dtype=int), np.asarray(values, dtype=float)
    known = ~np.isnan(given)
    counts = np.bincount(owned[known], minlength=facts)
    sums = np.bincount(owned[known], given[known], minlength=facts)
    return np.divide(sums, counts, out=np.full(facts, np.nan), where=counts > 0)


@dataclass(frozen=True)
class Fidelity(JsonRecord):
    """How well what is located agrees between wordings of a fact, beside what other prompts give.

    `arms` holds each measure's mean over facts: a fact's prompt beside its `rewrites`, rewrites of
    other facts (`same_relation`, `unrelated`), and what is as large as the rewrites' in each layer,
    or the same profile with its layers dealt anew (`random`). `margin` is `rewrites` less
    `same_relation`, paired by fact (of `distance`, below 0 is better). `size` is the mean number of
    units of the `prompts`; at `missing` ones nothing was located, or the model answers wrongly.
    `peaks` counts the facts whose profile peaks in each layer.
    """

    locator: str
    units: str
    facts: int
    without_rewrites: int
    prompts: int
    missing: int
    size: float | None
    peaks: tuple[int, ...] | None
    arms: dict[str, Intervals]
    margin: Intervals


def wording_fidelity(
    locator: FactLocator, facts: Sequence[Fact], *, seed: int, progress: Progress | None = None
) -> Fidelity:
    """Locate every prompt and every rewrite, and compare what comes out.

    Raises BadData if there is no fact, two have one name, none has a rewrite, or a profile has no
    layer with an effect.
    """
    compared = pair_wordings(facts := check_names(facts), seed)
    located = _locate_wordings(locator, facts, compared, progress or Silent())

    def measure(arm: str, number: int, pair: WordingPair) -> dict[str, float]:
        place = pair.partners[arm]
        second = None if place is None else located[place[0]][1 + place[1]]
        if arm == "random" and second is not None:
            second = random_like(second, locator.grid, seed + number)
        return compare_located(located[pair.fact][0], second)

    rows = {arm: [measure(arm, *each) for each in enumerate(compared)] for arm in ARMS}
    names = next((tuple(row) for row in rows["rewrites"] if row), SET_MEASURES)
    owners = [pair.fact for pair in compared]
    means = {
        arm: {
            name: mean_by_fact(owners, [row.get(name, np.nan) for row in each], len(facts))
            for name in names
        }
        for arm, each in rows.items()
    }
    margin = {name: means["rewrites"][name] - means["same_relation"][name] for name in names}
    every = [each for found in located.values() for each in found]
    sets = [each for each in every if each is not None and each.dtype == bool]
    firsts = (found[0] for found in located.values())
    profiles = [each for each in firsts if each is not None and each.dtype != bool]
    layers, peaks = max(map(len, profiles), default=0), list(map(peak, profiles))
    return Fidelity(
        locator=locator.name,
        units=locator.units,
        facts=len(located),
        without_rewrites=len(facts) - len(located),
        prompts=len(every),
        missing=sum(each is None or (each.dtype == bool and not each.any()) for each in every),
        size=float(np.mean([each.sum() for each in sets])) if sets else None,
        peaks=tuple(np.bincount(peaks, minlength=layers).tolist()) if layers else None,
        arms={arm: _intervals(each, seed) for arm, each in means.items()},
        margin=_intervals(margin, seed),
    )


def _locate_wordings(
    locator: FactLocator, facts: Sequence[Fact], compared: Sequence[WordingPair], shown: Progress
) -> dict[int, list[Located | None]]:
    """Locate the prompt and each rewrite of each fact that is compared."""
    used = sorted({pair.fact for pair in compared})
    shown.start(f"{locator.name} of rewrites", sum(1 + len(facts[n].rewrites) for n in used))
    found: dict[int, list[Located | None]] = {number: [] for number in used}
    for number in used:
        for prompt in (facts[number].prompt, *facts[number].rewrites):
            found[number].append(locator.locate(prompt))
            shown.advance(1, 1)
    return found


def _intervals(means: Mapping[str, Float64[np.ndarray, " facts"]], seed: int) -> Intervals:
    return {name: mean_interval(each, seed=seed) for name, each in means.items()}


def _is_profile(located: Located | None) -> bool:
    return located is not None and located.dtype != bool


def random_like(located: Located, grid: Grid, seed: int) -> Located:
    """Draw a set as large in every layer, or deal a profile's effects to layers anew."""
    if _is_profile(located):
        return generator(seed).permutation(located)
    return random_sets(located, grid, 1, seed=seed, excluding=False)[0]


def compare_located(first: Located | None, second: Located | None) -> dict[str, float]:
    """Compare two sets, or two profiles; empty where one is missing, NaN where undefined."""
    if first is None or second is None:
        return {}
    if not _is_profile(first):
        found = vars(overlap_rates(first, second))
        return {name: np.nan if found[name] is None else found[name] for name in SET_MEASURES}
    apart, rho = abs(peak(first) - peak(second)), rank_correlation(first, second)
    figures = float(apart == 0), float(apart), np.nan if rho is None else rho
    return dict(zip(LAYER_MEASURES, figures, strict=True))


def peak(profile: Profile) -> int:
    """Find the layer of the largest effect, the lowest of equals; BadData if there is none."""
    if np.isnan(profile).all():
        raise BadData("A traced profile has no layer with an effect; widen the window.")
    return int(np.nanargmax(profile))
