"""Code tasks: lm-eval's own prompts, filters and metrics, but programs are judged in the sandbox.

lm-eval's code tasks load the metric `code_eval` while their Python file is imported, and that
metric runs what a model wrote with the user's rights. Here such a file is imported with `CodeEval`
in its place. A task that runs programs by any other means is refused.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from inspect import isfunction, ismethod
from math import comb
from types import ModuleType
from typing import Any

import evaluate  # type: ignore[import-untyped]
from lm_eval.api.task import Task as HarnessLeaf

from caploc.errors import BadOption
from caploc.sandbox import Limits, Program, Sandbox

METRIC = "code_eval"
NOT_ALLOWED = (
    "Task {} runs the programs that the model writes; allow that with --allow-code (in a sandbox, "
    "see docs/security.md), or choose another task."
)
NOT_OURS = (
    "Task {} runs the programs that the model writes by means of its own, which caploc cannot move "
    "into its sandbox (see docs/security.md); choose another task."
)


@cache
def sandbox() -> Sandbox:
    """Return the one sandbox of this process, which remembers what it judged."""
    return Sandbox()


class CodeEval:
    """Stands in for the metric `code_eval`: same contract, but nothing runs in this process."""

    def __init__(self, task: str, allowed: bool) -> None:
        self.task, self.sandbox = task, sandbox() if allowed else None

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **_: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Judge every candidate program by its problem's tests.

        Returns the mean of `pass@k` over problems, for every k that no problem has too few
        candidates for, and for every problem its candidates' verdicts. Time and memory are limited
        as the sandbox does it; `timeout` and `num_workers` are accepted and ignored. Raises
        BadOption if running programs was not allowed.
        """
        if self.sandbox is None:
            raise BadOption(NOT_ALLOWED.format(self.task))
        problems = list(zip(predictions, references, strict=True))
        programs = [Program(text, tests) for texts, tests in problems for text in texts]
        verdicts = iter(self.sandbox.judge(programs))
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for problem, texts in enumerate(predictions):
            results[problem] = []
            for number in range(len(texts)):
                verdict = next(verdicts)
                told: dict[str, Any] = {"task_id": problem, "completion_id": number}
                told |= {"passed": verdict.passed, "result": verdict.reason}
                results[problem].append((number, told))
        return pass_rates(results.values(), k), results


def pass_rates(
    results: Iterable[list[tuple[int, dict[str, Any]]]], tries: Sequence[int]
) -> dict[str, float]:
    """Mean over problems of the chance that one of k candidates drawn without return passes."""
    counts = [(len(tried), sum(v["passed"] for _, v in tried)) for tried in results]
    return {
        f"pass@{k}": sum(1 - comb(n - passed, k) / comb(n, k) for n, passed in counts) / len(counts)
        for k in tries
        if counts and all(n >= k for n, _ in counts)
    }


@contextmanager
def stand_in(task: str, allowed: bool) -> Iterator[None]:
    """While a task is imported, `evaluate.load("code_eval")` is ours; afterwards all is as before.

    Modules of tasks that hold the real metric from an earlier import are imported anew meanwhile,
    and new ones that hold ours are forgotten: lm-eval beside caploc stays what it was, and another
    answer to `allowed` is heard.
    """
    ours, load = CodeEval(task, allowed), evaluate.load

    def load_ours(path: str, *arguments: Any, **options: Any) -> Any:
        return ours if path.split("/")[-1] == METRIC else load(path, *arguments, **options)

    # of modules that lm-eval imported, which marks them with their age
    real = {
        name: module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and "__mtime__" in vars(module)
        if holds_metric(vars(module), is_real)
    }
    for name in real:
        del sys.modules[name]
    before = dict(sys.modules)
    evaluate.load = load_ours
    try:
        yield
    finally:
        evaluate.load = load
        for name, module in list(sys.modules.items()):
            new = isinstance(module, ModuleType) and module is not before.get(name)
            if new and holds_metric(vars(module), is_ours):
                del sys.modules[name]
        sys.modules.update(real)


def holds_metric(names: dict[str, Any], kind: Callable[[Any], bool]) -> bool:
    """Tell whether such a metric is in a module's names, or in those that its functions see."""
    functions = filter(isfunction, list(names.values()))
    seen = {id(each.__globals__): each.__globals__ for each in functions} | {id(names): names}
    return any(kind(value) for each in seen.values() for value in list(each.values()))


def is_ours(value: Any) -> bool:
    """Tell whether it is our `code_eval`, or a method of it."""
    return isinstance(value.__self__ if ismethod(value) else value, CodeEval)


def is_real(value: Any) -> bool:
    """Tell whether it is the `code_eval` that runs programs in this process, or a method of it."""
    metric = value.__self__ if ismethod(value) else value
    return isinstance(metric, evaluate.EvaluationModule) and metric.name == METRIC


def reaches(function: Callable[..., Any], kind: Callable[[Any], bool]) -> bool:
    """Tell whether a function has such a metric at hand: is it, or sees it by a name."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)  # of a method, and of a function's `__call__`
    if kind(function) or kind(owner):
        return True
    seen = owner if isfunction(owner) else getattr(function, "__func__", function)
    return isfunction(seen) and holds_metric(seen.__globals__, kind)


def scorers(task: HarnessLeaf) -> list[Callable[..., Any]]:
    """Return the functions that turn an answer into a score."""
    own = getattr(task.config, "process_results", None)
    return list(filter(callable, [own, *getattr(task, "_metric_fn_list", {}).values()]))


def executes_code(task: HarnessLeaf) -> bool:
    """Tell whether scoring an answer of the task runs what the model wrote."""
    marked = getattr(task, "UNSAFE_CODE", False) or task.get_config("unsafe_code")
    return bool(marked) or any(
        reaches(function, kind) for function in scorers(task) for kind in (is_ours, is_real)
    )


def check_programs(task: HarnessLeaf, allowed: bool) -> None:
    """Refuse a task that runs programs when it may not, or by means of its own (BadOption)."""
    if not executes_code(task):
        return
    if not allowed:
        raise BadOption(NOT_ALLOWED.format(task.task_name))
    check_scorers(task.task_name, scorers(task))
    if not scorers(task):
        raise BadOption(NOT_OURS.format(task.task_name))


def check_definition(name: str, config: Mapping[str, Any]) -> None:
    """Refuse a code task by its YAML, its functions imported: before its data is loaded."""
    metrics = [metric.get("metric") for metric in config.get("metric_list") or ()]
    if config.get("unsafe_code"):
        check_scorers(name, list(filter(callable, [config.get("process_results"), *metrics])))


def check_scorers(name: str, functions: Sequence[Callable[..., Any]]) -> None:
    """Refuse scorers of a code task without our `code_eval`, or with the real one (BadOption)."""
    for function in functions:
        if not reaches(function, is_ours) or reaches(function, is_real):
            raise BadOption(NOT_OURS.format(name))


def judgement() -> list[str]:
    """List what else can change a verdict: the limits, and the Python that runs programs."""
    return [repr(Limits()), ".".join(platform.python_version_tuple()[:2])]
