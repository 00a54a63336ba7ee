"""Copies of a question are one piece of evidence: one is asked, and no copy is held out."""

import pytest

from caploc.declaration import ModelOptions, Study
from caploc.errors import BadData
from caploc.pairs import write_task
from caploc.progress import Silent
from caploc.tasks.catalog import load_task
from caploc.tasks.defects import one_of_each_question
from doubles import Watcher

QUESTIONS, COPIES = 50, 12


def copied(tmp_path, answers):
    pairs = [(f"{n % QUESTIONS} is", answers(n)) for n in range(QUESTIONS * COPIES)]
    return load_task(str(write_task(pairs, tmp_path)))


def test_one_of_each_question_is_asked_and_said(tmp_path):
    task, told = copied(tmp_path, lambda n: f" {n % QUESTIONS}"), Watcher()
    kept = one_of_each_question(task, 0.0, told)
    assert kept.size == QUESTIONS
    assert [kept.key(n) for n in range(QUESTIONS)] == [task.key(n) for n in range(QUESTIONS)]
    assert told.told and "600 examples put 50 different questions" in told.told[0]
    assert one_of_each_question(kept, 0.0, told) is kept and len(told.told) == 1


def test_the_same_prompt_with_another_answer_is_named_or_left_out(tmp_path):
    pairs = [(f"{n} is", f" {n}") for n in range(QUESTIONS)] + [("3 is", " 4"), ("5 is", " 5")]
    task = load_task(str(write_task(pairs, tmp_path)))
    with pytest.raises(BadData, match="example 50 has another answer than example 3"):
        one_of_each_question(task, 0.0, Silent())
    assert one_of_each_question(task, 0.02, Silent()).size == QUESTIONS


def test_searched_and_held_out_examples_share_no_question(tmp_path):
    task = one_of_each_question(copied(tmp_path, lambda n: f" {n % QUESTIONS}"), 0.0, Silent())
    draw = Study(ModelOptions("any"), "own").draw(task.size)
    questions = [{task.example(e).question for e in part} for part in (draw.searched, draw.kept)]
    assert questions[0] and questions[1] and not questions[0] & questions[1]
