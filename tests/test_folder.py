"""Whose a run folder is: the same study, also where an older version began it."""

import json
from dataclasses import asdict

import pytest

from caploc.errors import BadOption, FolderTaken
from caploc.folder import LATER, STUDIES, claim, flat, question
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


def test_a_run_does_not_go_on_with_other_examples(tmp_path):
    """Its rows would be of some, and its report of others."""
    claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "1"}).close()
    claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "1", "b.yaml": "2"}).close()
    claim(tmp_path, STUDY, "caploc locate").close()
    with pytest.raises(FolderTaken, match="The examples of a.yaml are not those that"):
        claim(tmp_path, STUDY, "caploc locate", {"a.yaml": "3"})
