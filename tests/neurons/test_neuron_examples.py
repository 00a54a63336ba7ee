"""Which examples find neurons and which judge them: never the same."""

import json

import pytest
from planted_models import TWO

from caploc.declaration import ModelOptions
from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData, BadOption
from caploc.neurons.study import load_source, with_end
from caploc.options import TaskOptions
from caploc.tasks.task import Rolling
from doubles import write_task_file
from worlds import DEMO

MODEL = ModelOptions(DEMO, device="cpu")


@pytest.fixture
def task_file(tmp_path):
    """Write a task without a training split; returns its path."""

    def write(rows, **changes):
        return str(write_task_file(tmp_path, rows, target_delimiter="", **changes))

    return write


def asked(task, examples):
    """What is asked of some examples."""
    return {task.requests(example) for example in examples}


def sums(count):
    return [{"q": f"{n}+1=", "a": str(n + 1)} for n in range(count)]


def test_a_task_without_training_examples_gives_every_other_one_to_either_side(task_file):
    found = load_source(MODEL, task_file(sums(11)), TaskOptions(), None, 0)
    assert sorted(found.find_on) == [0, 2, 4, 6, 8, 10]
    assert found.judge_on == [1, 3, 5, 7, 9]
    assert not asked(found.finding, found.find_on) & asked(found.gold, found.judge_on)


def test_a_question_that_stands_there_twice_is_on_one_side_alone(task_file):
    found = load_source(MODEL, task_file([*sums(5), *sums(5)]), TaskOptions(), None, 0)
    assert (found.judging.size, sorted(found.find_on), found.judge_on) == (5, [0, 2, 4], [1, 3])
    assert not asked(found.finding, found.find_on) & asked(found.gold, found.judge_on)


def test_training_examples_find_and_evaluation_examples_judge(planted):
    model = planted(TWO)
    found = model.source("warm", None)
    train, test = (
        [
            json.loads(line)["prompt"]
            for line in (model.folder / f"warm_{split}.jsonl").read_text().splitlines()
        ]
        for split in ("train", "test")
    )
    finding = [found.finding.requests(example)[0].context for example in found.find_on]
    assert sorted(finding) == sorted(train)
    judging = [found.judging.requests(example)[0].prompt for example in found.judge_on]
    assert judging == test
    assert [found.gold.requests(n)[0].context for n in found.judge_on] == test


@pytest.mark.parametrize("name", ["addition", "code", "cursing", "capitals", "sentences"])
def test_no_demo_example_is_on_both_sides(name):
    found = load_source(MODEL, f"demo/{name}", TaskOptions(), 50, 0)
    assert len(found.find_on) == 50 and len(found.judge_on) == found.judging.size
    assert not asked(found.finding, range(found.finding.size)) & asked(found.gold, found.judge_on)


@pytest.mark.slow
def test_the_draw_is_the_seed_s_and_more_keep_the_first(planted):
    drawn = {seed: planted(TWO).source("warm", 20, seed).find_on for seed in (0, 1)}
    assert drawn[0] == planted(TWO).source("warm", 20, 0).find_on != drawn[1]
    assert len(set(drawn[0])) == 20
    assert set(drawn[0]) <= set(planted(TWO).source("warm", 50, 0).find_on)
    assert len(planted(TWO).source("warm", 10_000).find_on) == 200


def test_spans_are_prompt_and_gold_answer(planted):
    model = planted(TWO)
    found, wording = model.source("warm", 5), model.engine.encoder
    for example, span in zip(found.find_on, found.spans(wording), strict=True):
        (request,) = found.finding.requests(example)
        text = wording.tokenizer.decode([*span.inputs, *span.continuation])
        assert text == request.context + request.continuation
    (judged,) = found.judged_spans(wording, 1)
    assert wording.tokenizer.decode(judged.inputs) == found.gold.requests(0)[0].context


def test_gold_answers_of_choices_programs_and_curses(demo):
    wording = RequestEncoder(demo.model, demo.tokenizer)
    for name in ("sentences", "capitals", "code", "cursing"):
        found = load_source(MODEL, f"demo/{name}", TaskOptions(), 3, 0)
        for span in found.spans(wording):
            assert demo.tokenizer.decode(list(span.continuation)).strip()


def test_a_long_text_is_asked_in_windows(demo, task_file):
    long = "word " * 800  # 4,000 tokens, of at most 2,048 at a time
    path = task_file(
        [{"text": f"{long}{n}"} for n in range(4)],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}],
    )
    found = load_source(MODEL, path, TaskOptions(), 2, 0)
    assert isinstance(found.finding.requests(0)[0], Rolling)
    wording = RequestEncoder(demo.model, demo.tokenizer)
    spans = found.spans(wording)
    assert len(spans) > 2 == len(found.find_on)
    tokens = len(wording.harness.tok_encode(f"{long}0"))
    assert sum(len(span.continuation) for span in spans) == 2 * tokens


def test_a_task_without_gold_answers_is_refused_in_a_sentence(task_file):
    path = task_file([{"q": f"{n}+1=", "a": ""} for n in range(8)])
    with pytest.raises(BadOption, match="has no gold answer whose log-probability") as refused:
        load_source(MODEL, path, TaskOptions(), 4, 0)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_examples_are_refused(task_file, count):
    with pytest.raises(BadData, match=f"and {count // 2} others to judge them on; at least 2"):
        load_source(MODEL, task_file(sums(count)), TaskOptions(), None, 0)


@pytest.mark.parametrize(
    ("task", "end"),
    [("demo/sorting", "\n"), ("demo/code", "\n"), ("demo/elements", ""), ("demo/prose", "")],
)
def test_a_written_answer_is_learnt_with_its_end_and_a_chosen_one_as_it_is(demo, task, end):
    found, wording = (
        load_source(MODEL, task, TaskOptions(), 3, 0),
        RequestEncoder(demo.model, demo.tokenizer),
    )
    for plain, lesson in zip(found.spans(wording), found.lessons(wording), strict=True):
        text = [demo.tokenizer.decode(span.continuation) for span in (plain, lesson)]
        assert text[1] == text[0] + end
        assert len(lesson.inputs) == len(plain.inputs) + len(end)


@pytest.mark.parametrize(
    ("answer", "end", "whole"),
    [
        ("85", "\n", "85\n"),
        ("x\n", "\n\n", "x\n\n"),
        ("x\n\n", "\n\n", "x\n\n"),
        ("", "</s>", "</s>"),
    ],
)
def test_an_answer_that_ends_already_is_not_ended_twice(answer, end, whole):
    assert with_end(answer, end) == whole


def test_a_single_stop_string_is_one_end_and_not_its_first_letter(demo, task_file):
    how = {"until": "END", "max_gen_toks": 4, "do_sample": False}
    found = load_source(MODEL, task_file(sums(8), generation_kwargs=how), TaskOptions(), None, 0)
    assert found.end(RequestEncoder(demo.model, demo.tokenizer)) == "END"
