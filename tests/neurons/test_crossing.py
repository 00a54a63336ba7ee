"""Crossed effects: the matrices of an erasure and of an enhancement, summed up by kinds."""

import json
from shutil import copytree

import numpy as np
import pytest
from small_runs import TASKS, TUNED, Rows, counted, lasting, quick, tuned

from caploc.errors import BadOption, UserError
from caploc.neurons import enhancing
from caploc.neurons import study as studies
from caploc.neurons.crossing import (
    ERASE,
    TUNE,
    Crossed,
    Crossing,
    cross,
    crossing_headline,
    summary_exhibit,
)
from caploc.neurons.enhancing import GOLD
from caploc.neurons.erasure import Erasing, erase
from caploc.stats.sets import cohesion, correlate_matrices

pytestmark = pytest.mark.slow  # whole studies

ASKED = Erasing(limit=4)
KINDS = {TASKS[0]: "sums", TASKS[1]: "facts"}
BOTH = Crossing((ERASE, TUNE), ASKED, TUNED, KINDS)


@pytest.fixture
def patch():
    with quick() as patched:
        yield patched


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Erased after it was tuned, then crossed: the folder, the result, the exhibits, the rows."""
    run, _, _ = tuned(tmp_path_factory)
    folder = copytree(run, tmp_path_factory.mktemp("crossed") / "run")
    with quick() as patch:
        erase(folder, ASKED)
        rows, tunings = Rows(), counted(patch, enhancing, "enhance")
        found = cross(folder, BOTH, rows, command="caploc neurons cross")
    return folder, *found, rows.measured + len(tunings)


def mean_loss(erased, arm):
    """The mean of an arm's losses in one entry of `erasure.json`."""
    return np.mean([each["logprob"]["mean"] for each in erased["arms"] if each["arm"] == arm])


def mean_gain(tuned_, arm, judged):
    """The mean of an arm's gains on a task in one entry of `enhancement.json`."""
    changes = [c for each in tuned_["arms"] if each["arm"] == arm for c in each["changes"]]
    own = [c for c in changes if (c["task"], c["measure"]) == (judged, GOLD)]
    return np.mean([each["change"]["mean"] for each in own])


def test_what_was_erased_and_tuned_is_not_measured_again(done):
    assert done[3] == 0


def test_erased_matrices_are_those_of_the_erasure(done):
    folder, result, _, _ = done
    written = json.loads((folder / "erasure.json").read_text())["tasks"]
    crossed = result["crossings"][0]
    assert (crossed["how"], crossed["tasks"]) == (ERASE, list(TASKS))
    for row, task in enumerate(written):
        for entry in (task["own"], *task["others"]):
            column = TASKS.index(entry["judged"])
            for name, arm in (("located", "located"), ("random", "random in layers")):
                assert crossed[name][row][column] == pytest.approx(mean_loss(entry, arm))


def test_tuned_matrices_are_those_of_the_enhancement(done):
    folder, result, _, _ = done
    written = json.loads((folder / "enhancement.json").read_text())["tasks"]
    crossed = result["crossings"][1]
    assert (crossed["how"], crossed["tasks"]) == (TUNE, list(TASKS))
    for name, arm in (("located", "located"), ("random", "random-layer-matched")):
        expected = [[mean_gain(written[a], arm, b) for b in TASKS] for a in TASKS]
        np.testing.assert_allclose(crossed[name], expected)


def test_the_summaries_are_those_of_the_matrices(done):
    folder, result, exhibits, _ = done
    for each in result["crossings"]:
        for matrix, kinds in (("located", "kinds"), ("random", "random_kinds")):
            table = np.array(each[matrix])
            assert each[kinds] == cohesion(table, TASKS, KINDS).as_dict()
            assert each[kinds]["cohesion"] == pytest.approx(np.diag(table).mean())
        assert each["overlap"] is None  # two tasks make one pair
    shown, erased, gained = exhibits
    assert [shown.name, erased.name, gained.name] == [
        "crossing", "erasure-matrix", "enhancement-matrix",
    ]  # fmt: skip
    first = shown.rows[0]
    assert first[1].number == result["crossings"][0]["kinds"]["cohesion"]
    assert first[2].number == result["crossings"][0]["kinds"]["separability"]
    assert json.loads((folder / "crossing.json").read_text()) == json.loads(json.dumps(result))


