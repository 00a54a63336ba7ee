"""Tasks as caploc asks them: lm-eval's tasks and groups."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group

from caploc.errors import BadOption
from caploc.naming import is_file
from caploc.result import Score
from caploc.tasks.leaf import LIKELIHOOD_METRICS, PAIR_METRICS, Leaf
from caploc.tasks.task import Example, Metric, Request, Response, Scored, Task


class HarnessTask:
    """An lm-eval task or group as a `Task`; examples of a group are numbered through."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Leaf],
        group: Group | None = None,
        outcome_kind: str = "metric",
        places: Sequence[tuple[Leaf, int]] | None = None,
    ) -> None:
        """Number the examples of all leaves through; `places` are those to ask (None: all)."""
        self.name, self.leaves, self.group = name, leaves, group
        every = ((leaf, doc) for leaf in leaves for doc in range(len(leaf.instances)))
        self.places = [*every] if places is None else [*places]
        self.version = digest_json([leaf.definition() for leaf in leaves])
        self.keys: dict[int, str] = {}
        if len({(leaf.metric, leaf.filter, leaf.higher_is_better) for leaf in leaves}) > 1:
            raise BadOption(
                f"The tasks of {name} are scored by different metrics "
                f"({', '.join(sorted({leaf.metric for leaf in leaves}))}); name one that all have "
                "with --metric, or choose one of its tasks."
            )
        runs_code = any(leaf.executes_code for leaf in leaves)
        if outcome_kind == "metric":
            higher, guessed = leaves[0].higher_is_better, self.guess()
            self.metric = Metric(leaves[0].metric, outcome_kind, higher, guessed, runs_code)
        else:
            self.metric = Metric(outcome_kind, outcome_kind, runs_code=runs_code)
            self.places[0][0].gold_request(0)

    def in_metric(self) -> "HarnessTask":
        return self if self.metric.kind == "metric" else self.with_outcome("metric")

    def with_outcome(self, kind: str) -> "HarnessTask":
        """Return the task with outcomes of another kind; raises BadOption if it has none."""
        return HarnessTask(self.name, self.leaves, self.group, kind, self.places)

    def without(self, examples: Collection[int]) -> "HarnessTask":
        places = [place for number, place in enumerate(self.places) if number not in examples]
        return HarnessTask(self.name, self.leaves, self.group, self.metric.kind, places)

    def example(self, example: int) -> Example:
        leaf, doc = self.places[example]
        return leaf.example(doc)

    @property
    def size(self) -> int:
        return len(self.places)

    def guess(self) -> float:
        """Return the mean outcome of guessing; 0 where nothing is offered to guess among."""
        if not self.leaves[0].metric.startswith("acc"):
            return 0.0
        return sum(leaf.guess(doc) for leaf, doc in self.places) / max(self.size, 1)

    def requests(self, example: int) -> tuple[Request, ...]:
        leaf, doc = self.places[example]
        if self.metric.kind == "logprob":
            return (leaf.gold_request(doc),)
        return leaf.requests(doc)

    def key(self, example: int) -> str:
        # Every row asks for it, and lm-eval compiles its templates anew each time: it is kept.
        if example not in self.keys:
            leaf, doc = self.places[example]
            asked = [[type(r).__name__, repr(r)] for r in self.requests(example)]
            document = leaf.docs[doc]
            right = leaf.task.doc_to_target(document)
            self.keys[example] = digest_json([leaf.name, asked, document, right, leaf.choices(doc)])
        return self.keys[example]

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        leaf, doc = self.places[example]
        if self.metric.kind == "logprob":
            (scored,) = responses
            assert isinstance(scored, Scored)
            return scored.logprob / max(scored.tokens, 1)  # of a token, on average
        return leaf.item(doc, responses)

    def outcome(self, item: Any) -> float:
        """Return a number that is better when higher.

        A (log-likelihood, length) pair becomes log-likelihood per unit of length, a (gold,
        predicted) pair 1 where they agree, a list of numbers its mean; anything else is what the
        task's aggregate makes of this item alone. Raises BadOption if there is no such number.
        """
        pair = isinstance(item, (list, tuple)) and len(item) == 2
        if self.metric.name in LIKELIHOOD_METRICS:
            return float(item[0]) / max(float(item[1]), 1.0) if pair else float(item)
        if pair and self.metric.name in PAIR_METRICS:
            return float(item[0] == item[1])
        value = to_number(self.leaves[0], item)
        return value if self.metric.higher_is_better else -value

    def first(self, limit: int | None) -> list[int]:
        # the first `limit` of every leaf, as lm-eval counts, of those that are left
        found, count = list[int](), Counter[str]()
        for number, (leaf, _) in enumerate(self.places):
            count[leaf.name] += 1
            if limit is None or count[leaf.name] <= limit:
                found.append(number)
        return found

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        if self.metric.kind != "metric":
            return mean_score(items)
        by_leaf: dict[str, list[Any]] = {leaf.name: [] for leaf in self.leaves}
        for example, item in zip(examples, items, strict=True):
            by_leaf[self.places[example][0].name].append(item)
        if self.group is None and len(self.leaves) == 1:
            return Score.of(*self.leaves[0].aggregate(items), len(items))
        # the names under which lm-eval's groups look up a score and its standard error
        value_key = f"{self.metric.name},{self.leaves[0].filter}"
        stderr_key = f"{self.metric.name}_stderr,{self.leaves[0].filter}"
        metrics: dict[str, dict[str, Any]] = {}
        for leaf in self.leaves:
            if own := by_leaf[leaf.name]:
                value, stderr = leaf.aggregate(own)
                error = "N/A" if stderr is None else stderr
                metrics[leaf.name] = {value_key: value, stderr_key: error, "sample_len": len(own)}
        aggregated = self.group.aggregate(metrics) if self.group else {}
        value, stderr = aggregated.get(value_key), aggregated.get(stderr_key)
        if value is None:  # the plain mean, if the group says nothing
            value, stderr = mean_of_scores(
                [metric[value_key] for metric in metrics.values()],
                [read_stderr(metric[stderr_key]) for metric in metrics.values()],
            )
        return Score.of(value, read_stderr(stderr), len(items))


