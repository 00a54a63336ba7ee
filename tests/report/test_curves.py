"""Scores against the number of heads, as a figure and as a table."""

import pytest
from shaping import shaped, shaped_curve

from caploc.report.charts import Picture
from caploc.report.plots import curve_specs
from caploc.report.scores import read_curve, tabulate_curve, tell_doubtful, tell_end
from caploc.report.wording import ScoreKind, Unit

POINTS = [
    {"score": 0.9, "stderr": 0.01, "examples": 9},
    {"score": None, "stderr": None, "examples": 0},
]
DRAWN = {"heads": ["L0H1"], "curves": {"demo/addition": POINTS, "a" * 99: POINTS}}


def marks(spec):
    return [(each["series"], each["heads"], each["score"]) for each in spec["data"]["values"]]


def test_each_task_has_a_line_and_missing_scores_have_no_point():
    (spec,) = curve_specs(shaped_curve(DRAWN), {})
    assert marks(spec) == [("demo/addition", 0, 0.9), ("a" * 99, 0, 0.9)]


def test_scores_of_another_measure_have_axes_of_their_own():
    units = {
        "accuracy": Unit(ScoreKind.SHARE, "acc"),
        "prose": Unit(ScoreKind.PLAIN, "word_perplexity", higher_is_better=False),
        "recall": Unit(ScoreKind.SHARE, "exact_match"),
    }
    points = {"accuracy": [1.0, 0.25], "prose": [21.5, 80.0], "recall": [0.5, 0.5]}
    curves = {
        task: [{"score": score, "stderr": score / 10} for score in scores]
        for task, scores in points.items()
    }
    shares, plain = curve_specs(shaped_curve({"heads": ["L0H1"], "curves": curves}), units)
    assert marks(shares) == [
        ("accuracy", 0, 100.0), ("accuracy", 1, 25.0), ("recall", 0, 50.0), ("recall", 1, 50.0),
    ]  # fmt: skip
    assert marks(plain) == [("prose", 0, 21.5), ("prose", 1, 80.0)]
    titles = [spec["layer"][0]["encoding"]["y"]["title"] for spec in (shares, plain)]
    assert titles == ["score (%)", "score (word_perplexity)"]
    ends = [(each["low"], each["high"]) for each in shares["data"]["values"][:2]]
    assert ends == [pytest.approx((90, 110)), pytest.approx((22.5, 27.5))]


ACCURACY = Unit(ScoreKind.SHARE, "acc")


def told(own, *others, unit=ACCURACY):
    """What a curve of these scores is read to mean, without its unbroken spaces."""
    curves = {"own": own} | {f"other {n}": each for n, each in enumerate(others)}
    points = {task: [{"score": one} for one in scores] for task, scores in curves.items()}
    heads = [f"L0H{n}" for n in range(len(own) - 1)]
    drawn = shaped_curve({"heads": heads, "curves": points})
    return read_curve(drawn, dict.fromkeys(curves, unit)).replace("\u00a0", " ")


def test_a_curve_says_on_how_many_examples_it_was_drawn():
    points = {"own": [{"score": one, "examples": 20} for one in (0.8, 0.2)]}
    drawn = shaped_curve({"heads": ["L0H0"], "curves": points})
    assert "(from 80\u00a0% to 20\u00a0% on 20 examples)" in read_curve(drawn, {"own": ACCURACY})


def test_a_curve_says_how_many_heads_it_takes_and_where_it_says_no_more():
    assert told([0.8, 0.7, 0.3], [0.9, 0.9, 0.8]) == (
        "Half of own or more is lost with 2 heads knocked out (from 80 % to 30 %), while other 0 "
        "goes from 90 % to 80 %."
    )
    assert told([0.8, 0.7, 0.6]) == (
        "With all 2 heads knocked out, own scores 60 %, with none 80 %: more than half of it is "
        "left."
    )
    fallen = told([0.8, 0.3, 0.0], [0.9, 0.9, 0.1])
    assert fallen.endswith(
        " From 2 heads on nearly nothing is left of it, nor half of any other task: there the "
        "model breaks, not this capability alone."
    )
    standing = told([0.8, 0.0, 0.0], [0.9, 0.9, 0.1])
    assert standing.endswith(
        "From 1 head on nearly nothing is left of it: what further heads do to it cannot be seen."
    )
    assert told([0.0, 0.0]) == told([20.0, 40.0], unit=Unit(ScoreKind.PLAIN, "perplexity")) == ""


