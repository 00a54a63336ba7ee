"""Whose a run folder is."""

import json
from dataclasses import asdict

import pytest

from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption, FolderTaken, UserError
from caploc.folder import (
    RESULT,
    STUDIES,
    check_source,
    claim,
    finished_in,
    tell_change,
)
from caploc.store import Question, Row
from worlds import DEMO

QUESTION = Question("weights", "float32", "task", "1", "metric")
ROW = Row(b"", "example", 0, 1.0, 1, "[]", 1.0, 1, 1.0)
STUDY = json.loads(json.dumps(asdict(Study(ModelOptions(DEMO), "demo/addition"))))


def begin(folder, study, data=None):
    """Begin a run, and store a row."""
    with claim(folder, study, "caploc locate", data) as store:
        store.add(store.question_id(QUESTION), [ROW])


def test_the_same_study_goes_on_and_another_is_refused(tmp_path):
    begin(tmp_path, STUDY)
    begin(tmp_path, STUDY)
    elsewhere = STUDY | {"model": STUDY["model"] | {"device": "cuda", "batch_size": 3}}
    begin(tmp_path, elsewhere)  # where it runs changes no outcome
    with pytest.raises(FolderTaken, match=r"belongs to another run \(exclude \[\], not \['L0H1'\]"):
        begin(tmp_path, STUDY | {"exclude": ["L0H1"]})
    other = STUDY | {"exclude": ["L0H1"], "task": "another"}
    with pytest.raises(FolderTaken, match=r"another run \(task '.*', not 'another'; exclude"):
        begin(tmp_path, other)


def test_the_folder_of_several_studies_is_no_run(tmp_path):
    (tmp_path / STUDIES).write_text("{}")
    with pytest.raises(FolderTaken, match="holds several studies"):
        begin(tmp_path, STUDY)
    begin(tmp_path / "one", STUDY)


def test_a_file_and_a_folder_of_a_model_are_no_run(tmp_path):
    (tmp_path / "notes").write_text("")
    with pytest.raises(BadOption, match="notes is a file"):
        begin(tmp_path / "notes", STUDY)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FolderTaken, match="holds a model"):
        begin(tmp_path, STUDY)
    assert not (tmp_path / "rows.sqlite").exists()


def test_what_holds_no_finished_run_is_told_apart(tmp_path):
    """Another folder, one of several runs, and a run that has not ended."""

    def told(folder):
        with pytest.raises(UserError) as refused:
            check_source(str(folder))
        return str(refused.value)

    assert "is no finished run; name the folder of one, or a model" in told(tmp_path / "gone")
    begin(tmp_path / "one", STUDY)
    assert "its run has not ended, or is of another command: wait" in told(tmp_path / "one")
    (tmp_path / "one" / RESULT).write_text("{}")
    assert f"name one of the runs in it, such as {tmp_path / 'one'}." in told(tmp_path)
    check_source(str(tmp_path / "one"))
    assert finished_in(tmp_path) == finished_in(tmp_path / "one") == [tmp_path / "one"]
    assert finished_in(tmp_path / "gone") == [tmp_path / "gone"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("/r/sums-0a1b2c3d/sums.yaml", "/r/sums-ffff0000/sums.yaml", "'sums' with other examples"),
        (
            ["a", "/r/sums-0a1b2c3d/sums.yaml"],
            ["a", "/r/sums-ffff0000/sums.yaml"],
            "'sums' with other examples",
        ),
        ("/r/sums-v1/sums.yaml", "/r/sums-v2/sums.yaml", "'/r/sums-v1/sums.yaml', not"),
        (["a", "b"], ["c", "d"], "['a', 'b'], not ['c', 'd']"),
        (["a"], ["a", "b"], "['a'], not ['a', 'b']"),
    ],
)
def test_tasks_made_of_other_pairs_are_told_apart_from_other_tasks(old, new, told):
    assert told in tell_change("tasks", old, new)


def test_a_run_does_not_go_on_with_other_examples(tmp_path):
    """Its rows would be of some, and its report of others."""
    begin(tmp_path, STUDY, {"a.yaml": "1"})
    begin(tmp_path, STUDY, {"a.yaml": "1", "b.yaml": "2"})
    begin(tmp_path, STUDY)
    with pytest.raises(FolderTaken, match="The examples of a.yaml are not those that"):
        begin(tmp_path, STUDY, {"a.yaml": "3"})


def test_a_run_without_a_row_leaves_its_folder_to_another(tmp_path):
    """Unless somebody wrote something else into it."""
    other = STUDY | {"task": "another"}
    for study in (STUDY, other):
        with pytest.raises(UserError), claim(tmp_path, study, ""):
            raise UserError("The model cannot be loaded.")
    assert json.loads((tmp_path / "run.json").read_text())["study"] == other
    (tmp_path / "scores.json").write_text("{}")
    with pytest.raises(FolderTaken, match="belongs to another run"), claim(tmp_path, STUDY, ""):
        pass


def test_a_run_with_a_row_stays_when_it_fails(tmp_path):
    with pytest.raises(UserError), claim(tmp_path, STUDY, "") as store:
        store.add(store.question_id(QUESTION), [ROW])
        raise UserError("The model cannot be loaded.")
    begin(tmp_path, STUDY)
