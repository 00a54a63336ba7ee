"""A study of neurons: mistakes seen before anything is loaded, and the study read back."""

import json
from dataclasses import asdict, replace
from functools import partial

import pytest

from caploc.declaration import ModelOptions
from caploc.errors import CaplocError, UserError
from caploc.neurons.options import Attribution, Erasing, NeuronStudy, Rule
from caploc.neurons.study import open_study, read_study
from caploc.options import TaskOptions
from worlds import DEMO

ANOTHER = {
    "model": {"name": "demo", "fingerprint": "another"}, "grid": {"layers": 1, "neurons": [4]},
    "tasks": [], "overlaps": None, "cohesion": None,
    "rule": "", "attribution": "", "command": "", "versions": {},
}  # fmt: skip
STUDY = NeuronStudy(ModelOptions(DEMO, device="cpu"), ("demo/addition", "demo/code"))


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    """A mistake must show before the model's weights or a task's data are read."""

    def refuse(*told, **options):
        raise AssertionError("something was loaded")

    monkeypatch.setattr("caploc.models.loading.load_model", refuse)
    monkeypatch.setattr("caploc.tasks.catalog.load_task", refuse)


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        (partial(replace, STUDY), {"tasks": ()}, "--task must have at least 1 item"),
        (partial(replace, STUDY), {"examples": 4}, "one for each of 5 subsets; got 4."),
        (partial(replace, STUDY), {"judged": 1}, "--judged must be 0 or 2 and more; got 1."),
        (Attribution, {"method": "gradeint"}, "Did you mean 'gradient'?"),
        (Rule, {"sigma": float("inf")}, "--sigma must be a finite number; got inf."),
        (Rule, {"share": 1.5}, "--share must be less than or equal to 1; got 1.5."),
        (Erasing, {"draws": 4}, "--draws must be greater than or equal to 5; got 4."),
    ],
)
def test_every_wrong_option_is_one_sentence(kind, fields, sentence):
    with pytest.raises(CaplocError) as refused:
        kind(**fields)
    assert sentence in str(refused.value)


def written(folder, study=STUDY, **changes):
    told = {"study": asdict(study) | {"kind": "neurons"}, "command": "caploc neurons locate demo"}
    (folder / "run.json").write_text(json.dumps(told | changes))
    return folder


def test_a_study_is_read_back(tmp_path):
    study = replace(
        STUDY,
        attribution=Attribution("integrated", steps=5),
        rule=Rule(share=0.01, normalised=False),
        options=TaskOptions(data={"test": "rows.jsonl"}, fewshot=2),
        examples=None,
        subsets=3,
        least=0.5,
        seed=4,
    )
    assert read_study(written(tmp_path, study)) == (study, "caploc neurons locate demo")


def test_a_folder_of_another_study_is_refused(tmp_path):
    written(tmp_path, study=STUDY)
    told = json.loads((tmp_path / "run.json").read_text())
    del told["study"]["kind"]
    (tmp_path / "run.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match="holds no run of `caploc neurons locate`; name the folder"):
        read_study(tmp_path)


def test_a_model_that_has_changed_since_is_refused(tmp_path, monkeypatch):
    """Its neurons would be others than those that the folder's files name."""
    monkeypatch.undo()  # here the model and its data are read
    with open_study(STUDY, tmp_path, None, "") as session:
        (tmp_path / "neurons.json").write_text(json.dumps(ANOTHER))
        with pytest.raises(UserError, match="has changed since neurons were located in"):
            _ = session.meters
