"""A result is what its rows give: doctor computes it again, and names what somebody made up."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from caploc.contents import RunFile, read_file
from caploc.doctor import examine_folder, repair
from caploc.doctor.replay import find_disparities, first_differences, recompute
from caploc.folder import read_json, write_json
from caploc.result import Result
from caploc.search import Settings
from caploc.study import Study, run_study
from caploc.workbench import ModelOptions

MODEL = ModelOptions("demo", device="cpu")
FEW = {"task": "demo/recall", "other_tasks": ("demo/sentences",), "limit": 12}
STUDIES = {
    "adaptive": Study(MODEL, settings=Settings(budget=400), controls=4, **FEW),
    "css": Study(
        MODEL, method="css", settings=Settings(masks=30, rate=0.05), examples=20, controls=4, **FEW
    ),
    "csb": Study(
        MODEL, method="csb", settings=Settings(masks=30, rate=0.05), examples=20, controls=4, **FEW
    ),
    "css-search": Study(
        MODEL,
        method="css-search",
        settings=Settings(mask_counts=(10, 20), rates=(0.05, 0.1)),
        examples=20,
        controls=2,
        **FEW,
    ),
    "one-shot": Study(MODEL, method="one-shot", examples=4, controls=2, **FEW),
    "greedy": Study(
        MODEL, method="greedy", settings=Settings(top=2), examples=4, controls=2, **FEW
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of a finished run, by its method."""
    made: dict[str, Path] = {}
    engine = MODEL.engine()

    def folder(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("runs") / method
            run_study(STUDIES[method], made[method], engine=engine, command="caploc locate")
        return made[method]

    return folder


@pytest.fixture(scope="module")
def again(runs):
    """What the rows of the css run give."""
    folder = runs("css")
    written = read_file(folder / "run.json", RunFile)
    result = read_file(folder / "result.json", Result)
    return recompute(folder / "rows.sqlite", written, result, curved=True)["result.json"]


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=[pytest.mark.slow] * (m not in ("adaptive", "css"))) for m in STUDIES],
)
def test_the_result_of_every_method_is_what_its_rows_give(runs, method):
    found = examine_folder(runs(method))
    assert found.verdict == "Sound." and not found.faults, found.faults
    assert found.finished == 1


def change(result, path, value):
    """Put a value in place of another, which must be a different one."""
    *parents, last = path
    for key in parents:
        result = result[key]
    assert result[last] != value
    result[last] = value


def scaled(number):
    return None if number is None else number * 0.9 - 0.01


INVENTIONS = {
    "the intact score": (("intact", "score"), 0.5, "intact.score 0.5"),
    "a head's effect": (("heads", 0, "effect"), -0.9, "].effect -0.9"),
    "an interval": (("heads", 0, "high"), -0.001, "].high -0.001"),
    "a q": (("heads", 3, "q"), 1e-5, "].q 1e-05"),
    "a selection": (("heads", 7, "selected"), True, "].selected true"),
    "a universal head": (("heads", 0, "critical"), True, "].critical true"),
    "the named heads": (("top",), ["L5H15"], "top "),
    "a knocked-out score": (
        ("validation", "task", "knocked_out", "score"),
        0.0123,
        "validation.task.knocked_out.score 0.0123",
    ),
    "the controls": (
        ("validation", "controls", "mean"),
        0.987,
        "validation.controls.mean 0.987",
    ),
    "another task's score": (
        ("validation", "other_tasks", 0, "knocked_out", "score"),
        0.0123,
        "validation.other_tasks[0].knocked_out.score 0.0123",
    ),
    "the cost in tokens": (("cost", "forward_tokens"), 7, "cost.forward_tokens 7"),
    "the count of rows": (("cost", "rows"), 7, "cost.rows 7"),
    "r2": (("fit", "r2_held_out"), 0.999, "fit.r2_held_out 0.999"),
    "the noise ceiling": (("fit", "noise_ceiling"), 0.999, "fit.noise_ceiling 0.999"),
    "a verdict": (
        ("validation", "other_tasks", 0, "change", "verdict"),
        "made up",
        'validation.other_tasks[0].change.verdict "made up"',
    ),
    "a note": (("search", "notes"), ["All is well."], "search.notes"),
    "a seed of the search": (("method", "masks"), 29, "method.masks 29"),
}


