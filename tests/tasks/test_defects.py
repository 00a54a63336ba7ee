"""Examples that cannot be asked as they stand are named before the first row, all at once."""

import pytest

from caploc.declaration import ModelOptions, Study
from caploc.errors import BadData
from caploc.tasks.catalog import load_task
from caploc.tasks.defects import find_defects, without_defects
from caploc.tasks.signal import Signal
from doubles import METRIC, write_task_file

CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "target_delimiter": "",
    "metric_list": [METRIC | {"metric": "acc"}],
}


def choices(tmp_path, **changed):
    records = [
        {"prompt": f"{n}?", "choices": ["yes", "no", "maybe"], "gold": n % 3} for n in range(12)
    ]
    for number, change in changed.items():
        records[int(number[1:])] |= change
    return load_task(str(write_task_file(tmp_path, records, "own", **CHOICES)))


def fits(request):
    return None


def found(task, misfit=fits):
    defects = find_defects(task, range(task.size), misfit)
    return {each.example: each.why for each in defects}


def test_a_sound_task_has_none(tmp_path):
    task = choices(tmp_path)
    assert found(task) == {} and without_defects(task, range(12), fits, 0.0) is task


def test_blank_choices_and_missing_right_ones_are_found_together(tmp_path):
    task = choices(tmp_path, _7={"choices": ["yes", "  ", "maybe"]}, _9={"gold": 5})
    assert found(task) == {7: "an empty choice", 9: "no right choice"}
    with pytest.raises(
        BadData,
        match=r"In own 2 of 12 .*as they stand: example 7 has .*example 9 has .*--leave-out 0.17",
    ):
        without_defects(task, range(12), fits, 0.0)


def test_several_right_choices_are_no_defect_and_are_guessed_more_easily(tmp_path):
    several = {f"_{n}": {"gold": [0, 2]} for n in range(12)}
    task = choices(tmp_path, **several)
    assert found(task) == {} and task.metric.chance == pytest.approx(2 / 3)
    assert Signal(task, {0: ()}).linear  # which one to scan is not known


def test_where_every_example_lacks_something_none_is_left_out(tmp_path):
    with pytest.raises(BadData, match=r"Correct them\.$"):
        without_defects(choices(tmp_path), range(12), lambda _: "too much", 0.0)


@pytest.mark.parametrize(("blank", "share"), [({7}, 0.09), ({2, 7, 9}, 0.25)])
def test_the_share_that_a_refusal_names_is_enough(tmp_path, blank, share):
    task = choices(tmp_path, **{f"_{n}": {"choices": ["yes", "", "maybe"]} for n in blank})
    with pytest.raises(BadData, match=rf"--leave-out {share}\.$"):
        without_defects(task, range(12), fits, 0.0)
    assert without_defects(task, range(12), fits, share).size == 12 - len(blank)


def test_a_share_may_be_left_out(tmp_path):
    task = choices(tmp_path, _7={"choices": ["yes", "", "maybe"]})
    left = without_defects(task, range(12), fits, 0.1)
    assert left.size == 11 and found(left) == {}
    kept = [n for n in range(12) if n != 7]
    assert [left.example(n) for n in range(11)] == [task.example(n) for n in kept]
    with pytest.raises(BadData, match="as it stands: example 7 has an empty choice"):
        without_defects(task, range(12), fits, 0.05)


def test_what_the_window_does_not_take_is_named(tmp_path):
    task = choices(tmp_path)
    long = found(task, lambda request: "too long" if request.context == "4?" else None)
    assert long == {4: "too long"}


def test_questions_are_told_apart_by_prompt_and_choices(tmp_path):
    task = choices(tmp_path, _1={"prompt": "0?"}, _2={"prompt": "0?", "choices": ["a", "b", "c"]})
    assert task.example(0).question == task.example(1).question != task.example(2).question


def test_the_first_examples_are_those_of_what_is_left(tmp_path):
    left = choices(tmp_path).without({0, 1, 3})
    assert [left.example(n).question for n in left.first(2)] == [
        choices(tmp_path).example(n).question for n in (2, 4)
    ]
    assert left.first(None) == [*range(9)]


def test_what_is_asked_in_the_place_of_examples_left_out_is_looked_at_too(tmp_path):
    blank = {f"_{n}": {"choices": ["yes", "", "maybe"]} for n in (1, 2, 4, 6)}
    study = Study(ModelOptions("any"), "own", examples=2, limit=2, leave_out=0.6)
    left = study.without_defects({"own": choices(tmp_path, **blank)}, fits)["own"]
    assert not find_defects(left, study.may_ask("own", left), fits)
