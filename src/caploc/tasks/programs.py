"""Code tasks: lm-eval's own prompts, filters and metrics, but programs are judged in the sandbox.

lm-eval's code tasks score with the metric `code_eval` of `evaluate`, which runs what a model wrote
with the user's rights. `replace_code_eval` puts `CodeEval` in its place for this process. A task
that runs programs by any other means is refused.
"""

import platform
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import comb
from typing import TYPE_CHECKING, Any

import evaluate  # type: ignore[import-untyped]
from lm_eval.api.task import Task as HarnessLeaf

from caploc.errors import BadOption

if TYPE_CHECKING:
    from caploc.sandbox import Sandbox

METRIC = "code_eval"
NOT_ALLOWED = (
    "Task {} runs the programs that the model writes; allow that with --allow-code (in bubblewrap, "
    "see docs/security.md), or choose another task."
)
NOT_OURS = (
    "Task {} runs the programs that the model writes by means of its own, which caploc cannot move "
    "into its sandbox (see docs/security.md); choose another task."
)


@cache
def sandbox() -> "Sandbox":
    """Return the one sandbox of this process, which remembers what it judged."""
    from caploc.sandbox import Sandbox

    return Sandbox()


class CodeEval:
    """Stands in for the metric `code_eval`: same contract, but nothing runs in this process."""

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
        as the sandbox does it; `timeout` and `num_workers` are accepted and ignored.
        """
        from caploc.sandbox import Program

        problems = list(zip(predictions, references, strict=True))
        programs = [Program(text, tests) for texts, tests in problems for text in texts]
        verdicts = iter(sandbox().judge(programs))
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for problem, texts in enumerate(predictions):
            results[problem] = []
            for number in range(len(texts)):
                verdict = next(verdicts)
                facts: dict[str, Any] = {"task_id": problem, "completion_id": number}
                facts |= {"passed": verdict.passed, "result": verdict.reason}
                results[problem].append((number, facts))
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


def replace_code_eval() -> None:
    """Make `evaluate.load("code_eval")` return `CodeEval` from here on."""
    load = evaluate.load

    def load_ours(path: str, *arguments: Any, **options: Any) -> Any:
        return CodeEval() if path.split("/")[-1] == METRIC else load(path, *arguments, **options)

    evaluate.load = load_ours


def holds_code_eval(function: Any) -> bool:
    """Tell whether a scorer is a method of `CodeEval`, or its module holds one."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)  # of a method, and of a function's `__call__`
    if isinstance(owner, CodeEval):
        return True
    names = getattr(owner or getattr(function, "__func__", function), "__globals__", {})
    return any(isinstance(value, CodeEval) for value in names.values())


def scorers(task: HarnessLeaf) -> list[Callable[..., Any]]:
    """Return the functions that turn an answer into a score."""
    own = getattr(task.config, "process_results", None)
    return list(filter(callable, [own, *getattr(task, "_metric_fn_list", {}).values()]))


def executes_code(task: HarnessLeaf) -> bool:
    """Tell whether scoring an answer of the task runs what the model wrote."""
    marked = getattr(task, "UNSAFE_CODE", False) or task.get_config("unsafe_code")
    return bool(marked) or any(map(holds_code_eval, scorers(task)))


def check_programs(task: HarnessLeaf, allowed: bool) -> None:
    """Refuse a task that runs programs if it may not, not in the sandbox, or where there is none.

    Raises BadOption.
    """
    if not executes_code(task):
        return
    if not allowed:
        raise BadOption(NOT_ALLOWED.format(task.task_name))
    if not scorers(task) or not all(map(holds_code_eval, scorers(task))):
        raise BadOption(NOT_OURS.format(task.task_name))
    from caploc.sandbox import check_isolation

    check_isolation()


def judgement() -> list[str]:
    """List what else can change a verdict: the limits, and the Python that runs programs."""
    from caploc.sandbox import Limits

    return [repr(Limits()), ".".join(platform.python_version_tuple()[:2])]