def test_heads_are_counted_in_whole_numbers():
    many = [{"score": 0.9, "stderr": 0.01}] * 31
    for points, ticks in ((many[:3], [0, 1, 2]), (many, list(range(0, 31, 3)))):
        (spec,) = curve_specs(shaped_curve({"heads": [], "curves": {"a": points}}), {})
        assert spec["layer"][0]["encoding"]["x"]["axis"]["values"] == ticks


DEEP = "/home/someone/with/a/long/path/to/tasks/"


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        ([DEEP + "one.yaml", DEEP + "two.yaml"], ["one.yaml", "two.yaml"]),
        (["/a/x.yaml", "/b/x.yaml", "demo/x"], ["a/x.yaml", "b/x.yaml", "demo/x"]),
        (["/a/x", "/b/a/x", "x"], ["/a/x", "b/a/x", "x"]),
    ],
)
def test_each_line_has_a_name_of_its_own(tasks, names):
    (spec,) = curve_specs(shaped_curve(DRAWN | {"curves": dict.fromkeys(tasks, POINTS)}), {})
    assert [name for name, *_ in marks(spec)] == names


def test_a_name_that_is_no_formula_is_shown_as_it_is():
    units = {"$\\frac{ $": Unit(ScoreKind.PLAIN, "$\\sqrt{")}
    specs = curve_specs(shaped_curve(DRAWN | {"curves": {"$\\frac{ $": POINTS}}), units)
    assert Picture.of(specs).png().startswith(b"\x89PNG")


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [{"score": None, "stderr": None}]}])
def test_a_curve_of_nothing_is_no_chart(curves):
    assert curve_specs(shaped_curve({"heads": [], "curves": curves}), {}) == []


def test_the_table_has_a_row_for_each_number_of_heads():
    tasks, rows = tabulate_curve(
        shaped_curve(DRAWN), {"demo/addition": Unit(ScoreKind.SHARE, "acc")}
    )
    rows = [[cell.replace("\u00a0", " ") for cell in row] for row in rows]
    assert tasks == ["demo/addition", "a" * 99]
    assert rows == [
        ["0", "none", "90 % ± 1", "0.900 ± 0.010"],
        ["1", "L0H1", "not measured", "not measured"],
    ]


def test_a_task_with_fewer_points_leaves_its_cells_empty():
    short = {"heads": ["L0H1"], "curves": {"a": POINTS[:1], "b": [POINTS[0], POINTS[0]]}}
    assert tabulate_curve(shaped_curve(short), {})[1][1][2:] == [
        "not measured",
        "0.900 ±\u00a00.010",
    ]


def test_heads_of_a_curve_that_may_do_nothing_are_told(result):
    entry = next(each for each in result["heads"] if each["head"] not in result["top"])
    drawn = shaped_curve({"heads": [*result["top"], entry["head"]], "curves": {}})
    entry.update(effect=-0.2, low=-0.4, high=-0.1)
    assert tell_doubtful(drawn, shaped(result)) == ""
    entry.update(high=0.1)
    assert tell_doubtful(drawn, shaped(result)) == (
        f"Alone, {entry['head']} may do nothing: its interval holds 0 in the search."
    )


def test_a_curve_of_fewer_heads_than_asked_says_why():
    drawn = shaped_curve({"heads": ["L0H1", "L1H2"], "curves": {}})
    assert tell_end(drawn, 2) == ""
    assert tell_end(drawn, 500) == (
        "The run ranks 2 heads, those that it estimates to be needed: no more."
    )
