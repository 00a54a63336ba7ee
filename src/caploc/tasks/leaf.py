"""One lm-eval task: its documents, its requests by lm-eval's own code, its filter and metric."""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from inspect import getsourcefile
from io import StringIO
from pathlib import Path
from random import Random
from statistics import stdev
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.api.registry import AGGREGATION_REGISTRY
from lm_eval.api.task import Task as HarnessLeaf
from lm_eval.models.utils import normalize_gen_kwargs

from caploc.errors import BadData, BadOption, UserError, unknown
from caploc.tasks.programs import executes_code, judgement
from caploc.tasks.task import (
    Example,
    Generate,
    Generated,
    LogLikelihood,
    Request,
    Response,
    Rolling,
    Scored,
    options_json,
    prompt_of,
)

BOOTSTRAPS = 200  # for the standard error of metrics that have no formula
# The metrics of the heads paper where they are not the first that the task lists.
PREFERRED = {
    "gsm8k": ("exact_match", "flexible-extract"),
    "hellaswag": ("acc_norm", "none"),
    "arc_challenge": ("acc_norm", "none"),
}
# Metrics whose items are log-likelihoods although the metric itself is better when lower.
LIKELIHOOD_METRICS = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}

# Of a choice, by which these metrics divide its log-probability.
LENGTHS: dict[str, Callable[[str], int]] = {
    "acc_norm": len,
    "acc_bytes": lambda choice: len(choice.encode()),
}
PAIR_METRICS = {"f1", "mcc"}  # their items are (gold, predicted) classes
# Arguments of generation that greedy decoding has, or that make no difference to it.
GREEDY = frozenset("until max_gen_toks do_sample temperature top_p top_k num_beams".split())
SOLUTIONS = ("canonical_solution", "code")  # columns of code tasks that hold a right program

ChatTemplate = Callable[..., str]

# Advice to whoever writes a task with data of its own, given each time one is loaded.
logging.getLogger("lm_eval.api.task").addFilter(
    lambda record: "Custom kwargs can be passed" not in record.getMessage()
)


