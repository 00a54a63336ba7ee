"""Whose a run folder is: the same study, also where an older version began it."""

import json
from dataclasses import asdict

import pytest

from caploc.errors import BadOption, FolderTaken, UserError
from caploc.folder import (
    LATER,
    RESULT,
    STUDIES,
    check_earlier,
    check_source,
    claim,
    finished_in,
    flat,
    question,
)
from caploc.study import Study
from caploc.workbench import ModelOptions

STUDY = json.loads(json.dumps(asdict(Study(ModelOptions("demo"), "demo/addition"))))


def without(study, name):
    """The study as a version wrote it that did not have the choice."""
    *inside, key = name.split(".")
    copy = json.loads(json.dumps(study))
    place = copy
    for each in inside:
        place = place[each]
    del place[key]
    return copy


@pytest.mark.parametrize("name", LATER)
def test_what_an_older_run_does_not_name_is_what_nobody_chose(name):
    assert flat(STUDY)[name] == LATER[name]
    assert question(without(STUDY, name)) == question(STUDY)


def test_an_older_run_goes_on_and_another_study_is_refused(tmp_path):
    older = STUDY
    for name in LATER:
        older = without(older, name)
    claim(tmp_path, older, "caploc locate").close()
    claim(tmp_path, STUDY, "caploc locate").close()
    with pytest.raises(FolderTaken, match=r"belongs to another run \(exclude None, not \['L0H1'\]"):
        claim(tmp_path, STUDY | {"exclude": ["L0H1"]}, "caploc locate")
    other = STUDY | {"exclude": ["L0H1"], "task": "another"}
    with pytest.raises(FolderTaken, match=r"another run \(task '.*', not 'another', exclude"):
        claim(tmp_path, other, "caploc locate")


def test_the_folder_of_several_studies_is_no_run(tmp_path):
    (tmp_path / STUDIES).write_text("{}")
    with pytest.raises(FolderTaken, match="holds several studies"):
        claim(tmp_path, STUDY, "caploc locate")
    claim(tmp_path / "one", STUDY, "caploc locate").close()


def test_a_file_and_a_folder_of_a_model_are_no_run(tmp_path):
    (tmp_path / "notes").write_text("")
    with pytest.raises(BadOption, match="notes is a file"):
        claim(tmp_path / "notes", STUDY, "")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FolderTaken, match="holds a model"):
        claim(tmp_path, STUDY, "")
    assert not (tmp_path / "rows.sqlite").exists()


def test_another_model_or_task_is_refused_before_anything_is_loaded(tmp_path):
    asked = {"model": "demo", "task": "demo/addition", "goal": "heads"}
    check_earlier(tmp_path, **asked)
    claim(tmp_path, STUDY, "caploc locate").close()
    check_earlier(tmp_path, **asked)
    with pytest.raises(FolderTaken, match=r"another run \(model 'demo', not 'other', goal 'heads'"):
        check_earlier(tmp_path, **asked | {"model": "other", "goal": "set"})


def test_what_holds_no_finished_run_is_told_apart(tmp_path):
    """Another folder, one of several runs, and a run that has not ended."""

    def told(folder):
        with pytest.raises(UserError) as refused:
            check_source(str(folder))
        return str(refused.value)

    assert "is no finished run; name the folder of one, or a model" in told(tmp_path / "gone")
    claim(tmp_path / "one", STUDY, "caploc locate").close()
    assert "its run has not ended, or is of another command: wait" in told(tmp_path / "one")
    (tmp_path / "one" / RESULT).write_text("{}")
    assert f"name one of the runs in it, such as {tmp_path / 'one'}." in told(tmp_path)
    check_source(str(tmp_path / "one"))
    assert finished_in(tmp_path) == finished_in(tmp_path / "one") == [tmp_path / "one"]
    assert finished_in(tmp_path / "gone") == [tmp_path / "gone"]


def test_a_run_does_not_go_on_with_other_examples(tmp_path):
    """Its rows would be of some, and its report of others."""
    claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "1"}).close()
    claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "1", "b.yaml": "2"}).close()
    claim(tmp_path, STUDY, "caploc locate").close()
    with pytest.raises(FolderTaken, match="The examples of a.yaml are not those that"):
        claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "3"})
