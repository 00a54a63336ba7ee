"""Scores against the number of heads, as a figure and as a table."""

from io import BytesIO

import pytest

from caploc.report.curves import curve_figure
from caploc.report.curvetable import curve_table
from caploc.report.plates import styled
from caploc.report.units import Kind, Unit

POINTS = [
    {"score": 0.9, "stderr": 0.01, "examples": 9},
    {"score": None, "stderr": None, "examples": 0},
]
DRAWN = {"heads": ["L0H1"], "curves": {"demo/addition": POINTS, "a" * 99: POINTS}}


def test_each_task_has_a_line_and_missing_scores_have_no_point():
    axes = curve_figure(DRAWN, {}).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[0], [0]]


def test_scores_of_another_measure_have_axes_of_their_own():
    units = {
        "accuracy": Unit(Kind.SHARE, "acc"),
        "prose": Unit(Kind.PLAIN, "word_perplexity", higher_is_better=False),
        "recall": Unit(Kind.SHARE, "exact_match"),
    }
    points = {"accuracy": [1.0, 0.25], "prose": [21.5, 80.0], "recall": [0.5, 0.5]}
    curves = {
        task: [{"score": score, "stderr": score / 10} for score in scores]
        for task, scores in points.items()
    }
    shares, plain = curve_figure({"heads": ["L0H1"], "curves": curves}, units).axes
    drawn = {
        axes: [bar.lines[0].get_ydata() for bar in axes.containers] for axes in (shares, plain)
    }
    assert [list(line) for line in drawn[shares]] == [[100.0, 25.0], [50.0, 50.0]]
    assert [list(line) for line in drawn[plain]] == [[21.5, 80.0]]
    assert shares.get_ylabel() == "score (%)" and plain.get_ylabel() == "score (word_perplexity)"
    assert names_in(shares) == ["accuracy", "recall"] and names_in(plain) == ["prose"]
    (error,) = shares.containers[0].lines[2]
    assert [list(ends[:, 1]) for ends in error.get_segments()] == [[90, 110], [22.5, 27.5]]


def names_in(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


DEEP = "/home/someone/with/a/long/path/to/tasks/"


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        ([DEEP + "one.yaml", DEEP + "two.yaml"], ["one.yaml", "two.yaml"]),
        (["/a/x.yaml", "/b/x.yaml", "demo/x"], ["a/x.yaml", "b/x.yaml", "demo/x"]),
        (["/a/x", "/b/a/x", "x"], ["/a/x", "b/a/x", "x"]),
        (["q" * 60 + "_one", "q" * 60 + "_two"],
         ["q" * 20 + "…" + "q" * 15 + "_one", "q" * 20 + "…" + "q" * 15 + "_two"]),
    ],
)  # fmt: skip
def test_each_line_has_a_name_of_its_own(tasks, names):
    (axes,) = curve_figure({"heads": ["L0H1"], "curves": dict.fromkeys(tasks, POINTS)}, {}).axes
    assert names_in(axes) == names


def test_a_name_that_is_no_formula_is_shown_as_it_is_in_another_style():
    units = {"$\\frac{ $": Unit(Kind.PLAIN, "$\\sqrt{")}
    figure = styled(lambda: curve_figure({"curves": {"$\\frac{ $": POINTS}}, units))
    figure.savefig(written := BytesIO(), format="png")
    assert written.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [{"score": None, "stderr": None}]}])
def test_a_curve_of_nothing_is_empty_axes(curves):
    (axes,) = curve_figure({"heads": [], "curves": curves}, {}).axes
    assert all(len(line.get_xdata()) == 0 for line in axes.lines)


def test_the_table_has_a_row_for_each_number_of_heads():
    table = curve_table(DRAWN, {"demo/addition": Unit(Kind.SHARE, "acc")})
    rows = [[cell.replace("\u00a0", " ") for cell in row] for row in table.rows]
    assert table.tasks == ["demo/addition", "a" * 99]
    assert rows == [
        ["0", "none", "90 % ± 1", "0.900 ± 0.010"],
        ["1", "L0H1", "not measured", "not measured"],
    ]


def test_a_task_with_fewer_points_leaves_its_cells_empty():
    short = {"heads": ["L0H1"], "curves": {"a": POINTS[:1], "b": [POINTS[0], POINTS[0]]}}
    assert curve_table(short, {}).rows[1][2:] == ["not measured", "0.900 ±\u00a00.010"]
