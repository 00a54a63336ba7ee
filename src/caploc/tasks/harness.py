"""lm-evaluation-harness tasks: requests by lm-eval's own code, filters and metrics per row."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from inspect import getsource
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import stderr_for_metric
from lm_eval.api.task import Task as HarnessLeaf

from caploc.errors import BadData, BadOption, UserError
from caploc.lookup import unknown
from caploc.tasks.requests import (
    Generate,
    Generated,
    LogLikelihood,
    Request,
    Response,
    Rolling,
    Scored,
    options_json,
)
from caploc.tasks.task import Score, Shown

BOOTSTRAPS = 1000  # for the standard error of metrics that have no formula
# The metrics of the heads paper where they are not the first that the task lists.
PREFERRED = {
    "gsm8k": ("exact_match", "flexible-extract"),
    "hellaswag": ("acc_norm", "none"),
    "arc_challenge": ("acc_norm", "none"),
}
# Metrics whose items are log-likelihoods although the metric itself is better when lower.
LIKELIHOOD_METRICS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}

ChatTemplate = Callable[..., str]


class Leaf:
    """One lm-eval task: its documents, requests, filter and metric."""

    def __init__(self, task: HarnessLeaf, metric: str | None, chat: ChatTemplate | None) -> None:
        """Build every request, in lm-eval's own order (few-shot draws depend on it).

        Raises:
            BadData: if there is no example, or one lacks what the task reads.
            UnknownName: if the task has no such metric or filter.
            BadOption: if the task samples its answers.
        """
        self.task, self.name = task, task.task_name
        self.metric, self.filter = choose_metric(task, metric)
        self.chat = chat
        self.instances = build(task, chat)
        self.higher_is_better = bool(task.higher_is_better().get(self.metric, True))

    def requests(self, example: int) -> tuple[Request, ...]:
        """The example's requests, one for each choice."""
        return tuple(as_request(instance) for instance in self.instances[example])

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """The chosen metric of one example, through the chosen filter."""
        instances = [
            replace_response(instance, response)
            for instance, response in zip(self.instances[example], responses, strict=True)
        ]
        for ensemble in self.task._filters:
            if ensemble.name == self.filter:
                ensemble.apply(instances)
        filtered = [instance.filtered_resps[self.filter] for instance in instances]
        return self.task.process_results(instances[0].doc, filtered)[self.metric]

    def aggregate(self, items: Sequence[Any]) -> tuple[float | None, float | None]:
        """The metric over items, and its standard error where lm-eval has one."""
        if not items:
            return None, None
        aggregation = self.task.aggregation()[self.metric]
        stderr = stderr_for_metric(aggregation, bootstrap_iters=BOOTSTRAPS)
        error = float(stderr(items)) if stderr and len(items) > 1 else None
        return float(aggregation(items)), error

    def gold(self, example: int) -> str | None:
        """The right answer in words, None where the task has none."""
        doc = self.instances[example][0].doc
        target = self.task.doc_to_target(doc)
        if isinstance(target, list):
            target = target[0] if target else ""
        if isinstance(target, int):
            choices = self.task.doc_to_choice(doc)
            return str(choices[target]) if 0 <= target < len(choices) else None
        return str(target) or None

    def gold_request(self, example: int) -> LogLikelihood | Rolling:
        """The request whose log-probability says how sure the model is of the right answer.

        Raises:
            BadOption: if the task has no right answer.
        """
        first, *_ = self.requests(example)
        if isinstance(first, Rolling):
            return first
        gold = self.gold(example)
        if gold is None:
            raise BadOption(
                f"Task {self.name} has no gold answer whose log-probability could be taken; "
                "use --outcome metric."
            )
        if isinstance(first, Generate):
            delimiter = "" if self.chat else self.task.config.target_delimiter
            return LogLikelihood(first.prompt, delimiter + gold)
        choices = self.requests(example)
        if len(choices) == 1:
            return first
        target = self.task.doc_to_target(self.instances[example][0].doc)
        index = target if isinstance(target, int) else self.choices(example).index(gold)
        chosen = choices[index]
        assert isinstance(chosen, LogLikelihood)
        return chosen

    def definition(self) -> list[Any]:
        """What turns responses into an outcome, besides the examples themselves."""
        config = self.task.config
        scorer = getattr(config, "process_results", None)
        source = getsource(scorer) if callable(scorer) else scorer
        filters = getattr(config, "filter_list", None)
        return [self.name, self.task.VERSION, self.metric, self.filter, filters, source]

    def choices(self, example: int) -> list[str]:
        """The answers offered, empty where the model writes its own."""
        if self.task.config.doc_to_choice is None:
            return []
        return [str(choice) for choice in self.task.doc_to_choice(self.instances[example][0].doc)]

    def answer(self, example: int, responses: Sequence[Response]) -> str:
        """What the model said or picked."""
        first = responses[0]
        if isinstance(first, Generated):
            return first.text
        if len(responses) == 1:
            greedy = " (its first choice)" if first.greedy else ""
            return f"log-probability {first.logprob:.2f}{greedy}"
        likelihoods = [r.logprob for r in responses if isinstance(r, Scored)]
        best = likelihoods.index(max(likelihoods))
        choices = self.choices(example)
        return choices[best] if best < len(choices) else f"choice {best}"


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
        if outcome_kind == "logprob":
            self.places[0][0].gold_request(0)

    def in_metric(self) -> "HarnessTask":
        """The same task with its own metric as the outcome."""
        if self.outcome_kind == "metric":
            return self
        return HarnessTask(self.name, self.leaves, self.group)

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.places)

    def requests(self, example: int) -> tuple[Request, ...]:
        """What must be asked for one row."""
        leaf, doc = self.places[example]
        if self.outcome_kind == "logprob":
            return (leaf.gold_request(doc),)
        return leaf.requests(doc)

    def key(self, example: int) -> str:
        """A digest of the requests and of the document they are judged by."""
        leaf, doc = self.places[example]
        asked = [[type(r).__name__, repr(r)] for r in self.requests(example)]
        return digest([leaf.name, asked, leaf.instances[doc][0].doc])

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

        A (log-likelihood, length) pair becomes log-likelihood per unit of length; a
        (gold, predicted) pair becomes 1 where they agree.
        """
        if isinstance(item, (list, tuple)):
            first, second = item
            if self.metric in LIKELIHOOD_METRICS:
                return float(first) / max(float(second), 1.0)
            return float(first == second)
        turned = not self.higher_is_better and self.metric not in LIKELIHOOD_METRICS
        return -float(item) if turned else float(item)

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
        value = aggregated.get(value_key)
        stderr = aggregated.get(stderr_key)
        if value is None:
            values = [m[value_key] for m in metrics.values()]
            value = sum(values) / len(values) if values else None
        return Score(value, stderr if isinstance(stderr, float) else None, examples)

    def show(self, example: int, responses: Sequence[Response]) -> Shown:
        """Prompt, gold answer and the model's answer."""
        leaf, doc = self.places[example]
        first, *_ = self.requests(example)
        prompt = {Generate: "prompt", LogLikelihood: "context", Rolling: "text"}[type(first)]
        gold = None if isinstance(first, Rolling) else leaf.gold(doc)
        return Shown(getattr(first, prompt), gold, leaf.answer(doc, responses))


