"""The overlap of finished runs against the algebra of sets, on files written by hand."""

import json
from html import unescape
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from caploc.errors import BadOption, UserError
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.locating import LocatedNeurons, overlap
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import Rule
from caploc.neurons.report import write_number
from caploc.neurons.result import LocatedFile, LocatedGrid, LocatedModel
from caploc.neurons.threshold import Moments
from caploc.pairs import write_task

GRID = NeuronGrid((6, 4))
A, B, C = {"L0N0", "L0N1", "L1N2"}, {"L0N1", "L1N2"}, {"L0N5", "L1N0", "L1N1", "L0N0"}


def write(folder, tasks, *, name="m", fingerprint="same", grid=GRID):
    """A `neurons.json` with each task's neurons and those of its subsets."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        task: TaskNeurons(
            task, 9, grid.mask(own), np.stack(list(map(grid.mask, subsets))), Moments.empty(10)
        )
        for task, (own, subsets) in tasks.items()
    }
    located = LocatedNeurons(grid, Rule(), found, {})
    told = LocatedFile(
        model=LocatedModel(name=name, fingerprint=fingerprint),
        rule="", attribution="", command="", versions={},
        grid=LocatedGrid(layers=grid.layers, neurons=list(grid.per_layer)),
        tasks=list(map(located.task, found)),
        overlaps=None, cohesion=None,
    )  # fmt: skip
    (folder / "neurons.json").write_text(json.dumps(told.as_dict()))
    return folder


@pytest.fixture
def runs(tmp_path):
    """Two runs on one model: a and b in one, c in the other."""
    first = write(tmp_path / "one", {"a": (A, [A, A | {"L1N3"}]), "b": (B, [B, B])})
    second = write(tmp_path / "two", {"c": (C, [C, {"L0N4"}])})
    return [first, second]


def ratio(above, below):
    return above / below if below else None


def rates(first, second):
    """The rates, by Python's sets."""
    both, sizes = len(first & second), (len(first), len(second))
    return {
        "reference": ratio(both, sizes[0]),
        "largest": ratio(both, max(sizes)),
        "iou": ratio(both, len(first | second)),
    }


def test_every_rate_of_every_two_tasks_is_the_algebra_of_sets(runs, tmp_path):
    result, exhibits = overlap(runs, {}, tmp_path, command="caploc neurons overlap")
    result = result.as_dict()
    sets = {"a": A, "b": B, "c": C}
    assert result["datasets"] == list(sets)
    for (row, first), (column, second) in product(enumerate(sets), repeat=2):
        if first == second:
            continue
        for rate, value in rates(sets[first], sets[second]).items():
            assert result["rates"][rate][row][column] == pytest.approx(value), (rate, row, column)
    # on the diagonal the subsets of one task
    expected = rates(A, A | {"L1N3"})
    assert result["rates"]["largest"][0][0] == pytest.approx(expected["largest"])
    assert result["rates"]["largest"][1][1] == 1 and result["rates"]["largest"][2][2] == 0
    assert json.loads((tmp_path / "overlap.json").read_text()) == result
    for table, rate in zip(exhibits, ("largest", "iou"), strict=False):
        for row, values in zip(table.rows, result["rates"][rate], strict=True):
            assert row[1:] == [write_number(value) for value in values]


def test_neurons_in_common_stand_beside_what_chance_gives(runs, tmp_path):
    _, exhibits = overlap(runs, {}, tmp_path)
    rows = {" ".join(row[:2]): row[1:] for row in exhibits[-1].rows}
    assert set(rows) == {"a b", "a c", "b c"}
    first = rows["a b"]
    assert first[1] == "2" and first[-1] == "L0N1 L1N2"
    assert first[2] == f"{3 * 2 / 10:.2f}"
    assert first[3] == f"{hypergeom(10, 3, 2).sf(1):.4f}"
    assert first[4] == f"{2 * 1 / 6 + 1 * 1 / 4:.2f}"
    # both in common: one of two in layer 0's six, the single one of layer 1's four
    assert first[5] == f"{2 / 6 * 1 / 4:.4f}"
    assert (rows["b c"][1], rows["b c"][-1]) == ("0", "–")


def test_pairs_of_two_runs_are_one_task_and_of_one_kind(tmp_path):
    runs = []
    for number, name in enumerate(("first", "second")):
        pairs = [(f"{n}+1=", str(n + 1)) for n in range(12)]
        sums = str(write_task(pairs, tmp_path / name, "sums"))
        found = {sums: (A, [A, A]), f"other{number}": (B, [B, B])}
        runs.append(write(tmp_path / name, found))
    result, exhibits = overlap(runs, {}, tmp_path)
    called = [f"sums ({run})" for run in runs]
    assert [name for name in result.datasets if name.startswith("sums")] == called
    assert result.cohesion.same_kind == 1.0  # the same set, found twice
    same = next((tmp_path / "first").glob("sums-*")).name
    split, _ = overlap(runs, {same: "one", "other0": "one", "other1": "two"}, tmp_path)
    assert split.cohesion.same_kind < 1.0
    drawn = exhibits[0].chart.to_dict()
    assert len({cell["row"] for data in drawn["datasets"].values() for cell in data}) == 4


