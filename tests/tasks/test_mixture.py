import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.components import Heads
from caploc.cost import Cost
from caploc.engine.api import Answer
from caploc.errors import BadData, BadOption, UnknownName
from caploc.measurement import Meter
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.store import Question, Store
from caploc.tasks.catalog import check_task_name, load_task
from caploc.tasks.harness import mean_of_scores
from caploc.tasks.task import Generate, Generated, LogLikelihood, Scored, Task, show

CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}",
    "doc_to_choice": "{{options}}",
    "doc_to_target": "{{gold}}",
    "generation_kwargs": None,
    "metric_list": [
        {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
    ],
}
QUESTIONS = [{"q": f"{n}?", "options": ["a", "b", "c", "d"], "gold": n % 4} for n in range(4)]
PERPLEXITY = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{q}}",
    "generation_kwargs": None,
    "metric_list": [
        {"metric": "word_perplexity", "aggregation": "weighted_perplexity",
         "higher_is_better": False},
    ],
}  # fmt: skip


@pytest.fixture
def mixture_file(tmp_path):
    """Write a mixture of the named tasks; returns its path."""

    def write(*tasks, name="both"):
        config = {"group": name, "task": list(tasks), "metadata": {"mixture": True}}
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return str(path)

    return write


@pytest.fixture
def both(mixture_file, task_file):
    """Six sums that are generated and four questions that are chosen."""
    task_file("sums")
    task_file("questions", QUESTIONS, **CHOICES)
    return mixture_file("sums", "questions")


def chosen(choice):
    return [Scored(0.0 if n == choice else -9.0, False, 1) for n in range(4)]


def test_a_mixture_is_a_task(both):
    mixture = load_task(both)
    assert isinstance(mixture, Task)
    assert (mixture.size, mixture.metric.name) == (10, "mean of acc and exact_match")
    assert mixture.metric.higher_is_better and not mixture.metric.runs_code
    kinds = [type(mixture.requests(n)[0]) for n in range(10)]
    assert kinds == [Generate] * 6 + [LogLikelihood] * 4
    assert len({mixture.key(n) for n in range(10)}) == 10


def test_the_score_is_the_mean_of_the_parts_and_not_of_the_rows(both):
    mixture = load_task(both)
    answers = {0: [Generated("1")], 1: [Generated("9")], 2: [Generated("3")]}
    answers |= {6: chosen(0), 7: chosen(1), 9: chosen(0), 8: chosen(2)}
    items = {n: json.loads(json.dumps(mixture.item(n, said))) for n, said in answers.items()}
    assert [mixture.outcome(item) for item in items.values()] == [1, 0, 1, 1, 1, 0, 1]
    score = mixture.score(list(items), list(items.values()))
    assert score.score == pytest.approx((2 / 3 + 3 / 4) / 2) and score.examples == 7
    variances = [(2 / 9 * 3 / 2) / 3, (3 / 16 * 4 / 3) / 4]  # of a mean of 0 and 1, n - 1 below
    assert score.stderr == pytest.approx(sum(variances) ** 0.5 / 2)


def test_a_part_without_an_example_is_left_out(both):
    mixture = load_task(both)
    assert mixture.score([6, 7], [[1, 1.0], [1, 0.0]]).score == 0.5
    assert mixture.score([], []).score is None


def test_a_limit_is_for_every_part(both):
    mixture = load_task(both)
    assert mixture.first(2) == [0, 1, 6, 7]
    assert mixture.first(5) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert mixture.first(None) == list(range(10))


def test_guessing_is_weighed_by_examples(both):
    assert load_task(both).metric.chance == pytest.approx(4 / 10 * 1 / 4)


def test_what_is_shown_is_the_parts(both):
    mixture = load_task(both)
    assert show(mixture, 1, [Generated("2")]) == show(mixture.parts[0], 1, [Generated("2")])
    assert show(mixture, 7, chosen(3)).answer == "d"


def test_log_probabilities_of_gold_answers_and_back(both):
    mixture = load_task(both, TaskOptions(outcome="logprob"))
    assert (mixture.metric.name, mixture.metric.kind) == ("logprob", "logprob")
    assert mixture.requests(8) == (LogLikelihood("2?", " c"),)
    item = mixture.item(0, [Scored(-3.0, False, 2)])
    assert mixture.outcome(item) == -1.5
    metric = mixture.in_metric()
    assert metric.metric.name == "mean of acc and exact_match" and metric.in_metric() is metric
    assert metric.version == load_task(both).version


