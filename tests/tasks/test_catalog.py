import json
from pathlib import Path

import pytest
import yaml

from caploc.errors import BadData, BadOption, UnknownName
from caploc.options import TaskOptions
from caploc.tasks.catalog import load_task
from caploc.tasks.harness import digest_data
from caploc.tasks.signal import margin_of
from caploc.tasks.task import (
    Generate,
    Generated,
    LogLikelihood,
    Metric,
    Rolling,
    Scored,
    write_answer,
)
from doubles import write_lines
from worlds import CAPABILITIES

GSM8K = [
    {"question": f"What is {n} and {n}?", "answer": f"Add them.\n#### {2 * n}"} for n in range(8)
]


@pytest.fixture
def gsm8k_files(tmp_path):
    for split in ("train", "test"):
        write_lines(tmp_path / f"{split}.jsonl", GSM8K)
    return {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_capability_of_the_demo_has_a_task_of_500_examples(capability):
    task = load_task(f"demo/{capability}")
    assert task.size >= 500
    assert task.metric.higher_is_better


def test_each_kind_of_request_is_asked():
    kinds = {
        name: type(load_task(f"demo/{name}").requests(0)[0])
        for name in ("code", "capitals", "recall", "prose")
    }
    assert kinds == {
        "code": Generate,
        "capitals": LogLikelihood,
        "recall": LogLikelihood,
        "prose": Rolling,
    }


def test_a_group_scores_as_it_says():
    facts = load_task("demo/facts")
    assert facts.size == 1024
    examples, items = [0, 1, 2, 600], [1.0, 1.0, 1.0, 0.0]
    assert facts.score(examples, items).score == 0.5  # mean of its two tasks, not of four rows


def test_perplexity_is_aggregated_by_the_task_and_its_outcomes_are_better_when_higher():
    prose = load_task("demo/prose")
    items = [prose.item(n, [Scored(-20.0 - n, False, 30)]) for n in range(2)]
    words = [len(prose.requests(n)[0].text.split()) for n in range(2)]
    expected = 2.718281828459045 ** (41 / sum(words))
    assert prose.score([0, 1], items).score == pytest.approx(expected)
    assert prose.outcome(items[0]) == pytest.approx(-20 / words[0])


def test_the_outcome_can_be_the_log_probability_of_the_gold_answer():
    options = TaskOptions(outcome="logprob")
    addition = load_task("demo/addition", options)
    (request,) = addition.requests(0)
    assert request == LogLikelihood(
        load_task("demo/addition").requests(0)[0].prompt,
        addition.example(0).gold,
    )
    said = [Scored(-1.0, True, 2), Scored(-3.0, False, 2, " 9"), Scored(-3.0, False, 2)]
    assert [write_answer(addition.example(0), [each]) for each in said] == [
        "log-probability -1.00 (its first choice)",
        "log-probability -3.00 (its first choice is ' 9')",
        "log-probability -3.00",  # by an engine that does not tell
    ]
    item = addition.item(0, [Scored(-3.0, False, 2)])
    assert addition.outcome(item) == -1.5
    assert addition.score([0, 1], [-1.5, -0.5]).score == -1.0
    choice = load_task("demo/capitals", options)
    gold = load_task("demo/capitals").leaves[0].gold(0)
    assert choice.requests(0)[0].continuation == gold
    assert addition.in_metric().metric.name == "exact_match"


def test_a_choice_is_likely_by_its_margin_over_the_likeliest_other_one():
    capitals = load_task("demo/capitals")
    assert capitals.example(0).right == 2
    said = [Scored(nats, False, 3) for nats in (-5.0, -2.0, -1.5, -9.0)]
    assert margin_of(capitals.example(0), said) == 0.5
    assert margin_of(capitals.example(0), [said[0], said[2], said[1], said[3]]) == -0.5


def test_a_margin_is_that_of_choices_of_equal_length_where_the_metric_divides_by_length(task_file):
    path = task_file(
        "normed",
        [{"q": "Capital of Peru?", "a": 0}],
        output_type="multiple_choice",
        doc_to_choice=["Lima", "Copenhagen"],
        doc_to_target="a",
        metric_list=[{"metric": "acc_norm"}],
    )
    task = load_task(str(path))
    for longer, right in ((-9.5, 1.0), (-10.5, 0.0)):  # a nat for every letter would be a tie
        said = [Scored(-4.0, False, 2), Scored(longer, False, 4)]
        assert (margin_of(task.example(0), said) > 0) == (longer < -10.0)
        assert task.item(0, said) == 1.0 - right
        assert write_answer(task.example(0), said) == task.example(0).choices[int(right)]
    said = [Scored(-4.0, False, 2), Scored(-12.0, False, 4)]
    assert margin_of(task.example(0), said) == pytest.approx(7 * 0.2)  # nats a letter x letters


def test_a_metric_by_mutual_information_or_an_example_of_one_choice_leaves_no_margin(task_file):
    rows = [{"offered": ["Lima", "Oslo", "Bonn"], "right": 0}, {"offered": ["Rome"], "right": 0}]
    chosen = {
        "output_type": "multiple_choice",
        "doc_to_choice": "offered",
        "doc_to_target": "right",
    }
    metrics = [{"metric": "acc"}, {"metric": "acc_mutual_info"}]
    both_path, single_path = (
        str(task_file(name, kept, doc_to_text="A capital:", metric_list=metrics, **chosen))
        for name, kept in (("both", rows[:1]), ("single", rows))
    )
    both = load_task(both_path)
    nats = (-4.0, -7.0, -9.0, -1.0, -1.0, -1.0)  # the last three are asked without the question
    said = [Scored(each, False, 2) for each in nats]
    assert margin_of(both.example(0), said) == 3.0
    mutual = TaskOptions(metric="acc_mutual_info")
    assert load_task(both_path, mutual).example(0).right is None
    assert load_task(single_path).example(0).right is None
    # what each metric chooses is what is shown, and guessing knows nothing of what else is asked
    assert write_answer(both.example(0), said) == "Lima"
    said[3:] = [Scored(nats, False, 2) for nats in (-0.5, -4.0, -9.0)]  # gains -3.5, -3, 0
    assert write_answer(load_task(both_path, mutual).example(0), said) == "Bonn"
    assert both.metric.chance == pytest.approx(1 / 3)


def test_a_metric_that_lm_eval_does_not_have_is_a_mistake_in_a_sentence(task_file):
    read = {"output_type": "loglikelihood", "doc_to_target": "{{a}}"}
    strange = task_file(
        "strange", metric_list=[{"metric": "acc", "aggregation": "average"}], **read
    )
    with pytest.raises(BadOption, match="does not have; its YAML may name .*mean"):
        load_task(str(strange))
    unlike = task_file("unlike", metric_list=[{"metric": "exact_match"}], **read)
    task = load_task(str(unlike))
    with pytest.raises(BadOption, match="gives no exact_match.*kind loglikelihood; name another"):
        task.item(0, [Scored(-1.0, True, 1)])
    rows = [{"q": "Which?", "a": n % 3} for n in range(3)]
    chosen = {"output_type": "multiple_choice", "doc_to_choice": ["x", "y", "z"]}
    binary = task_file("binary", rows, doc_to_target="a", metric_list=[{"metric": "f1"}], **chosen)
    with pytest.raises(BadOption, match="The metric f1 of task binary cannot be taken"):
        load_task(str(binary)).score([0, 1, 2], [(0, 0), (1, 1), (2, 1)])


def test_written_answers_offer_no_choice():
    assert load_task("demo/sorting").example(0).right is None


def test_a_real_task_reads_local_files(gsm8k_files):
    task = load_task("gsm8k", TaskOptions(data=gsm8k_files))
    assert (task.size, task.metric.name) == (8, "exact_match")
    assert task.leaves[0].filter == "flexible-extract"
    request = task.requests(3)[0]
    assert request.prompt.count("Question:") == 6
    assert json.loads(request.options)["until"][0] == "Question:"
    assert task.item(3, [Generated("so it is 6.")]) == 1.0
    assert task.item(3, [Generated("so it is 7.")]) == 0.0


def test_changed_data_of_a_named_task_are_told_by_their_digest(gsm8k_files):
    files = TaskOptions(data=gsm8k_files)
    before = digest_data([load_task("gsm8k", files)])
    assert before == digest_data([load_task("gsm8k", files)]) != {}
    write_lines(Path(gsm8k_files["test"]), GSM8K[::-1])
    assert digest_data([load_task("gsm8k", files)]) != before


def test_fewshot_examples_can_be_left_out(gsm8k_files):
    task = load_task("gsm8k", TaskOptions(fewshot=0, data={"test": gsm8k_files["test"]}))
    assert task.requests(0)[0].prompt.count("Question:") == 1


def test_a_metric_and_its_filter_can_be_named(gsm8k_files):
    task = load_task("gsm8k", TaskOptions(metric="exact_match,strict-match", data=gsm8k_files))
    assert task.item(3, [Generated("so it is 6.")]) == 0.0
    assert task.item(3, [Generated("#### 6")]) == 1.0


def test_a_task_file_is_a_task(task_file):
    task = load_task(str(task_file()))
    assert task.requests(1)[0].prompt == "1+1="
    assert task.item(1, [Generated("2")]) == 1.0


def test_keys_change_with_what_is_asked_and_with_what_is_right(task_file):
    before = load_task(str(task_file("a")))
    rows = [{"q": f"{n}+1=", "a": str(n + 1)} for n in range(6)]
    rows[2]["a"], rows[3]["q"] = "0", "3 + 1 ="
    after = load_task(str(task_file("a", rows)))
    assert before.requests(2) == after.requests(2)
    same = [before.key(n) == after.key(n) for n in range(6)]
    assert same == [True, True, False, False, True, True]


FILTERED = [{"name": "none", "filter": [{"function": "take_first"}, {"function": "lowercase"}]}]
LOOSE = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}


