"""Exhibits of neuron studies, from results made by hand: what is known, and what is not."""

import numpy as np
import pytest

from caploc.neurons import enhancing, erasure, locating
from caploc.neurons.erasure import BOTTOM, LAYERS, LOCATED, UNIFORM, ArmLoss, Erased, ErasedTask
from caploc.neurons.finding import TaskNeurons
from caploc.neurons.locating import LocatedNeurons
from caploc.neurons.locating import locating_headline as located_headline
from caploc.neurons.model import NeuronGrid
from caploc.report import tabulation as cells
from caploc.report.tabulation import fill_tables
from caploc.result import Score
from caploc.stats import Interval, mean_interval
from caploc.stats.chance import count_shared
from caploc.stats.chance import specificity as specificity_of
from caploc.stats.threshold import Moments, Rule, sweep

NAN = float("nan")
GRID = NeuronGrid((40, 30))


def plain(exhibit):
    """Every cell as it is shown."""
    assert {len(row) for row in exhibit.rows} <= {len(exhibit.columns)}
    cells = [[str(cell) for cell in row] for row in exhibit.rows]
    for cell in sum(cells, []) + exhibit.notes:
        assert "nan" not in cell.lower() and "None" not in cell and "[]" not in cell, cell
    if exhibit.draw is not None:
        assert exhibit.draw()["layer"]
    return cells


@pytest.mark.parametrize(
    ("interval", "cell", "drawn"),
    [
        (Interval(0.5, 0.25, 0.75, 9), "0.500 [0.250, 0.750]", (0.5, 0.25, 0.75)),
        (Interval(0.5, NAN, NAN, 1), "0.500", (0.5, None, None)),
        (Interval(NAN, NAN, NAN, 0), "–", (None, None, None)),
        (Interval(-0.0001, -0.0004, 0.0, 9), "0.000 [0.000, 0.000]", (-0.0001, -0.0004, 0.0)),
        (None, "–", (None, None, None)),
    ],
)
def test_an_interval_reads_alike_from_memory_and_from_a_file(interval, cell, drawn):
    assert cells.ranged(interval) == cell and cells.bounds(interval) == drawn
    file = None if interval is None else interval.as_dict()
    assert cells.ranged(file) == cell and cells.bounds(file) == drawn


def test_numbers_that_are_not_known_are_words_or_dashes():
    assert cells.as_text(None) == "not known" and cells.as_text(0.25) == "0.250"


def found(task, chosen, subsets, scores=None):
    """A task's neurons by their columns."""
    masks = np.zeros((1 + len(subsets), GRID.size), dtype=bool)
    for row, columns in zip(masks, [chosen, *subsets], strict=True):
        row[columns] = True
    moments = Moments.empty(GRID.size)
    rows = np.arange(GRID.size, dtype=float) if scores is None else scores
    moments = moments.added(np.stack([rows, rows + 1]))
    return TaskNeurons(task, 2, masks[0], masks[1:], moments, [(1, 0.5, None), (2, None, None)])


@pytest.fixture
def located():
    tasks = {
        "one": found("one", [3, 50, 4], [[3, 4, 50], [3, 4, 51]]),
        "other": found("other", [7], [[7, 8], [7, 9]]),
        "none": found("none", [], [[], []]),
    }
    return LocatedNeurons(GRID, Rule(share=0.1), tasks, {"one": "x", "other": "x"})


def test_the_sets_are_counted_named_by_score_and_put_into_layers(located):
    tables = {exhibit.name: plain(exhibit) for exhibit in locating.located_exhibits(located)}
    one, other, none = tables["neurons"]
    assert one[:4] == ["one", "2", "3", f"{300 / 70:.2f}"]
    assert one[-1] == "L1N10 L0N4 L0N3"  # scores are the columns' numbers
    assert one[4].startswith(f"{2 / 3:.3f}") and one[5].startswith("0.500")
    for row, task, largest in ((one, "one", 3), (other, "other", 2)):
        expected = count_shared(*located.found[task].subsets, GRID).expected_in_layers / largest
        assert row[7] == f"{expected:.3f}"
    assert other[-1] == "L0N7" and (none[2], none[-1]) == ("0", "–")
    assert none[6] == none[7] == "–"
    assert tables["layers"] == [["one", "2", "1"], ["other", "1", "0"], ["none", "0", "0"]]