def mean_of_scores(
    scores: Sequence[float | None], stderrs: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """Return the mean of independent scores and its standard error; None where one is missing."""
    values = [score for score in scores if score is not None]
    errors = [stderr**2 for stderr in stderrs if stderr is not None]
    if not values or len(values) < len(scores):
        return None, None
    known = len(errors) == len(values)
    return sum(values) / len(values), sum(errors) ** 0.5 / len(values) if known else None


def read_stderr(stderr: Any) -> float | None:
    """Return a standard error, None where lm-eval has none to give."""
    return float(stderr) if isinstance(stderr, float) else None


def to_number(leaf: Leaf, item: Any) -> float:
    """Turn one item into a number; raises BadOption if the metric gives none for it alone."""
    try:
        if isinstance(item, (list, tuple)) and all(isinstance(part, (int, float)) for part in item):
            return sum(map(float, item)) / len(item)
        return float(leaf.aggregation([item]) if isinstance(item, (list, tuple)) else item)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise BadOption(
            f"Metric {leaf.metric} of task {leaf.name} gives no number for a single example; "
            f"choose another with --metric (it has {', '.join(leaf.task.aggregation())})."
        ) from error


def mean_score(items: Sequence[float]) -> Score:
    """Plain mean with its standard error."""
    if not items:
        return Score.of(None, None, 0)
    mean, count = sum(items) / len(items), len(items)
    squares = sum((item - mean) ** 2 for item in items)
    stderr = (squares / (count - 1) / count) ** 0.5 if count > 1 else None
    return Score.of(mean, stderr, count)


def digest_data(tasks: Sequence[Task]) -> dict[str, str]:
    """Digest all examples of those tasks that are files, or read some, which may change."""
    own = [task for task in tasks if is_file(Path(task.name)) or reads_files(task)]
    return {task.name: digest_json([task.key(e) for e in range(task.size)]) for task in own}


def reads_files(task: Task) -> bool:
    """Tell whether a task's definition names the files of its examples."""
    leaves = task.leaves if isinstance(task, HarnessTask) else ()
    return any("data_files" in (leaf.task.config.dataset_kwargs or {}) for leaf in leaves)


def digest_json(value: Any) -> str:
    """Return a short digest of anything that JSON can write, equal on every machine."""
    text = json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()
