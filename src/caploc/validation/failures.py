"""Did the model lose the capability, or the ability to say anything at all?

A score falls alike when a model answers wrongly and when it repeats one word, answers every
question the same or finds every choice absurd. This module reads the answers: each gets a category
(`categories`), and the set a verdict.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean as mean
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import stats
from scipy.special import log_softmax

from caploc.store import Row
from caploc.tasks.requests import Generate, Response, Scored, responses_from_json
from caploc.tasks.task import Task
from caploc.validation.categories import Answered, Case, Category, Labels, written
from caploc.validation.comparison import MARGIN

MOSTLY = 2 / 3  # of the harm, for a verdict that names one kind
FEWEST = 5  # examples harmed, below which their kinds are no majority of anything


@runtime_checkable
class Extracts(Protocol):
    """A task that can say which part of a written answer its metric judges."""

    def extracted(self, example: int, responses: Sequence[Response]) -> str | None:
        """What the task's filter takes out of the answer, None if it finds nothing."""
        ...


@dataclass(frozen=True, slots=True)
class FailureShare:
    """Some of a number of examples, and their share with its 95 % interval (Wilson's).

    The share is None of no examples.
    """

    count: int
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Common:
    """An answer that far too many examples got; `usual` is the share that would be no surprise.

    Of a multiple choice it is the choice's position, from 1, among `choices`; else `choices` is
    None, and the answer is in lower case and without the marks around it.
    """

    answer: str | int
    choices: int | None
    count: int
    share: float
    usual: float


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Means over examples whose texts were scored, intact and knocked out.

    `nats` is the log-probability of a token of the likeliest choice (or of the only text);
    `evenness` the entropy of the choices in units of the greatest, from 0 (one is certain) to 1
    (all are alike), None where there is no choice.
    """

    nats: tuple[float, float]
    evenness: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One example of a category, as a reader sees it; a text that is missing is None."""

    example: int
    prompt: str
    gold: str | None
    intact: str
    knocked_out: str


@dataclass(frozen=True)
class Failures:
    """What became of a task's answers.

    `examples` are those scored in both, and shares are of them; `unscored` are the rest of those
    asked in both. `harmed` counts the broken ones, and those newly wrong as far as they outnumber
    those newly right; `broken` is the part of the harmed whose answers are broken. `categories`
    and `samples` lack what did not occur; `labels` has every example's, `not scored` included.

    `verdict` is `unharmed` (harmed are at most `MARGIN` of the examples), `speech` (at least two
    thirds of the harm is broken answers), `capability` (at most one third is), or `mixed`. It is
    None where that cannot be told: no example, fewer than `FEWEST` harmed, or more than a third of
    the harm lies in short gold texts of which only the likelihood is known (`missed`).
    """

    task: str
    examples: int
    unscored: int
    verdict: str | None
    harmed: FailureShare
    broken: FailureShare
    categories: dict[Category, FailureShare]
    common: list[Common]
    likelihoods: Likelihoods | None
    samples: dict[Category, list[Sample]]
    labels: dict[int, Category]

    def as_dict(self) -> dict[str, Any]:
        """As result files hold it: plain values, missing is None; the labels are left out."""
        return {
            "task": self.task,
            "examples": self.examples,
            "unscored": self.unscored,
            "verdict": self.verdict,
            "harmed": asdict(self.harmed),
            "broken": asdict(self.broken),
            "categories": {
                str(category): {"broken": category.broken, **asdict(part)}
                for category, part in self.categories.items()
            },
            "common": [asdict(common) for common in self.common],
            "likelihoods": as_lists(self.likelihoods),
            "samples": {
                str(category): [asdict(sample) for sample in samples]
                for category, samples in self.samples.items()
            },
        }


def failures(
    task: Task, intact: Sequence[Row], knocked_out: Sequence[Row], shown: int = 3
) -> Failures:
    """Give every example that is in both sets of rows a category, and the set a verdict.

    The task must be the one that the rows were measured with. Of each category the first `shown`
    examples are kept to be shown, in the order of the task. Rows of other examples are left out.
    """
    cases = paired_cases(task, intact, knocked_out)
    scored = [case for case in cases if is_scored(case)]
    labels = Labels(scored, prompts(task, scored), by_length=task.metric == "acc_norm")
    given = {case.example: labels.of(case) for case in scored}
    counts = Counter(given.values())
    kinds = [category for category in Category if counts[category]]
    newly = net_losses(scored, given, labels)
    broken = sum(count for category, count in counts.items() if category.broken)
    harmed = broken + sum(newly.values())
    return Failures(
        task=task.name,
        examples=len(scored),
        unscored=len(cases) - len(scored),
        verdict=verdict(len(scored), broken, newly),
        harmed=part(harmed, len(scored)),
        broken=part(broken, harmed),
        categories={c: part(counts[c], len(scored)) for c in kinds},
        common=commons(labels),
        likelihoods=likelihoods(scored),
        samples={
            c: samples(task, [k for k in scored if given[k.example] is c], shown) for c in kinds
        },
        labels={case.example: given.get(case.example, Category.UNSCORED) for case in cases},
    )