def test_tasks_of_one_title_stay_apart_where_several_runs_have_them(tmp_path):
    tasks = {"/x/easy/sums.yaml": (A, [A, A]), "/x/hard/sums.yaml": (B, [B, B])}
    runs = [write(tmp_path / name, tasks) for name in ("first", "second")]
    result, _ = overlap(runs, {}, tmp_path)
    assert len(result.datasets) == 4
    assert result.datasets[0] == f"easy/sums.yaml ({runs[0]})"


def test_kinds_part_the_matrix(runs, tmp_path):
    result, exhibits = overlap(runs, {"a": "one", "b": "one", "c": "two"}, tmp_path)
    rate = result.rates["largest"]
    assert result.cohesion.same_kind == pytest.approx((rate[0][1] + rate[1][0]) / 2)
    across = [rate[0][2], rate[2][0], rate[1][2], rate[2][1]]
    assert result.cohesion.across_kinds == pytest.approx(np.mean(across))
    same_kind = f"{np.mean([rate[0][1], rate[1][0]]):.3f}"
    assert f"tasks of one kind {same_kind}" in exhibits[0].notes


@given(
    chosen=st.lists(
        st.sets(st.sampled_from(list(map(str, GRID.named(np.ones(10, bool)))))),
        min_size=2,
        max_size=4,
    )
)
def test_any_sets_even_empty_ones_give_plain_numbers(tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("any")
    write(folder, {f"t{n}": (own, [own, own]) for n, own in enumerate(chosen)})
    _, exhibits = overlap([folder], {}, folder)
    told = json.loads((folder / "overlap.json").read_text())
    for row, first in enumerate(chosen):
        for column, second in enumerate(chosen):
            for rate, value in rates(first, second).items():
                found = told["rates"][rate][row][column]
                assert (found is None) == (value is None)
                assert found is None or found == pytest.approx(value)
    assert "nan" not in str([str(cell) for e in exhibits for row in e.rows for cell in row]).lower()


def test_the_page_lies_in_the_folder_that_was_named_or_below_the_first_run(runs, tmp_path):
    _, exhibits = overlap(runs, {}, tmp_path / "new" / "place")
    assert (tmp_path / "new" / "place" / "overlap.json").exists()
    overlap(runs, {})
    assert (runs[0] / "overlap.json").exists() and not (runs[0] / "report.html").exists()
    for page in (tmp_path / "new" / "place", runs[0] / "overlap"):
        assert exhibits[0].title in unescape((page / "report.html").read_text())


def test_runs_of_two_models_do_not_go_together(runs, tmp_path):
    other = write(tmp_path / "other", {"d": (A, [A, A])}, name="n", fingerprint="another")
    with pytest.raises(UserError) as refused:
        overlap([*runs, other], {}, tmp_path)
    named = f"(m in {runs[0]}, m in {runs[1]}, n in {other})"
    assert str(refused.value) == f"The runs are of different models {named}; name runs of one."
    assert not (tmp_path / "overlap.json").exists()


def test_neurons_of_another_version_are_refused_in_one_sentence(runs):
    path = runs[1] / "neurons.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    with pytest.raises(UserError, match="was written by another version of caploc .schema 2"):
        overlap(runs, {})


def test_one_task_of_two_runs_goes_by_its_folder_and_keeps_its_kind(runs, tmp_path):
    third = write(tmp_path / "three", {"c": (A, [A, A])})
    result, _ = overlap([*runs, third], {"c": "one", "a": "two", "b": "two"}, tmp_path)
    names = ["a", "b", f"c ({runs[1]})", f"c ({third})"]
    assert result.datasets == tuple(names)
    rate = np.array(result.rates["largest"])
    assert rate[0][3] == 1 and rate[2][3] == rates(C, A)["largest"]
    same = [rate[0][1], rate[1][0], rate[2][3], rate[3][2]]
    assert result.cohesion.same_kind == pytest.approx(np.mean(same))


def test_one_run_twice_a_single_task_and_a_strange_kind_are_refused(runs, tmp_path):
    again = runs[0].parent / "two" / ".." / "one"
    with pytest.raises(UserError) as refused:
        overlap([runs[0], again, runs[1]], {}, tmp_path)
    assert str(refused.value) == f"{runs[0]} is named twice; name each run once."
    with pytest.raises(UserError, match="Overlap needs two tasks or more; name further runs."):
        overlap(runs[1:], {}, tmp_path)
    with pytest.raises(BadOption, match="--kind names e, which is no task of the runs; .* a, b, c"):
        overlap(runs, {"a": "one", "e": "one"}, tmp_path)
