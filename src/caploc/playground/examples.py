"""Examples of a task: drawn for the page, asked, and scored as the task scores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caploc.playground.answers import SIDES, Event
from caploc.report.wording import ScoreKind, unit_of_metric
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request, Response, Scored, Task


@dataclass(frozen=True)
class DrawnExample:
    """One example of a task; `judges_code` lets the sandbox run programs that the model wrote."""

    task: Task
    number: int
    judges_code: bool = False

    @property
    def requests(self) -> list[Request]:
        """Return what the task asks of the model."""
        return list(self.task.requests(self.number))

    @property
    def prompt(self) -> str:
        """Return what the model reads before its answer."""
        first = self.requests[0]
        if isinstance(first, Generate):
            return first.prompt
        return first.context if isinstance(first, LogLikelihood) else ""

    @property
    def gold(self) -> str | None:
        """Return the right answer in words, None where there is none."""
        nothing: list[Response] = [
            Generated("", 0) if isinstance(request, Generate) else Scored(0.0, False, 0)
            for request in self.requests
        ]
        return self.task.show(self.number, nothing).gold

    @property
    def choices(self) -> list[str]:
        """List what tells the requests apart: the answers offered, or the contexts of one."""
        asked = [request for request in self.requests if isinstance(request, LogLikelihood)]
        if len({request.context for request in asked}) > 1:
            return [request.context for request in asked]
        return [request.continuation for request in asked]

    def describe(self) -> Event:
        """Return the example as the page shows it before it is asked."""
        first = self.requests[0]
        return {
            "task": self.task.name,
            "number": self.number,
            "size": self.task.size,
            "metric": self.task.metric,
            "kind": "written" if isinstance(first, Generate) else "read",
            "prompt": self.prompt,
            "gold": self.gold,
            "choices": self.choices,
        }

    def verdict(self, responses: dict[str, Sequence[Response]]) -> Event:
        """Return the gold answer and each side's score."""
        if self.task.executes_code and not self.judges_code:
            why = (
                "The answer is a program, which is shown and not run; start with --allow-code to "
                "have it judged in the sandbox."
            )
            return {"event": "verdict", "gold": self.gold, "withheld": why}
        return {
            "event": "verdict",
            "gold": self.gold,
            "metric": self.task.metric,
            **{side: self.judge(responses[side]) for side in SIDES},
        }

    def judge(self, responses: Sequence[Response]) -> dict[str, Any]:
        """One side's answer and its score, in words and as right, wrong or neither."""
        item = self.task.item(self.number, responses)
        score = self.task.score([self.number], [item]).score
        unit = unit_of_metric(self.task.metric, [score], self.task.higher_is_better)
        mark = None
        if unit.kind is ScoreKind.SHARE and score in (0, 1):
            mark = "right" if score == 1 else "wrong"
        return {
            "answer": self.task.show(self.number, responses).answer,
            "score": score,
            "said": unit.score(score),
            "mark": mark,
        }