@pytest.mark.parametrize(
    "change", [{"filter_list": FILTERED}, {"metric_list": [LOOSE | {"ignore_case": True}]}]
)
def test_the_version_changes_with_the_scoring(task_file, change):
    plain, again, other = (
        load_task(str(task_file("b", **each))).version for each in ({}, {}, change)
    )
    assert plain == again != other


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "humaneval_instruct"])
def test_tasks_that_run_model_written_code_are_refused(name):
    with pytest.raises(BadOption, match=r"--allow-code \(in bubblewrap, see docs/security\.md\)"):
        load_task(name)


def test_a_metric_that_is_not_there_is_refused():
    with pytest.raises(UnknownName, match="exact_match"):
        load_task("demo/addition", TaskOptions(metric="acc"))
    with pytest.raises(UnknownName, match="none"):
        load_task("demo/addition", TaskOptions(metric="exact_match,first"))


def test_log_probability_needs_a_gold_answer():
    with pytest.raises(BadOption, match="no gold answer.*--outcome metric"):
        load_task("rhyming", TaskOptions(outcome="logprob"))


def test_files_of_another_kind_are_refused(tmp_path):
    with pytest.raises(BadOption, match=r"\.jsonl.*'x\.txt'"):
        TaskOptions(data={"test": str(tmp_path / "x.txt")}).check_files()


