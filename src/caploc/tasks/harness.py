"""lm-evaluation-harness tasks and groups as caploc asks them."""

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

from lm_eval.api.group import Group

from caploc.errors import BadOption
from caploc.tasks.leaf import LIKELIHOOD_METRICS, PAIR_METRICS, Leaf
from caploc.tasks.requests import Generate, LogLikelihood, Request, Response, Rolling, Scored
from caploc.tasks.task import Score, Shown


class HarnessTask:
    """An lm-eval task or group as caploc asks it; examples of a group are numbered through."""

    def __init__(
        self,
        name: str,
        leaves: Sequence[Leaf],
        group: Group | None = None,
        outcome_kind: str = "metric",
    ) -> None:
        """Join the leaves.

        Raises:
            BadOption: if log-probabilities are asked of a task without gold answers.
        """
        self.name, self.leaves, self.group, self.outcome_kind = name, leaves, group, outcome_kind
        self.places = [(leaf, doc) for leaf in leaves for doc in range(len(leaf.instances))]
        self.metric = "logprob" if outcome_kind == "logprob" else leaves[0].metric
        self.higher_is_better = outcome_kind == "logprob" or leaves[0].higher_is_better
        self.version = digest([leaf.definition() for leaf in leaves])
        self.executes_code = any(leaf.executes_code for leaf in leaves)
        self.keys: dict[int, str] = {}
        if len({(leaf.metric, leaf.filter, leaf.higher_is_better) for leaf in leaves}) > 1:
            raise BadOption(
                f"The tasks of {name} are scored by different metrics "
                f"({', '.join(sorted({leaf.metric for leaf in leaves}))}); name one that all have "
                "with --metric, or choose one of its tasks."
            )
        if outcome_kind == "logprob":
            self.places[0][0].gold_request(0)

    def in_metric(self) -> "HarnessTask":
        """The same task with its own metric as the outcome."""
        if self.outcome_kind == "metric":
            return self
        return HarnessTask(self.name, self.leaves, self.group)

    def in_likelihood(self) -> "HarnessTask | None":
        """The same task with the log-probability of the right answer as the outcome, if it has any.

        A perplexity is one already: it is None here too.
        """
        if self.outcome_kind == "logprob":
            return self
        if self.metric in LIKELIHOOD_METRICS:
            return None
        try:
            return HarnessTask(self.name, self.leaves, self.group, "logprob")
        except BadOption:
            return None

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.places)

    @cached_property
    def chance(self) -> float:
        """The accuracy of guessing among the choices offered; 0 where there are none."""
        if self.outcome_kind != "metric" or not self.metric.startswith("acc"):
            return 0.0
        counts = [len(leaf.requests(doc)) for leaf, doc in self.places]
        return sum(1 / count if count > 1 else 0.0 for count in counts) / max(len(counts), 1)

    def requests(self, example: int) -> tuple[Request, ...]:
        """What must be asked for one row."""
        leaf, doc = self.places[example]
        if self.outcome_kind == "logprob":
            return (leaf.gold_request(doc),)
        return leaf.requests(doc)

    def key(self, example: int) -> str:
        """A digest of the requests and of the document they are judged by.

        Every row asks for it, and lm-eval compiles its templates anew each time: it is kept.
        """
        if example not in self.keys:
            leaf, doc = self.places[example]
            asked = [[type(r).__name__, repr(r)] for r in self.requests(example)]
            document = leaf.instances[doc][0].doc
            right = leaf.task.doc_to_target(document)
            self.keys[example] = digest([leaf.name, asked, document, right, leaf.choices(doc)])
        return self.keys[example]

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """The per-example result: the metric's own, or the mean log-probability of a token."""
        leaf, doc = self.places[example]
        if self.outcome_kind == "logprob":
            (scored,) = responses
            assert isinstance(scored, Scored)
            return scored.logprob / max(scored.tokens, 1)
        return leaf.item(doc, responses)

    def outcome(self, item: Any) -> float:
        """A number that is better when higher.

        A (log-likelihood, length) pair becomes log-likelihood per unit of length, a
        (gold, predicted) pair 1 where they agree, a list of numbers its mean; anything else is
        what the task's aggregate makes of this item alone.

        Raises:
            BadOption: if there is no such number.
        """
        pair = isinstance(item, (list, tuple)) and len(item) == 2
        if self.metric in LIKELIHOOD_METRICS:
            return float(item[0]) / max(float(item[1]), 1.0) if pair else float(item)
        if pair and self.metric in PAIR_METRICS:
            return float(item[0] == item[1])
        value = single(self.leaves[0], item)
        return value if self.higher_is_better else -value

    def first(self, limit: int | None) -> list[int]:
        """The examples of a final score: the first `limit` of every leaf, as lm-eval counts."""
        taken: dict[str, int] = {}
        chosen = []
        for example, (leaf, _) in enumerate(self.places):
            taken[leaf.name] = taken.get(leaf.name, 0) + 1
            if limit is None or taken[leaf.name] <= limit:
                chosen.append(example)
        return chosen

    def score(self, examples: Sequence[int], items: Sequence[Any]) -> Score:
        """The task's own aggregate; a group's as the group defines it."""
        if self.outcome_kind == "logprob":
            return mean_score(items)
        by_leaf: dict[str, list[Any]] = {leaf.name: [] for leaf in self.leaves}
        for example, item in zip(examples, items, strict=True):
            by_leaf[self.places[example][0].name].append(item)
        if self.group is None and len(self.leaves) == 1:
            return Score(*self.leaves[0].aggregate(items), len(items))
        metrics = {}
        for leaf in self.leaves:
            if by_leaf[leaf.name]:
                value, stderr = leaf.aggregate(by_leaf[leaf.name])
                metrics[leaf.name] = leaf_metrics(leaf, value, stderr, len(by_leaf[leaf.name]))
        return self.group_score(metrics, len(items))

    def group_score(self, metrics: dict[str, dict[str, Any]], examples: int) -> Score:
        """Aggregate leaf scores as the group says, or as their plain mean if it says nothing."""
        leaf = self.leaves[0]
        value_key, stderr_key = metric_keys(leaf)
        aggregated = self.group.aggregate(metrics) if self.group else {}
        value, stderr = aggregated.get(value_key), aggregated.get(stderr_key)
        if value is None:
            value, stderr = mean_of_scores(
                [metric[value_key] for metric in metrics.values()],
                [known(metric[stderr_key]) for metric in metrics.values()],
            )
        return Score(value, known(stderr), examples)

    def show(self, example: int, responses: Sequence[Response]) -> Shown:
        """Prompt, gold answer and the model's answer."""
        leaf, doc = self.places[example]
        first, *_ = self.requests(example)
        prompt = {Generate: "prompt", LogLikelihood: "context", Rolling: "text"}[type(first)]
        gold = None if isinstance(first, Rolling) else leaf.gold(doc)
        return Shown(getattr(first, prompt), gold, leaf.answer(doc, responses))

    def extracted(self, example: int, responses: Sequence[Response]) -> str | None:
        """What the task's filter takes out of the answer, None if it finds nothing."""
        leaf, doc = self.places[example]
        return leaf.extracted(doc, responses)