def build(task: HarnessLeaf, chat: ChatTemplate | None) -> list[list[Instance]]:
    """All instances of a task, grouped by document.

    Raises:
        BadData: if there is none, or a document lacks what the task reads.
    """
    try:
        task.build_all_requests(apply_chat_template=chat is not None, chat_template=chat)
    except UserError:
        raise
    except Exception as error:  # templates and user functions fail in ways of their own
        raise BadData(
            f"The examples of task {task.task_name} do not fit its definition "
            f"({type(error).__name__}: {error}); their columns are "
            f"{', '.join(map(str, task.features)) if hasattr(task, 'features') else 'unknown'}."
        ) from error
    grouped: dict[int, list[Instance]] = {}
    for instance in task.instances:
        grouped.setdefault(instance.doc_id, []).append(instance)
    for instances in grouped.values():
        instances.sort(key=lambda instance: instance.idx)
        check_greedy(task.task_name, instances[0])
    return list(grouped.values())


def check_greedy(name: str, instance: Instance) -> None:
    """Refuse a task that samples: one mask must give one answer.

    Raises:
        BadOption: if it does.
    """
    if instance.request_type != "generate_until":
        return
    options = instance.args[1]
    if options.get("do_sample") and float(options.get("temperature", 1.0)) > 0:
        raise BadOption(
            f"Task {name} samples its answers (do_sample: true); caploc decodes greedily. Copy "
            "its YAML, set generation_kwargs.do_sample to false, and pass the file as the task."
        )


def as_request(instance: Instance) -> Request:
    """One lm-eval instance as a request.

    Raises:
        BadOption: for a kind that caploc does not ask (images, sound).
    """
    arguments = instance.args
    match instance.request_type, arguments:
        case "generate_until", (str(prompt), dict(options)):
            return Generate(prompt, options_json(options))
        case "loglikelihood", (str(context), str(continuation)):
            return LogLikelihood(context, continuation)
        case "loglikelihood_rolling", (str(text),):
            return Rolling(text)
    raise BadOption(
        f"Task {instance.task_name} asks {instance.request_type!r} with {len(arguments)} parts; "
        "caploc asks text only (generate_until, loglikelihood, loglikelihood_rolling)."
    )


def replace_response(instance: Instance, response: Response) -> Instance:
    """A copy of the instance that holds this response, as lm-eval's model would have left it."""
    raw: Any
    if isinstance(response, Generated):
        raw = response.text
    elif instance.request_type == "loglikelihood_rolling":
        raw = response.logprob
    else:
        raw = (response.logprob, response.greedy)
    repeats = instance.repeats or 1
    return replace(instance, resps=[raw] * repeats, filtered_resps={}, metadata=instance.metadata)


def choose_metric(task: HarnessLeaf, wanted: str | None) -> tuple[str, str]:
    """Metric and filter: those named (`metric` or `metric,filter`), the paper's, or the first.

    Raises:
        UnknownName: if the task has no such metric or filter.
    """
    metrics = list(task.aggregation())
    filters = [ensemble.name for ensemble in task._filters]
    default = PREFERRED.get(task.task_name, (metrics[0], filters[0]))
    metric, _, chosen = wanted.partition(",") if wanted else (default[0], "", default[1])
    if metric not in metrics:
        raise unknown(metrics, metric, f"metric of task {task.task_name}")
    chosen = chosen or (default[1] if metric == default[0] else filters[0])
    if chosen not in filters:
        raise unknown(filters, chosen, f"filter of task {task.task_name}")
    return metric, chosen


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