def test_data_for_a_group_is_refused(gsm8k_files):
    with pytest.raises(BadOption, match="group of 2"):
        load_task("demo/facts", TaskOptions(data=gsm8k_files))


def test_examples_in_the_prompt_come_from_the_split_that_lm_eval_would_take(gsm8k_files, task_file):
    shots = TaskOptions(fewshot=1, data={"test": gsm8k_files["test"]})
    path = task_file(
        "e", training_split="train", doc_to_text="{{question}}", doc_to_target="{{answer}}"
    )
    with pytest.raises(BadData, match="add --data train=FILE or --fewshot 0"):
        load_task(str(path), shots)


def test_an_integer_target_without_choices_is_its_own_text(task_file):
    rows = [{"q": "1+1=", "a": 2}, {"q": "2+2=", "a": 4}]
    task = load_task(str(task_file("f", rows, doc_to_target="a")))
    assert task.example(0).gold == "2"


def test_what_greedy_decoding_has_not_is_refused(task_file):
    sampled, beams = {"do_sample": True}, {"do_sample": False, "num_beams": 4}
    for options in (sampled, {"temperature": 0.7}, beams, {"repetition_penalty": 1.5}):
        with pytest.raises(BadOption, match="decodes greedily"):
            load_task(str(task_file(generation_kwargs=options)))


def test_outcomes_of_items_that_are_not_numbers(task_file):
    task = load_task(str(task_file("g")))
    assert task.outcome([True, False, False, True]) == 0.5
    with pytest.raises(BadOption, match="no number for a single example"):
        task.outcome({"a": 1})
    task.metric = Metric("f1")
    assert [task.outcome(item) for item in ([1, 1], [1, 0])] == [1.0, 0.0]


def test_a_limit_takes_the_first_examples_of_every_task_of_a_group():
    facts = load_task("demo/facts")
    assert facts.first(2) == [0, 1, 512, 513]
    assert facts.first(None) == list(range(1024))


def test_a_group_of_tasks_with_different_metrics_is_refused(tmp_path, task_file):
    task_file("h")
    task_file(
        "i", metric_list=[{"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}]
    )
    (tmp_path / "both.yaml").write_text(json.dumps({"group": "both", "task": ["h", "i"]}))
    with pytest.raises(BadOption, match="different metrics.*--metric"):
        load_task(str(tmp_path / "both.yaml"))


def test_a_perplexity_has_a_bootstrapped_error_and_prints_nothing(capsys):
    recall = load_task("demo/recall", TaskOptions(metric="perplexity"))
    score = recall.score(range(4), [-1.0, -2.0, -0.5, -3.0])
    assert score.score == pytest.approx(2.718281828**1.625)
    assert 0.5 < score.stderr < 6
    assert capsys.readouterr().out == ""
    assert load_task("demo/prose").score([0, 1], [(-9999.0, 1), (-9999.0, 1)]).score is None


def test_the_version_does_not_depend_on_where_a_function_lies_in_memory(task_file, tmp_path):
    (tmp_path / "picking.py").write_text("def pick(answers, docs):\n    return answers\n")
    path = task_file("j")
    filters = "filter_list:\n- name: own\n  filter:\n"
    filters += "  - {function: custom, filter_fn: !function picking.pick}\n"
    path.write_text(yaml.safe_dump(json.loads(path.read_text())) + filters)
    before = load_task(str(path))
    assert "0x" not in json.dumps(before.leaves[0].definition(), default=str)
    (tmp_path / "picking.py").write_text("def pick(answers, docs):\n    return answers[::1]\n")
    assert load_task(str(path)).version != before.version