def test_the_version_and_keys_follow_the_parts(both, task_file):
    before = load_task(both)
    task_file("sums", [{"q": "7+1=", "a": "8"}] * 6)
    after = load_task(both)
    assert before.version == after.version
    assert [before.key(n) == after.key(n) for n in (0, 6)] == [False, True]
    task_file("sums", generation_kwargs={"until": ["!"], "max_gen_toks": 4, "do_sample": False})
    assert load_task(both).key(0) != before.key(0)
    strict = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    task_file("sums", metric_list=[strict | {"ignore_case": True}])
    assert load_task(both).version != before.version


class Right:
    """An engine that answers sums and questions right, the last first."""

    grid = Heads((4,))

    def answer(self, asks):
        for ask in reversed(list(asks)):
            if isinstance(ask.request, Generate):
                said = Generated(str(1 + int(ask.request.prompt.split("+")[0])))
            else:
                said = Scored(-float(ask.key[1] != int(ask.request.context[:-1])), True, 1)
            yield [Answer(ask.key, said, seconds=0.0, forward_tokens=1.0, plain_tokens=1)]


class Mute:
    """An engine that must not be asked."""

    grid = Heads((4,))

    def answer(self, asks):
        assert not list(asks)
        return iter(())


def test_its_rows_are_stored_and_scored_as_any_tasks(both, tmp_path):
    mixture, intact = load_task(both), np.zeros(4, dtype=bool)
    question = Question("m", "d", mixture.name, mixture.version, mixture.metric.kind)
    with Store(tmp_path / "store" / "rows.sqlite") as store:
        first = Meter(Right(), store, mixture, question, Cost())
        rows = first.under(intact, mixture.first(None), Silent(), "")
        again = Meter(Mute(), store, mixture, question, Cost())
        stored = again.under(intact, mixture.first(None), Silent(), "")
    assert [row.outcome for row in rows] == [1.0] * 10
    assert first.score(rows).score == again.score(stored).score == 1.0


def test_parts_may_be_named_tasks_from_elsewhere(mixture_file, task_file):
    task_file("sums")
    mixture = load_task(mixture_file("sums", "demo/facts"))
    assert mixture.size == 6 + 1024
    assert mixture.first(1) == [0, 6, 6 + 512]


def test_gen_is_the_mean_of_the_papers_four():
    check_task_name("gen")
    with pytest.raises(BadOption, match="hellaswag, boolq, arc_challenge, mmlu"):
        load_task("gen", TaskOptions(metric="acc"))


def test_data_for_a_mixture_is_refused(both, tmp_path):
    with pytest.raises(BadOption, match="--data is for one task.*sums, questions"):
        load_task(both, TaskOptions(data={"test": str(tmp_path / "sums.jsonl")}))


def test_metrics_of_both_directions_are_refused(mixture_file, task_file):
    task_file("sums")
    task_file("texts", **PERPLEXITY)
    with pytest.raises(BadOption, match="exact_match, word_perplexity.*better when higher"):
        load_task(mixture_file("sums", "texts"))


@pytest.mark.parametrize(
    ("tasks", "error", "said"),
    [
        (["sums"], BadData, "two or more"),
        (["sums", "both"], BadData, "none of them a mixture"),
        (["sums", "gsm9k"], UnknownName, "Did you mean 'gsm8k'"),
        (["sums", {"task": "questions"}], BadData, "by their names"),
    ],
)
def test_wrong_members_are_refused_before_anything_is_built(
    mixture_file, task_file, tasks, error, said
):
    task_file("sums")
    path = mixture_file(*tasks)
    with pytest.raises(error, match=said):
        check_task_name(path)


numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(numbers, st.floats(0, 1e6)), min_size=1, max_size=9))
def test_the_error_of_a_mean_of_scores(pairs):
    scores, stderrs = zip(*pairs, strict=True)
    mean, stderr = mean_of_scores(scores, stderrs)
    assert mean == pytest.approx(sum(scores) / len(scores))
    assert (stderr * len(scores)) ** 2 == pytest.approx(sum(error**2 for error in stderrs))
    assert mean_of_scores(scores, [None, *stderrs[1:]])[1] is None
    assert mean_of_scores([*scores, None], [*stderrs, 1.0]) == (None, None)
