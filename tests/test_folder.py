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
)
from worlds import DEMO

STUDY = json.loads(json.dumps(asdict(Study(ModelOptions(DEMO), "demo/addition"))))


def test_the_same_study_goes_on_and_another_is_refused(tmp_path):
    claim(tmp_path, STUDY, "caploc locate").close()
    claim(tmp_path, STUDY, "caploc locate").close()
    elsewhere = STUDY | {"model": STUDY["model"] | {"device": "cuda", "batch_size": 3}}
    claim(tmp_path, elsewhere, "caploc locate").close()  # where it runs changes no outcome
    with pytest.raises(FolderTaken, match=r"belongs to another run \(exclude \[\], not \['L0H1'\]"):
        claim(tmp_path, STUDY | {"exclude": ["L0H1"]}, "caploc locate")
    other = STUDY | {"exclude": ["L0H1"], "task": "another"}
    with pytest.raises(FolderTaken, match=r"another run \(task '.*', not 'another'; exclude"):
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
