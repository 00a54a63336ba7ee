"""The tasks on words: their examples, their prompts, and their twins."""

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from caploc.naming import capability
from caploc.tasks import words
from caploc.tasks.catalog import load_task, own_manager
from caploc.tasks.datafiles import definition
from caploc.tasks.task import Generate, Generated, Scored

HERE = Path(words.__file__).parent
NAMES = own_manager("words").all_tasks
CHOSEN = ("words/sentiment", "words/odd_one_out")  # one of several answers is picked
THE_SAME = {f"words/{name}{twin}" for name in ("upper", "copy") for twin in ("", "_twin")}
FEWER = {"capital": 130, "country": 130, "nationality": 104, "comparative": 265, "antonym": 250}
TWINS = {name: capability(name) for name in NAMES if capability(name) != name}
ZERO_SHOT = [name for name in NAMES if name.endswith("_zero_shot")]
SHOWN = sorted(set(NAMES) - set(ZERO_SHOT))  # whose prompts show examples


@pytest.fixture(scope="module")
def loaded():
    """Every task on words, loaded once."""
    return {name: load_task(name) for name in NAMES}


def samples(name):
    """The examples that a task's prompts show."""
    asked = definition(own_manager("words").task_index[name])
    return asked.get("fewshot_config", {"samples": []})["samples"]


def rows(name):
    """The rows of the table that a task asks from."""
    table = definition(own_manager("words").task_index[name])["dataset_kwargs"]["table"]
    return list(csv.DictReader((HERE / f"{table}.csv").read_text().splitlines()))


def opening(task, example):
    """The part of a prompt before its last line: what all prompts of a task share."""
    request = task.requests(example)[0]
    prompt = request.prompt if isinstance(request, Generate) else request.context
    frame = definition(own_manager("words").task_index[task.name])["doc_to_text"]
    line = frame.replace("{{question}}", task.leaves[0].docs[example]["question"])
    assert prompt.endswith(line)
    return prompt.removesuffix(line)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_has_300_examples_or_all_there_are(loaded, name):
    task = loaded[name]
    assert FEWER.get(capability(name).removeprefix("words/"), 300) <= task.size <= 300
    asked = [doc["question"] for doc in task.leaves[0].docs]
    assert len(set(asked)) == len(asked)
    for row in rows(name):
        assert row["answer"] == row["answer"].strip() != ""
        assert "\n" not in row["question"] + row["answer"]
        assert row["answer"].lower() != row["question"].lower() or name in THE_SAME


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_of_a_task_shows_the_same_examples(loaded, name):
    task = loaded[name]
    openings = {opening(task, example) for example in range(task.size)}
    assert len(openings) == 1
    shown = openings.pop()
    for sample in samples(name):
        assert sample["question"] in shown and sample["answer"] in shown


@pytest.mark.parametrize("name", NAMES)
def test_no_example_of_a_prompt_is_asked_of_the_task_or_its_twin(name):
    family = {name} | {twin for twin, of in TWINS.items() if of == name} | {TWINS.get(name, name)}
    shown = {sample["question"] for member in family for sample in samples(member)}
    assert 4 <= len(samples(name)) <= 8 or name in ZERO_SHOT
    assert not shown & {row["question"] for row in rows(name)}


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_ends_where_a_word_may_follow(loaded, name):
    for example in (0, loaded[name].size - 1):
        for request in loaded[name].requests(example):
            prompt = request.prompt if isinstance(request, Generate) else request.context
            assert prompt == prompt.rstrip()
            if isinstance(request, Generate):
                assert json.loads(request.options)["until"][0] == "\n"
            else:
                assert request.continuation.startswith(" ")


@pytest.mark.parametrize("name", sorted(set(SHOWN) - set(CHOSEN) - {"words/sentiment_twin"}))
def test_only_the_exact_answer_scores(loaded, name):
    task = loaded[name]
    for example in range(0, task.size, 37):
        gold = task.leaves[0].docs[example]["answer"]
        right = Generated(f" {gold} ")
        assert task.outcome(task.item(example, (right,))) == 1
        for wrong in ("", gold.swapcase() if gold.isalpha() else f"{gold}0", f"{gold} {gold}"):
            assert task.outcome(task.item(example, (Generated(f" {wrong}"),))) == 0


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_without_examples_the_question_stands_alone_and_the_first_choice_scores(loaded, name):
    task, (doc, *_) = loaded[name], loaded[name].leaves[0].docs
    (request,) = task.requests(0)
    frame = definition(own_manager("words").task_index[name])["doc_to_text"]
    assert request.context == frame.replace("{{question}}", doc["question"])
    assert request.continuation == f" {doc['answer']}"
    outcomes = [task.outcome(task.item(0, (Scored(-1.0, greedy, 1),))) for greedy in (True, False)]
    assert outcomes == [1, 0]
    assert TWINS[name] == name.removesuffix("_zero_shot")


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_asks_for_the_same_in_other_words_with_other_examples(loaded, name):
    other = TWINS[name]
    assert other in NAMES and other not in TWINS
    mine, theirs = samples(name), samples(other)
    assert not {s["question"] for s in mine} & {s["question"] for s in theirs}
    frame, other_frame = (
        definition(own_manager("words").task_index[task])["doc_to_text"] for task in (name, other)
    )
    said, other_said = (
        set(text.replace("{{question}}", "").split()) for text in (frame, other_frame)
    )
    assert said and (name in ZERO_SHOT or not said & other_said)
    asked, other_asked = ({row["question"] for row in rows(task)} for task in (name, other))
    assert asked == other_asked or not asked & other_asked


@pytest.mark.parametrize(("table", "suffix"), [("past", "ed"), ("plural", "s"), ("gerund", "ing")])
def test_adding_the_plain_ending_is_not_enough(table, suffix):
    found = list(csv.DictReader((HERE / f"{table}.csv").read_text().splitlines()))
    assert sum(row["answer"] == row["question"] + suffix for row in found) < 0.55 * len(found)


def test_choices_are_balanced(loaded):
    moods = Counter(row["answer"] for row in rows("words/sentiment"))
    assert min(moods.values()) >= 0.4 * sum(moods.values())
    places = Counter(row["kind"] for row in rows("words/odd_one_out"))
    assert len(places) == 4 and max(places.values()) <= 0.3 * sum(places.values())
    assert loaded["words/sentiment"].metric.chance == pytest.approx(0.5)
    assert loaded["words/odd_one_out"].metric.chance == pytest.approx(0.25)


def test_the_page_shows_every_task_as_it_is_asked():
    """A twin or zero-shot form goes by its task's name."""
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    asked = dict(re.findall(r"^\| `(words/\w+)`[^|]*\|[^|]*\| `(.*?)` →", page, re.MULTILINE))
    assert set(asked) == set(NAMES) - set(TWINS) - set(ZERO_SHOT)
    for name, line in asked.items():
        config = definition(own_manager("words").task_index[name])
        form = config["doc_to_text"].replace("{{question}}", rows(name)[0]["question"])
        assert line == form.replace("\n", " ⏎ "), name