class Leaf:
    """One lm-eval task: its documents, requests, filter and metric."""

    def __init__(self, task: HarnessLeaf, metric: str | None, chat: ChatTemplate | None) -> None:
        """Build every request, in lm-eval's own order (few-shot draws depend on it).

        Raises BadData if there is no example, or one lacks what the task reads; UnknownName if the
        task has no such metric or filter; BadOption if the task samples its answers.
        """
        self.task, self.name = task, task.task_name
        self.metric, self.filter = choose_metric(task, metric)
        self.aggregation: Callable[[Sequence[Any]], float] = task.aggregation()[self.metric]
        if self.aggregation is None:  # what lm-eval makes of a name that it does not know
            raise BadOption(
                f"Task {self.name} aggregates {self.metric} by something that lm-eval does not "
                f"have; its YAML may name {', '.join(sorted(AGGREGATION_REGISTRY))}."
            )
        self.executes_code = executes_code(task)
        self.chat = chat
        self.instances = build_instances(task, chat)
        self.higher_is_better = bool(task.higher_is_better().get(self.metric, True))

    @cached_property
    def docs(self) -> list[dict[str, Any]]:
        return [instances[0].doc for instances in self.instances]

    def check_complete(self) -> None:
        """Refuse records without what a template reads: it would ask for `None`. Raises BadData."""
        config = self.task.config
        read = (config.doc_to_text, config.doc_to_target, config.doc_to_choice)
        words = set(re.findall(r"\w+", " ".join(text for text in read if isinstance(text, str))))
        columns = [column for column in getattr(self.task, "features", ()) if column in words]
        for number, doc in enumerate(self.docs, 1):
            for column in columns:
                if column in doc and doc[column] is None:
                    raise BadData(
                        f"Record {number} of task {self.name} has no {column!r}, which the task "
                        "reads; complete it, or take it out."
                    )

    def requests(self, example: int) -> tuple[Request, ...]:
        return tuple(as_request(instance) for instance in self.instances[example])

    def item(self, example: int, responses: Sequence[Response]) -> Any:
        """Return the chosen metric of one example, through the chosen filter.

        Raises BadOption if the task's kind of answers has no such metric.
        """
        pairs = zip(self.instances[example], responses, strict=True)
        instances = [replace_response(*pair) for pair in pairs]
        for ensemble in self.task._filters:
            if ensemble.name == self.filter:
                ensemble.apply(instances)
        found = [instance.filtered_resps[self.filter] for instance in instances]
        known = self.task.process_results(self.docs[example], found)
        if self.metric not in known:
            raise BadOption(
                f"Task {self.name} gives no {self.metric}: lm-eval has no such metric of answers "
                f"of the kind {self.task.config.output_type}; name another in its YAML."
            )
        return known[self.metric]

    def aggregate(self, items: Sequence[Any]) -> tuple[float | None, float | None]:
        """Return the metric over items, and its standard error where one is known."""
        if not items:
            return None, None
        try:
            return float(self.aggregation(items)), self.stderr(items)
        except OverflowError:  # the perplexity of a model that is broken beyond numbers
            return None, None
        except (ValueError, TypeError) as error:
            raise BadOption(
                f"The metric {self.metric} of task {self.name} cannot be taken of its answers "
                f"({error}); name another with --metric."
            ) from error

    def stderr(self, items: Sequence[Any]) -> float | None:
        """Return the formula for a mean, a seeded bootstrap where items are cheap to aggregate."""
        if len(items) < 2:
            return None
        if self.aggregation is mean:
            return float(mean_stderr(items))
        if self.metric not in LIKELIHOOD_METRICS | PAIR_METRICS:
            return None
        random = Random(0)
        draws = [self.aggregation(random.choices(items, k=len(items))) for _ in range(BOOTSTRAPS)]
        return stdev(draws)

    def gold(self, example: int) -> str | None:
        """Return the right answer in words, None where the task has none."""
        doc = self.docs[example]
        if self.executes_code:  # the target is the tests
            return next((str(doc[column]) for column in SOLUTIONS if doc.get(column)), None)
        if column := (self.task.get_config("metadata") or {}).get("gold"):
            return str(doc[column])  # one of many right answers, of a task that judges freely
        target = self.task.doc_to_target(doc)
        if isinstance(target, list):
            target = target[0] if target else ""
        if isinstance(target, int) and self.task.config.doc_to_choice is not None:
            choices = self.task.doc_to_choice(doc)
            return str(choices[target]) if 0 <= target < len(choices) else None
        return str(target) or None

    def question(self, example: int) -> str:
        """Return the question as this example alone puts it, and the choices that it offers."""
        asked = self.task.doc_to_text(self.docs[example])
        parts = [asked if isinstance(asked, str) else "", *sorted(self.choices(example))]
        if any(parts):
            return "\n".join(parts)
        first = self.requests(example)[0]
        more = first.continuation if isinstance(first, LogLikelihood) else ""
        return prompt_of(first) + more

    def lacks(self, example: int) -> str | None:
        """Say what an example lacks to be judged: a right choice, or a right answer."""
        if self.choosing and self.choice(example) is None and not self.rights(example):
            return "no right choice"
        exact = self.metric in ("acc", "exact_match") and not self.executes_code
        if exact and len(self.requests(example)) == 1 and not self.gold(example):
            return "no right answer"
        return None

    def gold_request(self, example: int) -> LogLikelihood | Rolling:
        """Return the request whose log-probability says how sure the model is of the right answer.

        Raises BadOption if the task has no right answer, or does not say which choice it is.
        """
        first, *others = self.requests(example)
        if isinstance(first, Rolling):
            return first
        gold = self.gold(example)
        if gold is None:
            raise BadOption(
                f"Task {self.name} has no gold answer whose log-probability could be taken; "
                "use --outcome metric."
            )
        if isinstance(first, Generate):
            # A program continues its prompt as it stands: a space more would break its indentation.
            joined = self.chat or self.executes_code
            return LogLikelihood(
                first.prompt, gold if joined else self.task.config.target_delimiter + gold
            )
        if not others:
            return first
        doc = self.docs[example]
        # Tasks whose choices are contexts (winogrande) keep the right one's number in their text.
        right = (
            self.task.doc_to_text(doc) if self.task.multiple_input else self.task.doc_to_target(doc)
        )
        if isinstance(right, str) and gold in self.choices(example):
            right = self.choices(example).index(gold)
        if not isinstance(right, int) or not 0 <= right <= len(others):
            raise BadOption(
                f"Task {self.name} does not say which choice is right in example {example}, so its "
                "log-probability cannot be taken; use --outcome metric."
            )
        chosen = (first, *others)[right]
        assert isinstance(chosen, LogLikelihood)
        return chosen

    @cached_property
    def choosing(self) -> bool:
        """Say whether the model always picks among answers by their log-probabilities."""
        # for that metric each choice is asked without the question as well, after all others
        asked = 2 if "acc_mutual_info" in metric_names(self.task) else 1
        return self.metric != "acc_mutual_info" and all(
            len(instances) // asked > 1 and instances[0].request_type == "loglikelihood"
            for instances in self.instances
        )

    def choice(self, example: int) -> int | None:
        """Return the number of the right choice, None if there is none or it is not known."""
        if not self.choosing:
            return None
        try:
            return self.requests(example).index(self.gold_request(example))
        except BadOption:
            return None

    def rights(self, example: int) -> list[int]:
        """Return the right choices where a task may have several; empty where it has one."""
        target, choices = self.task.doc_to_target(self.docs[example]), self.choices(example)
        listed = target if isinstance(target, list) else []
        return [each for each in listed if isinstance(each, int) and 0 <= each < len(choices)]

    def guess(self, example: int) -> float:
        """Return the chance of guessing a right choice; 0 where there is nothing to choose."""
        asked = len(self.instances[example])
        if asked < 2:
            return 0.0
        # a metric may ask for more than the choices
        return (len(self.rights(example)) or 1) / (len(self.choices(example)) or asked)

    def definition(self) -> list[Any]:
        """Return what turns responses into an outcome, besides the examples themselves."""
        config = self.task.config
        filters, metrics, scorer = (
            make_comparable(getattr(config, name, None))
            for name in ("filter_list", "metric_list", "process_results")
        )
        names = [self.name, self.task.VERSION, self.metric, self.filter, version("lm_eval")]
        judged = [judgement()] if self.executes_code else []
        return [*names, filters, metrics or [], scorer, *judged]

    def choices(self, example: int) -> list[str]:
        """Return the answers offered, empty where the model writes its own."""
        if self.task.config.doc_to_choice is None:
            return []
        return [str(choice) for choice in self.task.doc_to_choice(self.docs[example])]

    def example(self, number: int) -> Example:
        """Return what is known of an example."""
        choices = tuple(self.choices(number))
        divide = LENGTHS.get(self.metric)
        return Example(
            question=self.question(number),
            gold=self.gold(number),
            lacks=self.lacks(number),
            right=self.choice(number),
            choices=choices,
            lengths=() if divide is None else tuple(map(divide, choices)),
            mutual=self.metric == "acc_mutual_info",
        )


