"""Did the model lose the capability, or the ability to say anything at all?

A score falls alike when a model answers wrongly and when it repeats one word, answers every
question the same or finds every choice absurd. This module reads the answers: each gets a category
(`categories`), and the set a verdict.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from caploc.recovery.estimate import true_scores
from caploc.result import AnswerPair, Failures, Share
from caploc.store import Row
from caploc.tasks.task import Generate, Response, Task, responses_from_json
from caploc.validation import MARGIN
from caploc.validation.categories import BROKEN, Answered, Case, Category, Labels, written_text

MOSTLY = 2 / 3  # of the harm, for a verdict that names one kind
FEWEST = 5  # examples harmed, below which their kinds are no majority of anything


@runtime_checkable
class Extracts(Protocol):
    """A task that can say which part of a written answer its metric judges."""

    def extracted(self, example: int, responses: Sequence[Response]) -> str | None: ...


class LabelledFailures(Failures):
    """What became of a task's answers, with every example's category, `not scored` included."""

    labels: dict[int, Category] = Field(exclude=True)

    def plain(self) -> Failures:
        """Return what files keep: equal to what is read back from them."""
        return Failures(**{name: getattr(self, name) for name in Failures.model_fields})


def categorize_failures(
    task: Task, intact: Sequence[Row], knocked_out: Sequence[Row], shown: int = 3
) -> LabelledFailures:
    """Give every example that is in both sets of rows a category, and the set a verdict.

    The task must be the one that the rows were measured with. Of each category the first `shown`
    examples are kept to be shown, those first that lost something. Rows of other examples are left
    out.
    """
    cases = paired_cases(task, intact, knocked_out)
    scored = [c for c in cases if np.isfinite([c.intact.outcome, c.knocked_out.outcome]).all()]
    labels = Labels(scored, prompts(task, scored), by_length=task.metric == "acc_norm")
    given = {case.example: labels.of(case) for case in scored}
    lost_first = sorted(scored, key=lambda case: case.knocked_out.outcome >= case.intact.outcome)
    counts = Counter(given.values())
    kinds = [category for category in Category if counts[category]]
    newly = net_losses(scored, given, labels)
    broken = sum(count for category, count in counts.items() if category in BROKEN)
    harmed = broken + sum(newly.values())
    return LabelledFailures(
        task=task.name,
        examples=len(scored),
        unscored=len(cases) - len(scored),
        verdict=judge_harm(len(scored), broken, newly),
        harmed=part(harmed, len(scored)),
        broken=part(broken, harmed),
        categories={c.value: part(counts[c], len(scored), broken=c in BROKEN) for c in kinds},
        common=[*labels.answers, *chain(*labels.picks.values())],
        samples={
            c.value: [
                answer_pair(task, case.example, case.intact.responses, case.knocked_out.responses)
                for case in [each for each in lost_first if given[each.example] is c][:shown]
            ]
            for c in kinds
        },
        labels={case.example: given.get(case.example, Category.UNSCORED) for case in cases},
    )


def paired_cases(task: Task, intact: Sequence[Row], knocked_out: Sequence[Row]) -> list[Case]:
    """Pair the examples in both sets, in the task's order."""
    before, after = ({row.number: row for row in rows} for rows in (intact, knocked_out))
    cases = []
    for example in sorted(before.keys() & after.keys()):
        first, second = read_responses(task, before[example]), read_responses(task, after[example])
        # A gold answer is only compared with written ones, and looking it up takes lm-eval long.
        wrote = first.text is not None
        gold = task.show(example, first.responses).gold if wrote else None
        cases.append(Case(example, tuple(task.requests(example)), gold, first, second))
    return cases


def read_responses(task: Task, row: Row) -> Answered:
    """Read a row's responses."""
    responses = responses_from_json(row.responses)
    judged = written_text(responses)
    if judged is not None and isinstance(task, Extracts):
        judged = task.extracted(row.number, responses)
    return Answered(responses, row.outcome, judged)


def prompts(task: Task, cases: Sequence[Case]) -> list[str]:
    """List every prompt of the task, asked or not; none where the model does not write."""
    if not any(case.intact.text is not None for case in cases):
        return []
    requests = (request for example in range(task.size) for request in task.requests(example))
    return [request.prompt for request in requests if isinstance(request, Generate)]


def net_losses(
    cases: Sequence[Case], given: Mapping[int, Category], labels: Labels
) -> dict[Category, int]:
    """Count well-formed answers that became wrong, less those that became right.

    What became right is taken from the losses whose content is known first.
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


def judge_harm(examples: int, broken: int, newly: Mapping[Category, int]) -> str | None:
    """Say what the harm tells of the model.

    `unharmed`: harmed are at most `MARGIN` of the examples; `speech`: at least two thirds of the
    harm is broken answers; `capability`: at most one third is; `mixed`. None where that cannot be
    told: no example, fewer than `FEWEST` harmed, or more than a third of the harm lies in short
    gold texts of which only the likelihood is known (`missed`).
    """
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


def part(count: int, whole: int, **kind: bool) -> Share:
    """Give a count as a share of a whole."""
    if not whole:
        return Share(**kind, count=count, share=None, low=None, high=None)
    low, high = true_scores(count, whole)
    return Share(**kind, count=count, share=count / whole, low=low, high=high)


def answer_pair(
    task: Task, example: int, intact: Sequence[Response], cut: Sequence[Response], **more: Any
) -> AnswerPair:
    """Put an example in words, as answered before and after; `more` are further fields."""
    before, after = task.show(example, intact), task.show(example, cut)
    return AnswerPair(
        example=example,
        prompt=before.prompt,
        gold=before.gold,
        intact=before.answer,
        knocked_out=after.answer,
        **more,
    )