def test_what_a_threshold_chooses_and_how_overlap_grows(located):
    tables = {exhibit.name: exhibit for exhibit in locating.located_exhibits(located)}
    thresholds = plain(tables["thresholds"])
    swept = sweep(located.found["one"].moments.mean)
    expected = [str(each.count) for each in swept]
    assert thresholds[0] == ["one", *expected]
    assert "of 70 neurons at most 7 at 3, 4 at 4" in tables["thresholds"].notes[0]
    assert plain(tables["growth"])[0] == ["one", "0.500", "–"]


def test_a_single_task_has_no_matrix_and_its_sentence_counts(located):
    one = LocatedNeurons(GRID, located.rule, {"one": located.found["one"]}, {})
    shown = locating.located_exhibits(one)
    assert "overlap" not in [exhibit.name for exhibit in shown]
    assert plain(shown[0])[0][8:10] == ["–", "–"]
    assert located_headline(one, 1.0) == "3 of 70 neurons are chosen for one on every subset"
    assert located_headline(one, 0.6).endswith("on 60 % of the subsets or more")


def test_the_overlap_matrix_is_that_of_the_result(located):
    (matrix,) = [
        exhibit for exhibit in locating.located_exhibits(located) if exhibit.name == "overlap"
    ]
    told = located.as_dict()["overlaps"]["rates"]["largest"]
    shown = [[None if c == "–" else float(c) for c in row[1:]] for row in plain(matrix)]
    for own, other in zip(shown, told, strict=True):
        for cell, value in zip(own, other, strict=True):
            assert (cell is None) == (value is None)
            assert cell is None or cell == pytest.approx(value, abs=0.0005)


def lost(arm, draw, losses, score=0.5):
    """What an arm costs on some examples."""
    interval = mean_interval(np.array(losses))
    return ArmLoss(arm, draw, score, interval, interval)


def judged(name, own, draws, score=0.5):
    """An erasure of which each example's losses are known; beside it five random draws."""
    held = specificity_of(np.array(own), np.array(draws))
    arms = [
        lost(LOCATED, 0, own, score),
        *(lost(UNIFORM, n, each) for n, each in enumerate(draws)),
        *(lost(LAYERS, n, each, n / 10) for n, each in enumerate(draws)),
        lost(BOTTOM, 0, np.zeros(len(own)), None),
    ]
    return Erased(name, len(own), Score.of(0.9, 0.1, len(own)), arms, held, held)


DRAWS = [[n / 10, n / 10 + 0.1] for n in range(5)]


@pytest.fixture
def erasures():
    doses = [
        {
            "dose": dose,
            "neurons": count,
            "logprob": {"mean": mean, "low": None, "high": None},
            "random": {"mean": 0.0, "low": None, "high": None},
        }
        for dose, count, mean in ((0.5, 1, 0.25), (1.0, 2, None))
    ]
    beaten = ErasedTask("a", 2, judged("a", [2.0, 2.2], DRAWS), doses,
                        [judged("b", [0.1, NAN], DRAWS)])  # fmt: skip
    tied = ErasedTask("b", 3, judged("b", [0.45, 0.45], DRAWS), doses,
                      [judged("a", [NAN, NAN], DRAWS)])  # fmt: skip
    return [beaten, tied]


def test_an_erasure_counts_who_beats_every_draw(erasures):
    told = erasure.erasure_headline(erasures)
    assert told.startswith(
        "Without its located neurons a task loses 1.28 [0.45, 2.10] nats a token"
    )
    assert "0.25 [0.25, 0.25]" in told and told.endswith("more than in any draw: 1 of 2 tasks")
    tasks = [each.as_dict() for each in erasures]
    effects = cells.view_effects(erasure.list_losses(tasks), erasure.list_losses(tasks, LAYERS))
    arms, doses, matrix = map(plain, fill_tables("erasure", {"tasks": tasks, **effects}))
    assert [row[10] for row in arms] == ["yes", "no"]  # a draw that costs as much is no win
    assert {row[11] for row in arms} == {"–"}  # none as active was drawn
    assert arms[0][:6] == ["a", "2", "0.900 ± 0.100", "0.500", "–", "0.200 (0.000 to 0.400)"]
    assert arms[0][8].startswith("2.100 [") and arms[0][9] == "0.250"
    assert doses == [["a", "0.250 (1)", "–"], ["b", "0.250 (1)", "–"]]
    assert matrix == [["a", "2.100 (0.250)", "0.100 (0.250)"], ["b", "– (0.250)", "0.450 (0.250)"]]