def build_instances(task: HarnessLeaf, chat: ChatTemplate | None) -> list[list[Instance]]:
    """Return all instances of a task, grouped by document; raises BadData or BadOption."""
    try:
        with redirect_stderr(StringIO()):  # lm-eval draws a bar, in notebooks too
            task.build_all_requests(
                apply_chat_template=chat is not None, chat_template=chat, fewshot_as_multiturn=True
            )
    except UserError:
        raise
    except Exception as error:  # templates and user functions fail in ways of their own
        if isinstance(error, ValueError) and "larger than population" in str(error):
            raise BadOption(
                f"--fewshot {task.get_config('num_fewshot')}: task {task.task_name} has fewer "
                "examples to put into a prompt; use less."
            ) from error
        columns = ", ".join(map(str, getattr(task, "features", ["unknown"])))
        raise BadData(
            f"The examples of task {task.task_name} do not fit its definition "
            f"({type(error).__name__}: {' '.join(str(error).split())}); their columns are "
            f"{columns}."
        ) from error
    grouped: dict[int, list[Instance]] = {}
    for instance in task.instances:
        grouped.setdefault(instance.doc_id, []).append(instance)
    for instances in grouped.values():
        instances.sort(key=lambda instance: instance.idx)
        check_greedy(task.task_name, instances[0])
        as_request(instances[0])
    return list(grouped.values())