def metric_keys(leaf: Leaf) -> tuple[str, str]:
    """The names under which lm-eval's groups look up a leaf's score and standard error."""
    return f"{leaf.metric},{leaf.filter}", f"{leaf.metric}_stderr,{leaf.filter}"


def leaf_metrics(leaf: Leaf, value: Any, stderr: Any, examples: int) -> dict[str, Any]:
    """A leaf's results in the form that lm-eval's groups aggregate."""
    value_key, stderr_key = metric_keys(leaf)
    return {
        value_key: value,
        stderr_key: "N/A" if stderr is None else stderr,
        "sample_len": examples,
    }


def known(stderr: Any) -> float | None:
    """A standard error, None where lm-eval has none to give."""
    return float(stderr) if isinstance(stderr, float) else None


def mean_of_scores(
    scores: Sequence[float | None], stderrs: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """The plain mean of independent scores and its standard error; None where one is missing."""
    values = [score for score in scores if score is not None]
    errors = [stderr for stderr in stderrs if stderr is not None]
    if not values or len(values) < len(scores):
        return None, None
    mean = sum(values) / len(values)
    if len(errors) < len(values):
        return mean, None
    return mean, sum(error**2 for error in errors) ** 0.5 / len(values)


def single(leaf: Leaf, item: Any) -> float:
    """One item as a number.

    Raises:
        BadOption: if the metric gives none for a single example.
    """
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
    count = len(items)
    if not count:
        return Score(None, None, 0)
    mean = sum(items) / count
    if count == 1:
        return Score(mean, None, 1)
    variance = sum((item - mean) ** 2 for item in items) / (count - 1)
    return Score(mean, (variance / count) ** 0.5, count)


def digest(value: Any) -> str:
    """A short digest of anything that JSON can write, equal on every machine."""
    text = json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()