def paired_cases(task: Task, intact: Sequence[Row], knocked_out: Sequence[Row]) -> list[Case]:
    """The examples in both sets, in the task's order."""
    before, after = ({row.number: row for row in rows} for rows in (intact, knocked_out))
    cases = []
    for example in sorted(before.keys() & after.keys()):
        first, second = answered(task, before[example]), answered(task, after[example])
        # A gold answer is only compared with written ones, and looking it up takes lm-eval long.
        wrote = first.text is not None
        gold = task.show(example, first.responses).gold if wrote else None
        cases.append(Case(example, tuple(task.requests(example)), gold, first, second))
    return cases


def answered(task: Task, row: Row) -> Answered:
    """A row's responses, read."""
    responses = responses_from_json(row.responses)
    judged = written(responses)
    if judged is not None and isinstance(task, Extracts):
        judged = task.extracted(row.number, responses)
    return Answered(responses, row.outcome, judged)


def prompts(task: Task, cases: Sequence[Case]) -> list[str]:
    """Every prompt of the task, asked here or not; none where the model does not write."""
    if not any(case.intact.text is not None for case in cases):
        return []
    requests = (request for example in range(task.size) for request in task.requests(example))
    return [request.prompt for request in requests if isinstance(request, Generate)]


def is_scored(case: Case) -> bool:
    """Whether there is a number for both."""
    return math.isfinite(case.intact.outcome) and math.isfinite(case.knocked_out.outcome)


def net_losses(
    cases: Sequence[Case], given: Mapping[int, Category], labels: Labels
) -> dict[Category, int]:
    """How many well-formed answers became wrong, less those that became right.

    Answers may change places without any harm to the capability. What became right is taken from
    the losses whose content is known first.
    """
    lost = Counter(
        given[case.example]
        for case in cases
        if given[case.example] in (Category.WRONG_CONTENT, Category.MISSED)
        and (labels.slack is not None or case.intact.outcome == 1)
        and labels.worse(case)
    )
    gained = sum(given[c.example] is Category.RIGHT and labels.better(c) for c in cases)
    content = max(0, lost[Category.WRONG_CONTENT] - gained)
    rest = max(0, gained - lost[Category.WRONG_CONTENT])
    missed = max(0, lost[Category.MISSED] - rest)
    return {Category.WRONG_CONTENT: content, Category.MISSED: missed}


def verdict(examples: int, broken: int, newly: Mapping[Category, int]) -> str | None:
    """What the harm says of the model; see `Failures`."""
    harmed = broken + sum(newly.values())
    if not examples:
        return None
    if harmed <= MARGIN * examples:
        return "unharmed"
    if harmed < FEWEST or newly[Category.MISSED] > (1 - MOSTLY) * harmed:
        return None
    share = broken / harmed
    if share >= MOSTLY:
        return "speech"
    return "capability" if share <= 1 - MOSTLY else "mixed"


def part(count: int, whole: int) -> FailureShare:
    """A count as a share of a whole."""
    if not whole:
        return FailureShare(count, None, None, None)
    interval = stats.binomtest(count, whole).proportion_ci(0.95, method="wilson")
    return FailureShare(count, count / whole, float(interval.low), float(interval.high))


def commons(labels: Labels) -> list[Common]:
    """The answers and choices that are given far too often."""
    answers = [Common(f.answer, None, f.count, f.share, f.usual) for f in labels.answers]
    return answers + [
        Common(found.answer + 1, choices, found.count, found.share, found.usual)
        for choices, overused in labels.picks.items()
        for found in overused
    ]


def likelihoods(cases: Sequence[Case]) -> Likelihoods | None:
    """How likely texts were, and how evenly choices; None where nothing was scored."""
    pairs = [
        (case.intact, case.knocked_out) for case in cases if case.intact.likelihood is not None
    ]
    if not pairs:
        return None
    nats = [mean(answer.likelihood for answer in answers) for answers in zip(*pairs, strict=True)]
    choices = [pair for pair in pairs if len(pair[0].responses) > 1]
    even = [mean(map(evenness, answers)) for answers in zip(*choices, strict=True)]
    return Likelihoods((nats[0], nats[1]), (even[0], even[1]) if choices else None)


def evenness(answer: Answered) -> float:
    """The entropy of the choices, by their summed log-probabilities, over its greatest value."""
    scored = [response.logprob for response in answer.responses if isinstance(response, Scored)]
    logs = log_softmax(scored)
    return float(-(np.exp(logs) * logs).sum() / math.log(len(scored)))


def samples(task: Task, cases: Sequence[Case], shown: int) -> list[Sample]:
    """The first of these cases in words."""
    found = []
    for case in cases[:shown]:
        before, after = (
            task.show(case.example, answer.responses) for answer in (case.intact, case.knocked_out)
        )
        found.append(Sample(case.example, before.prompt, before.gold, before.answer, after.answer))
    return found


def as_lists(told: Likelihoods | None) -> dict[str, Any] | None:
    """Likelihoods as JSON keeps them, by what was knocked out."""
    if told is None:
        return None
    names = ("intact", "knocked_out")
    even = None if told.evenness is None else dict(zip(names, told.evenness, strict=True))
    return {"nats": dict(zip(names, told.nats, strict=True)), "evenness": even}