@pytest.mark.parametrize("invention", INVENTIONS)
def test_what_is_made_up_is_found(runs, again, invention):
    path, value, said = INVENTIONS[invention]
    result = read_json(runs("css") / "result.json")
    assert not first_differences(find_disparities(result, again))
    change(result, path, value)
    assert any(
        said in each and "and the rows give" in each for each in find_disparities(result, again)
    )


def test_a_run_written_before_a_note_was_known_is_sound(runs, again):
    result = read_json(runs("css") / "result.json")
    result["search"]["notes"] = []
    later = again | {"search": again["search"] | {"notes": ["Ask the same in other words."]}}
    assert not first_differences(find_disparities(result, later))


def test_a_curve_that_is_made_up_is_found(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    curve = read_json(folder / "curve.json")
    change(curve, ("curves", "demo/recall", 1, "score"), 0.0123)
    write_json(folder / "curve.json", curve)
    found = examine_folder(folder)
    assert any("curves.demo/recall[1].score 0.0123" in each for each in found.faults)


def test_a_curve_over_other_heads_is_named_as_not_computed_again(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    curve = read_json(folder / "curve.json")
    curve["heads"] = curve["heads"][::-1]
    write_json(folder / "curve.json", curve)
    found = examine_folder(folder)
    assert found.unchecked == [str(folder / "curve.json")] and not found.faults


def test_doctor_names_what_is_made_up_and_repair_sets_it_aside(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    result = read_json(folder / "result.json")
    for invention in ("the intact score", "another task's score"):
        path, value, _ = INVENTIONS[invention]
        change(result, path, value)
    write_json(folder / "result.json", result)
    found = examine_folder(folder)
    assert not found.sound and found.verdict.startswith("Damaged")
    for invention in ("the intact score", "another task's score"):
        assert any(INVENTIONS[invention][2] in fault for fault in found.faults), found.faults
    repair(found)
    assert examine_folder(folder).verdict.startswith("Sound")
    assert (folder / "result.json.damaged").is_file()


def test_effects_that_are_all_scaled_are_told_with_how_many_there_are(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("adaptive"), folder)
    result = read_json(folder / "result.json")
    for head in result["heads"]:
        head["effect"] = scaled(head["effect"])
    write_json(folder / "result.json", result)
    found = examine_folder(folder)
    assert any(".effect" in fault for fault in found.faults)
    assert any("more values" in fault for fault in found.faults)


def test_an_answer_that_is_made_up_is_named(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    answers = read_json(folder / "answers.json")
    answers[0]["knocked_out"] = "something else"
    write_json(folder / "answers.json", answers)
    (fault,) = examine_folder(folder).faults
    assert 'answers.json: [0].knocked_out "something else", and the rows give' in fault


def test_a_result_of_another_seed_than_its_rows_is_not_sound(runs, tmp_path):
    """The study is changed with the result: then rows are asked for that nobody measured."""
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    result, written = read_json(folder / "result.json"), read_json(folder / "run.json")
    result["seed"] = written["study"]["settings"]["seed"] = 5
    write_json(folder / "result.json", result)
    write_json(folder / "run.json", written)
    found = examine_folder(folder)
    assert any("rows of demo/recall that are not there" in fault for fault in found.faults)


def test_what_cannot_be_computed_again_is_told_and_not_called_sound(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    result = read_json(folder / "result.json")
    other = copy.deepcopy(result) | {"versions": result["versions"] | {"numpy": "1.0"}}
    write_json(folder / "result.json", other)
    (folder / "curve.json").write_text(json.dumps({"heads": [], "curves": {}}))
    found = examine_folder(folder)
    assert found.sound and found.verdict.startswith("Sound as far as it was checked")
    assert "written by other versions" in found.verdict and "curve.json" in found.verdict


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("masks", 10**12),
        ("mask_counts", [10**12]),
        ("seed", 10**400),
        ("top", 10**12),
        ("rate", 1e-300),
    ],
)
def test_a_study_beyond_reason_is_not_computed(runs, tmp_path, field, value):
    folder = tmp_path / "run"
    shutil.copytree(runs("css"), folder)
    written = read_json(folder / "run.json")
    written["study"]["settings"][field] = value
    (folder / "run.json").write_text(json.dumps(written))
    found = examine_folder(folder)
    assert found.verdict != "Sound."