def test_losses_are_by_task_erased_and_task_judged(erasures):
    extra = ErasedTask("a", 2, erasures[0].own, erasures[0].doses, [judged("prose", [0.0, 0.2],
                       DRAWS)])  # fmt: skip
    tasks = [each.as_dict() for each in (extra, erasures[1])]
    own = {("a", "a"): 2.1, ("a", "prose"): 0.1, ("b", "b"): 0.45}
    assert erasure.list_losses(tasks) == pytest.approx({**own, ("b", "a"): None})
    assert erasure.list_losses(tasks[:1], LAYERS) == pytest.approx(dict.fromkeys([*own][:2], 0.25))


def change(task, mean, measure=enhancing.GOLD):
    interval = {"mean": mean, "low": None if mean is None else mean - 0.1,
                "high": None if mean is None else mean + 0.1}  # fmt: skip
    after = None if mean is None else mean - 1
    return {"task": task, "measure": measure, "before": -1.0, "after": after, "change": interval}


def tuned(own, draws, task="a", rate=0.1, edge=False):
    """A task's enhancement as its file has it."""
    fit = {"parameters": 1536, "best": {"rate": rate}, "at_edge": edge}

    def arm(name, mean, fitted=fit):
        changes = [change(task, mean), change(task, 0.0, enhancing.METRIC), change("z", mean)]
        return {"arm": name, "fit": fitted, "changes": changes}

    control = {
        "arm": enhancing.RANDOM, "task": task, "measure": enhancing.GOLD, "located": own,
        "changes": draws, "excess": change("", own)["change"], "p": 1 / 6,
    }  # fmt: skip
    arms = [arm("none", 0.0, None), arm("located", own), *(arm(enhancing.RANDOM, d) for d in draws)]
    return {"trained_on": 9, "arms": arms, "controls": [control]}


def test_tuning_is_told_beside_its_draws():
    result = {"a": tuned(0.5, [0.1, 0.2, 0.3, 0.4, 0.45]), "b": tuned(0.5, [0.5] * 5, "b", 1, True)}
    assert enhancing.tuning_headline(result) == (
        "Tuning its located neurons gains a task 0.50 nats a token, tuning as many random ones of "
        "the same layers 0.40; more than any draw: 1 of 2 tasks"
    )
    first, second = (enhancing.tuned_arms_exhibit(*each) for each in result.items())
    matrix = enhancing.gains_matrix_exhibit(result)
    none, located, drawn = plain(first)
    assert none == ["none", "–", "–", "0.000 [-0.100, 0.100]", "0.000 [-0.100, 0.100]",
                    "-1.000 to -1.000"]  # fmt: skip
    assert located[:3] == ["located", "1,536", "0.1"]
    assert located[4:] == ["0.500 [0.400, 0.600]", "-1.000 to -0.500"]
    assert drawn[0] == f"{enhancing.RANDOM}, 5 draws" and drawn[4] == "0.290 (0.100 to 0.450)"
    assert plain(second)[1][2] == "1 (edge)"
    assert "p 0.167 with 5 draws" in first.notes[1]
    # each was judged on itself and on z
    assert matrix.columns == ("tuned", "a", "z", "b")
    own, other = ["0.500 (0.290)"] * 2, ["0.500 (0.500)"] * 2
    assert plain(matrix) == [["a", *own, "–"], ["b", "–", *other]]


def test_tuning_of_which_nothing_is_known_is_dashes():
    result = {"a": tuned(0.5, [])}
    result["a"]["controls"] = []
    result["a"]["arms"] = [arm | {"changes": []} for arm in result["a"]["arms"]]
    assert plain(enhancing.tuned_arms_exhibit("a", result["a"]))[1][3:] == ["–", "–", "–"]
    assert enhancing.beats_every_draw(result["a"], "a") is False
