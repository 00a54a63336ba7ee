"""What a task's examples are to neurons: the tokens of prompt and gold answer, and which are kept.

Neurons are found on a task's training examples where it has a training split, and judged on its
evaluation examples. A task without one gives every other evaluation example to finding, and the
rest to judging: no example is on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caploc import designs
from caploc.engine.wording import Span, Wording
from caploc.errors import BadData
from caploc.tasks.catalog import TaskOptions, can_train
from caploc.tasks.requests import Generate, LogLikelihood
from caploc.tasks.task import Task
from caploc.workbench import ModelOptions


@dataclass(frozen=True)
class Source:
    """A task's examples on both sides.

    `finding` asks for the log-probability of gold answers, of the examples `find_on`. `judging` is
    the task itself and `gold` the log-probability of its gold answers; `judge_on` are the examples
    of both that no finding sees.
    """

    name: str
    finding: Task
    find_on: list[int]
    judging: Task
    gold: Task
    judge_on: list[int]

    def spans(self, wording: Wording) -> list[Span]:
        """Encode prompt and gold answer of the finding examples."""
        return _as_spans(self.finding, self.find_on, wording)

    def lessons(self, wording: Wording) -> list[Span]:
        """Encode the same to learn from: an answer that the model writes ends as the task ends it.

        Without its end a tuned model would answer rightly and go on.
        """
        found: list[Span] = []
        for example in self.find_on:
            (asked,) = self.finding.requests(example)
            assert not isinstance(asked, Generate)
            if isinstance(asked, LogLikelihood) and (end := self.end(wording)):
                asked = replace(asked, continuation=with_end(asked.continuation, end))
            found += wording.spans(asked)
        return found

    def end(self, wording: Wording) -> str:
        """Find what ends a written answer: the first stop string, else the model's end of text.

        Empty where answers are chosen and not written.
        """
        first, *_ = self.judging.requests(self.judge_on[0])
        return wording.prompt(first).stops[0] if isinstance(first, Generate) else ""

    def judged_spans(self, wording: Wording, limit: int | None) -> list[Span]:
        """Encode prompt and gold answer of the first judging examples."""
        return _as_spans(self.gold, self.judged(limit), wording)

    def judged(self, limit: int | None) -> list[int]:
        return self.judge_on[:limit]


def with_end(answer: str, end: str) -> str:
    """Put its end to an answer that may already hold the beginning of that end."""
    held = next(count for count in range(len(end), -1, -1) if answer.endswith(end[:count]))
    return answer + end[held:]


def _as_spans(task: Task, examples: Sequence[int], wording: Wording) -> list[Span]:
    """Encode prompt and gold answer of some examples, windows of long texts apart."""
    found: list[Span] = []
    for example in examples:
        for request in task.requests(example):
            assert not isinstance(request, Generate)
            found += wording.spans(request)
    return found


def load_source(
    model: ModelOptions, name: str, options: TaskOptions, examples: int | None, seed: int
) -> Source:
    """Load a task's examples, `examples` of them drawn from the seed for finding (None: all).

    Raises:
        UserError: if the task cannot be loaded, or has no gold answers.
        BadData: if fewer than 2 examples are left for finding or for judging.
    """
    by_gold = replace(options, outcome="logprob", metric=None)
    (judging,) = model.tasks([name], replace(options, outcome="metric"))
    (gold,) = model.tasks([name], by_gold)
    everything = list(range(judging.size))
    finding, pool, judge_on = gold, everything[::2], everything[1::2]
    if can_train(name, options):
        (finding,) = model.tasks([name], replace(by_gold, training=True))
        pool, judge_on = list(range(finding.size)), everything
    if min(len(pool), len(judge_on)) < 2:
        raise BadData(
            f"Task {name} has {judging.size} examples; neurons need at least 2 to be found on and "
            "2 to be judged on."
        )
    size = len(pool) if examples is None else min(examples, len(pool))
    drawn = designs.draw_examples(len(pool), size, seed=seed)
    return Source(name, finding, [pool[each] for each in drawn], judging, gold, judge_on)