def test_one_way_gives_one_crossing_with_the_same_numbers(done, patch):
    folder, result, _, _ = done
    rows = Rows()
    again, exhibits = cross(folder, Crossing(erasing=ASKED, kinds=KINDS), rows)
    assert rows.measured == 0 and len(exhibits) == 2
    assert lasting(again)["crossings"] == lasting(result)["crossings"][:1]


def kindred():
    """Effects that follow kinds and the overlap of neurons, and tasks judged beside."""
    tasks, judged = ["a", "b", "c", "d"], ["x", "d", "c", "b", "a"]
    kinds = {"a": "one", "b": "one", "c": "two", "d": "two"}
    shared = {(p, q): 1.0 if p == q else 0.5 if kinds[p] == kinds[q] else 0.1
              for p in tasks for q in tasks}  # fmt: skip
    effects = np.array([[shared.get((p, q), np.nan) * 2 + 0.3 for q in judged] for p in tasks])
    return (tasks, judged, effects), effects * 0, kinds, shared


def test_kinds_and_overlap_are_read_off_the_square_part_of_a_matrix():
    located, random, kinds, shared = kindred()
    found = Crossed.of(ERASE, located, random, kinds, shared)
    assert found.tasks == ("a", "b", "c", "d")
    square = np.array([[shared[p, q] * 2 + 0.3 for q in found.tasks] for p in found.tasks])
    np.testing.assert_allclose(found.located, square)
    assert found.kinds.cohesion == pytest.approx(2.3)
    assert found.kinds.same_kind == pytest.approx(1.3)
    assert found.kinds.across_kinds == pytest.approx(0.5)
    # of the 24 ways to deal out the kinds 8 give these pairs
    assert found.kinds.p == pytest.approx(1 / 3)
    assert found.random_kinds.cohesion == found.random_kinds.contrast == 0
    assert found.overlap.spearman.value == pytest.approx(1)
    expected = correlate_matrices(square, (square - 0.3) / 2)
    assert found.overlap.pairs == expected.pairs == 12
    assert found.overlap.pearson.value == pytest.approx(expected.pearson.value)
    json.dumps(found.as_dict(), allow_nan=False)


def test_what_is_not_known_is_neither_a_number_nor_a_word_of_python():
    located, random, kinds, shared = kindred()
    unknown = (*located[:2], located[2] * np.nan)
    found = Crossed.of(TUNE, unknown, random * np.nan, kinds, shared)
    told = found.as_dict()
    assert told["located"] == [[None] * 4] * 4 and told["kinds"]["cohesion"] is None
    text = crossing_headline([found]) + str(
        [str(cell) for row in summary_exhibit([found]).rows for cell in row]
    )
    assert "not known" in text and "nan" not in text.lower() and "None" not in text


def test_a_task_without_a_kind_is_its_own():
    located, random, _, shared = kindred()
    found = Crossed.of(ERASE, located, random, {}, shared)
    assert found.kinds.same_kind is None
    assert found.kinds.across_kinds == pytest.approx(found.kinds.separability)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Crossing(("zap",)), "--how must be erase or tune; got 'zap'."),
        (Crossing(kinds={"demo/code": "x"}), "--kind names demo/code, which is no task of the run"),
        (Crossing(erasing=Erasing(draws=2)), "--draws must be 5 or more; got 2."),
        (Crossing(), "Crossing needs two tasks or more; the run has demo/addition."),
    ],
    ids=["way", "kind", "draws", "single"],
)
def test_mistakes_are_told_before_a_model_is_loaded(done, tmp_path, patch, asked, said):
    folder = done[0]
    if "two tasks" in said:
        folder = tmp_path
        study = {"tasks": [TASKS[0]], "kind": "neurons"}
        written = json.loads((done[0] / "run.json").read_text())
        written["study"] |= study
        (folder / "run.json").write_text(json.dumps(written))
    patch.setattr(studies.NeuronLab, "bench", property(lambda lab: pytest.fail("loaded")))
    with pytest.raises(BadOption) as refused:
        cross(folder, asked)
    assert said in str(refused.value)


def test_a_folder_without_a_run_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no run of `caploc neurons locate`"):
        cross(tmp_path, Crossing())
    assert not list(tmp_path.iterdir())
