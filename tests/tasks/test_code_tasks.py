"""Code tasks with rows written for these tests, judged by the real sandbox."""

import builtins
import os
from itertools import combinations
from pathlib import Path

import evaluate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadOption
from caploc.options import TaskOptions
from caploc.sandbox import pool
from caploc.tasks.catalog import check_task_name, load_task
from caploc.tasks.programs import CodeEval, pass_rates
from caploc.tasks.task import Generated, LogLikelihood
from doubles import write_lines

if obstacle := pool.find_obstacle():
    pytest.skip(f"bubblewrap is needed, {obstacle}", allow_module_level=True)

COMPLETE = [
    {
        "task_id": f"Own/{number}",
        "prompt": f'def add_{number}(value):\n    """Add {number} to a value."""\n',
        "canonical_solution": f"    return value + {number}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
        "entry_point": f"add_{number}",
    }
    for number in range(3)
]
DESCRIBED = [
    {
        "task_id": number,
        "text": f"Write a function to multiply a value by {number}.",
        "code": f"def times_{number}(value):\n    return value * {number}",
        "test_list": [f"assert times_{number}({value}) == {number * value}" for value in (1, 2, 5)],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    for number in range(3)
]
ROWS = {"humaneval": COMPLETE, "humaneval_instruct": COMPLETE, "mbpp": DESCRIBED,
        "mbpp_instruct": DESCRIBED}  # fmt: skip
METRICS = {"humaneval": "pass@1", "humaneval_instruct": "pass@1", "mbpp": "pass_at_1",
           "mbpp_instruct": "pass_at_1"}  # fmt: skip


@pytest.fixture
def code_task(tmp_path):
    """Load a code task on the rows above."""

    def load(name, **options):
        path = write_lines(tmp_path / "rows.jsonl", ROWS[name])
        options = {"data": {"test": str(path)}, "allow_code": True} | options
        return load_task(name, TaskOptions(**options))

    return load


def as_said(name, row, wrong=False):
    """How a model that is asked the task gives the row's solution."""
    solution = row.get("canonical_solution") or row["code"]
    solution = solution.replace("return", "return 0.5 +") if wrong else solution
    # lm-eval takes the first word after the opening fence for the name of a language.
    start = "\n" if name == "mbpp_instruct" else ""
    return start + solution + ("\n```\nThat is it." if name.endswith("instruct") else "")


@pytest.mark.parametrize("name", ROWS)
def test_right_programs_pass_and_wrong_ones_do_not(code_task, name):
    task = code_task(name)
    assert (task.size, task.metric.name, task.metric.runs_code) == (3, METRICS[name], True)
    for number, row in enumerate(ROWS[name]):
        right, wrong = (
            task.outcome(task.item(number, [Generated(as_said(name, row, wrong))]))
            for wrong in (False, True)
        )
        assert (right, wrong) == (1.0, 0.0)
    assert task.item(0, [Generated("")]) == 0.0
    assert task.score([0, 1, 2], [1.0, 0.0, 1.0]).score == pytest.approx(2 / 3)


def test_nothing_runs_in_this_process(code_task, tmp_path):
    left = tmp_path / "left"
    program = (
        "def times_0(value):\n"
        "    import builtins, os, pathlib\n"
        f"    assert os.getpid() != {os.getpid()}\n"
        "    builtins.caploc_was_here = True\n"
        "    try:\n"
        f"        pathlib.Path({str(left)!r}).write_text('x')\n"
        "    except OSError:\n"
        "        pass\n"
        "    return 0\n"
    )
    assert code_task("mbpp").item(0, [Generated(program)]) == 1.0
    assert not hasattr(builtins, "caploc_was_here") and not left.exists()


def test_the_gold_answer_of_a_program_is_the_reference_solution(code_task):
    for name in ("humaneval", "mbpp"):
        task = code_task(name, outcome="logprob")
        (request,) = task.requests(1)
        assert isinstance(request, LogLikelihood)
        assert request.continuation == as_said(name, ROWS[name][1])
        assert task.example(1).gold == request.continuation
    assert request.context.endswith("[BEGIN]\n")


@pytest.mark.parametrize("name", ROWS)
def test_without_leave_no_code_task_is_loaded(code_task, name):
    for refusing in (lambda: code_task(name, allow_code=False), lambda: check_task_name(name)):
        with pytest.raises(BadOption, match=r"--allow-code.*docs/security\.md") as refused:
            refusing()
        assert name in str(refused.value) and "\n" not in str(refused.value)
    check_task_name(name, TaskOptions(allow_code=True))


def test_leave_goes_along_to_other_tasks():
    assert TaskOptions(allow_code=True, metric="acc").plain() == TaskOptions(allow_code=True)


def test_other_tasks_execute_nothing():
    assert not load_task("demo/code", TaskOptions(allow_code=True)).metric.runs_code


def test_nobody_gets_the_metric_that_runs_programs_in_this_process():
    for path in ("code_eval", "evaluate-metric/code_eval"):
        assert isinstance(evaluate.load(path), CodeEval)


OWN = """
import evaluate
metric = evaluate.load("code_eval")
def passes(references, predictions):
    return metric.compute(references=references, predictions=[predictions], k=[1])[0]["pass@1"]
"""
YAML = """
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{test}}}}"
generation_kwargs: {{until: ["!"], do_sample: false}}
metric_list:
  - {{metric: !function {metric}, aggregation: mean, higher_is_better: true}}
"""


@pytest.fixture
def own_task(tmp_path):
    """Write a task with a scorer of its own; returns its path."""

    def write(python, metric="scoring.passes", more=""):
        data = tmp_path / "rows.jsonl"
        data.write_text('{"prompt": "answer = ", "test": "assert answer == 42"}\n')
        (tmp_path / "scoring.py").write_text(python)
        path = tmp_path / "own.yaml"
        path.write_text(YAML.format(data=data, metric=metric) + more)
        return str(path)

    return write


def test_own_code_tasks_are_judged_too_and_need_no_mark(own_task):
    path = own_task(OWN)
    with pytest.raises(BadOption, match=r"own runs.*--allow-code"):
        load_task(path)
    task = load_task(path, TaskOptions(allow_code=True))
    assert task.metric.runs_code
    said = [Generated("answer = 42")], [Generated("answer = 41")]
    assert [task.item(0, answer) for answer in said] == [1.0, 0.0]


def test_a_metric_named_in_the_yaml_is_ours(own_task):
    path = own_task("")
    text = Path(path).read_text().replace("!function scoring.passes", "code_eval")
    Path(path).write_text(text.replace("aggregation", "hf_evaluate: true, aggregation"))
    with pytest.raises(BadOption, match="--allow-code"):
        load_task(path)


def test_own_means_of_running_programs_are_refused(own_task):
    own = "def passes(references, predictions):\n    exec(predictions[0])\n    return 1.0\n"
    with pytest.raises(BadOption, match="means of its own"):
        load_task(own_task(own, more="unsafe_code: true\n"), TaskOptions(allow_code=True))


def test_a_metric_that_is_told_in_k_has_one_name_each(own_task):
    python = (
        OWN
        + "def pass_at_k(references, predictions, k):\n    return metric.compute(\n"
        + ("        references=references, predictions=[predictions], k=k)[0]\n")
    )
    path = own_task(python, "scoring.pass_at_k")
    text = Path(path).read_text().replace("aggregation: mean", "aggregation: mean, k: [1, 2]")
    Path(path).write_text(text + "repeats: 2\n")
    options = TaskOptions(allow_code=True, metric="pass@2")
    task = load_task(path, options)
    assert task.metric.name == "pass@2"
    assert load_task(path, TaskOptions(allow_code=True)).metric.name == "pass@1"


verdicts = st.lists(st.booleans(), min_size=1, max_size=6)


@given(st.lists(verdicts, min_size=1, max_size=4), st.integers(1, 6))
def test_pass_at_k_is_the_share_of_draws_of_k_with_a_right_program(problems, k):
    results = [[(0, {"passed": passed}) for passed in problem] for problem in problems]
    rates = pass_rates(results, [k])
    if min(map(len, problems)) < k:
        assert rates == {}
        return
    shares = [
        sum(map(any, draws)) / len(draws)
        for draws in (list(combinations(problem, k)) for problem in problems)
    ]
    assert rates[f"pass@{k}"] == pytest.approx(sum(shares) / len(shares))


def test_the_stand_in_keeps_the_contract():
    rates, results = CodeEval().compute(
        references=["assert add(2, 3) == 5", "assert two() == 2"],
        predictions=[
            ["def add(a, b): return a * b", "def add(a, b): return a + b"],
            ["def two(): return 2", "def two(): return"],
        ],
        k=[1, 2, 3],
        timeout=3.0,
    )
    assert rates == {"pass@1": 0.5, "pass@2": 1.0}
    assert [[tried["passed"] for _, tried in results[n]] for n in (0, 1)] == [
        [False, True],
        [True, False],
    ]
    assert results[1][1][0] == results[1][1][1]["completion_id"] == 1