def check_greedy(name: str, instance: Instance) -> None:
    """Refuse a task that asks for more than greedy decoding: one mask must give one answer.

    Raises BadOption.
    """
    if instance.request_type != "generate_until":
        return
    options = normalize_gen_kwargs(instance.args[1])
    searched = options.get("do_sample") or options.get("num_beams", 1) != 1
    if searched or (beyond := sorted(set(options) - GREEDY)):
        what = "samples or searches for its answers" if searched else f"sets {beyond[0]}"
        raise BadOption(
            f"Task {name} {what}; caploc decodes greedily. Copy its YAML, leave in its "
            "generation_kwargs what greedy decoding has (do_sample: false, num_beams: 1, until, "
            "max_gen_toks), and pass the file as the task."
        )


def as_request(instance: Instance) -> Request:
    """Turn one lm-eval instance into a request; raises BadOption."""
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
    """Copy the instance with this response in it, as lm-eval's model would have left it."""
    raw: Any = response.text if isinstance(response, Generated) else response.logprob
    if isinstance(response, Scored) and instance.request_type != "loglikelihood_rolling":
        raw = (response.logprob, response.greedy)
    repeats = instance.repeats or 1
    return replace(instance, resps=[raw] * repeats, filtered_resps={}, metadata=instance.metadata)


def choose_metric(task: HarnessLeaf, wanted: str | None) -> tuple[str, str]:
    """Metric and filter: named (`metric,filter`), the paper's or the first; raises UnknownName."""
    metrics = metric_names(task)
    filters = [ensemble.name for ensemble in task._filters]
    default = PREFERRED.get(task.task_name, ("", ""))
    if default[0] not in metrics or default[1] not in filters:
        default = metrics[0], filters[0]
    metric, _, chosen = wanted.partition(",") if wanted else (default[0], "", default[1])
    if metric not in metrics:
        raise unknown(metrics, metric, "metric", f"The task is {task.task_name}.")
    chosen = chosen or (default[1] if metric == default[0] else filters[0])
    if chosen not in filters:
        raise unknown(filters, chosen, "filter", f"The task is {task.task_name}.")
    return metric, chosen


def metric_names(task: HarnessLeaf) -> list[str]:
    """Return the names under which a task's results hold its metrics.

    `pass_at_k` gives one result for each of its `k` (`pass@1`). lm-eval learns their names from the
    first answer; they are entered here as it would, so that one can be chosen before.
    """
    aggregations, options = task.aggregation(), getattr(task, "_metric_fn_kwargs", {})
    tries = options.get("pass_at_k", {}).get("k", [])
    expanded = [f"pass@{k}" for k in (tries if isinstance(tries, list) else [tries])]
    for name in expanded:
        aggregations[name] = aggregations["pass_at_k"]
    return [name for name in aggregations if not (expanded and name == "pass_at_k")]


def make_comparable(value: Any) -> Any:
    """Make a value comparable: functions in it become the text of the file they are from."""
    if isinstance(value, dict):
        return {key: make_comparable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [make_comparable(part) for part in value]
    if not callable(value):
        return value
    if isinstance(value, partial):
        return [make_comparable(part) for part in (value.func, value.args, value.keywords)]
    if hasattr(value, "definition"):
        return value.definition()
    try:
        file = getsourcefile(value)
    except TypeError:  # a built-in, or an object with `__call__`
        file = None
    return Path(file).read_text() if file else getattr(value, "__qualname__", str(type(value)))
