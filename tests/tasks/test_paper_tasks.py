"""The heads paper's tasks on rows written for these tests, in the columns of the real ones."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caploc.declaration import ModelOptions
from caploc.options import TaskOptions
from caploc.tasks.catalog import (
    check_task_name,
    harness_manager,
    load_task,
    own_manager,
    own_names,
    wants_chat_template,
)
from caploc.tasks.harness import mean_of_scores
from caploc.tasks.task import Generated, Scored, write_answer
from worlds import DEMO, TASKS

CHOSEN = {
    "hellaswag": (
        {"ind": 1, "activity_label": "Baking", "ctx_a": "A cook opens the oven.",
         "ctx_b": "she", "endings": ["sings.", "takes out the bread and waits.", "flies", "naps."],
         "label": "1"},
        "validation", "acc_norm",
    ),
    "arc_challenge": (
        {"id": "1", "question": "What melts?", "answerKey": "B",
         "choices": {"text": ["stone", "ice in the warm sun"], "label": ["A", "B"]}},
        "test", "acc_norm",
    ),
    "boolq": (
        {"question": "is ice cold", "passage": "Ice is frozen water.", "idx": 0, "label": 1},
        "validation", "acc",
    ),
    "mmlu_anatomy": (
        {"question": "How many hands?", "subject": "anatomy", "choices": ["1", "2", "3", "4"],
         "answer": 1},
        "test", "acc",
    ),
    "wmdp_bio": (
        {"question": "Which is a plant?", "choices": ["a cat", "an oak", "a rock", "rain"],
         "answer": 1},
        "test", "acc",
    ),
}  # fmt: skip


@pytest.fixture
def on_rows(tmp_path):
    """Load a task on a few copies of one row."""

    def load(name, row, split="test", **options):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(f"{json.dumps(row)}\n" * 3)
        return load_task(name, TaskOptions(data={split: str(path)}, **options))

    return load


def likelihoods(numbers):
    return [Scored(number, False, 1) for number in numbers]


@pytest.mark.parametrize("name", CHOSEN)
def test_multiple_choice_is_scored_by_the_papers_metric(on_rows, name):
    row, split, metric = CHOSEN[name]
    task = on_rows(name, row, split)
    assert task.metric.name == metric
    count = len(task.requests(0))
    right = likelihoods([0.0 if choice == 1 else -50.0 for choice in range(count)])
    wrong = likelihoods([0.0 if choice == 0 else -50.0 for choice in range(count)])
    assert [task.outcome(task.item(0, said)) for said in (right, wrong)] == [1.0, 0.0]
    assert task.metric.chance == pytest.approx(1 / count)


@pytest.mark.parametrize("name", ["hellaswag", "arc_challenge"])
def test_the_length_of_an_answer_counts_where_the_paper_says_so(on_rows, name):
    row, split, _ = CHOSEN[name]
    unlikelier = [-4.0, -5.0, *[-99.0] * (len(row.get("endings", "ab")) - 2)]  # the right is longer
    by_metric = {
        metric: on_rows(name, row, split, metric=metric).item(0, likelihoods(unlikelier))
        for metric in ("acc", "acc_norm")
    }
    assert by_metric == {"acc": 0.0, "acc_norm": 1.0}


def test_a_group_is_the_mean_of_its_tasks_weighed_by_size_where_it_says_so(task_file, tmp_path):
    task_file("few", [{"q": "1+1=", "a": "2"}] * 2)
    task_file("many", [{"q": "2+2=", "a": "4"}] * 8, tag="sums")
    (tmp_path / "inner.yaml").write_text("group: inner\ntask: [sums]\n")
    weighed = [{"metric": "exact_match", "weight_by_size": True}]
    scores = []
    for name, more in (("plain", {}), ("weighed", {"aggregate_metric_list": weighed})):
        group = {"group": name, "task": ["few", "inner"]} | more
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(group))
        task = load_task(str(tmp_path / f"{name}.yaml"))
        scores.append(task.score(range(10), [1.0, 0.0] + [1.0] * 6 + [0.0] * 2))
    assert [each.score for each in scores] == pytest.approx([(1 / 2 + 3 / 4) / 2, 0.7])
    errors = (1 / 4 * 2) / 2, (3 / 16 * 8 / 7) / 8  # squares of the two standard errors
    assert scores[0].stderr == pytest.approx(sum(errors) ** 0.5 / 2)


def test_the_papers_own_tasks_are_listed_and_clash_with_none():
    own = set(own_manager("paper").all_tasks)
    of_heads = {"rhyming", "rhyming_easy", "swearing", "swearing_identify"}
    of_neurons = {"metamath", "code25k", "emotion", "imdb"}
    assert own == of_heads | of_neurons
    assert not own & set(harness_manager().all_tasks)
    brought = [*sorted(own), *own_manager("words").all_tasks]
    assert own_names() == [*brought, *own_manager(TASKS).all_tasks]
    for name in own:
        check_task_name(name)


TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<answer>"


@pytest.fixture
def tokenizer_with(monkeypatch):
    """The demo's tokenizer with a chat template of its own, or none."""
    from caploc.models.loading import load_tokenizer

    def give(template):
        def load(*arguments, **options):
            tokenizer = load_tokenizer(*arguments, **options)
            tokenizer.chat_template = template
            return tokenizer

        monkeypatch.setattr("caploc.models.loading.load_tokenizer", load)

    return give


@pytest.mark.parametrize(("template", "chats"), [(TEMPLATE, True), (None, False)])
def test_a_task_that_wants_a_chat_template_has_it_where_there_is_one(
    tokenizer_with, template, chats
):
    tokenizer_with(template)
    names = ["rhyming", "swearing", "demo/addition"]
    tasks = ModelOptions(DEMO).tasks(names, TaskOptions())
    starts = [task.requests(0)[0].prompt.startswith("<user>") for task in tasks]
    assert starts == [chats, chats, False]
    ends = [task.requests(0)[0].prompt.endswith("<answer>") for task in tasks]
    assert ends == starts
    assert [wants_chat_template(name) for name in names] == [True, True, False]


def test_answers_of_the_papers_tasks_are_shown():
    task = load_task("rhyming_easy")
    example = task.example(0)
    assert (example.gold, write_answer(example, [Generated("Cat")])) == (None, "Cat")


numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(numbers, st.floats(0, 1e6)), min_size=1, max_size=9))
def test_the_error_of_a_mean_of_scores(pairs):
    scores, stderrs = zip(*pairs, strict=True)
    mean, stderr = mean_of_scores(scores, stderrs)
    assert mean == pytest.approx(sum(scores) / len(scores))
    assert (stderr * len(scores)) ** 2 == pytest.approx(sum(error**2 for error in stderrs))
    assert mean_of_scores(scores, [None, *stderrs[1:]])[1] is None
    assert mean_of_scores([*scores, None], [*stderrs, 1.0]) == (None, None)
