"""What a task's examples are to neurons: the tokens of prompt and gold answer, and which are kept.

Neurons are found on a task's training examples where it has a training split, and judged on its
evaluation examples. A task without one gives every other evaluation example to finding, and the
rest to judging: no example is on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from caploc import designs
from caploc.engine.encoding import RequestEncoder, Span
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

    def spans(self, wording: RequestEncoder) -> list[Span]:
        """Prompt and gold answer of the finding examples as tokens."""
        return as_spans(self.finding, self.find_on, wording)

    def lessons(self, wording: RequestEncoder) -> list[Span]:
        """The same to learn from: an answer that the model writes ends as the task ends it.

        Without its end a tuned model would answer rightly and go on.
        """
        found: list[Span] = []
        for example in self.find_on:
            (asked,) = self.finding.requests(example)
            assert not isinstance(asked, Generate)
            if isinstance(asked, LogLikelihood) and (end := self.end(wording)):
                asked = replace(asked, continuation=ended(asked.continuation, end))
            found += wording.spans(asked)
        return found

    def end(self, wording: RequestEncoder) -> str:
        """What ends a written answer: the task's first stop string, else the model's end of text.

        Empty where answers are chosen and not written.
        """
        first, *_ = self.judging.requests(self.judge_on[0])
        if not isinstance(first, Generate):
            return ""
        return wording.prompt(first).stops[0]

    def judged_spans(self, wording: RequestEncoder, limit: int | None) -> list[Span]:
        """The same of the first judging examples."""
        return as_spans(self.gold, self.judged(limit), wording)

    def judged(self, limit: int | None) -> list[int]:
        """The first judging examples."""
        return self.judge_on[:limit]


def ended(answer: str, end: str) -> str:
    """The answer and its end, of which the answer may already hold the beginning."""
    held = next(count for count in range(len(end), -1, -1) if answer.endswith(end[:count]))
    return answer + end[held:]


def as_spans(task: Task, examples: Sequence[int], wording: RequestEncoder) -> list[Span]:
    """Prompt and gold answer of some examples as tokens, windows of long texts apart."""
    found: list[Span] = []
    for example in examples:
        for request in task.requests(example):
            assert not isinstance(request, Generate)
            found += wording.spans(request)
    return found


def source(
    model: ModelOptions, name: str, options: TaskOptions, examples: int | None, seed: int
) -> Source:
    """A task's examples, `examples` of them drawn from the seed for finding (None: all).

    Raises:
        UserError: if the task cannot be loaded, or has no gold answers.
        BadData: if fewer than 2 examples are left for finding or for judging.
    """
    gold = replace(options, outcome="logprob", metric=None)
    (judging,) = model.tasks([name], replace(options, outcome="metric"))
    (told,) = model.tasks([name], gold)
    everything = list(range(judging.size))
    finding, pool, judge_on = told, everything[::2], everything[1::2]
    if can_train(name, options):
        (finding,) = model.tasks([name], replace(gold, training=True))
        pool, judge_on = list(range(finding.size)), everything
    if min(len(pool), len(judge_on)) < 2:
        raise BadData(
            f"Task {name} has {judging.size} examples; neurons need at least 2 to be found on and "
            "2 to be judged on."
        )
    size = len(pool) if examples is None else min(examples, len(pool))
    drawn = designs.draw_examples(len(pool), size, seed=seed)
    return Source(name, finding, [pool[each] for each in drawn], judging, told, judge_on)
