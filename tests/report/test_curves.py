"""Scores against the number of heads, as a figure and as a table."""

from caploc.report.curves import curve_figure
from caploc.report.curvetable import curve_table
from caploc.report.units import Kind, Unit

POINTS = [
    {"score": 0.9, "stderr": 0.01, "examples": 9},
    {"score": None, "stderr": None, "examples": 0},
]
DRAWN = {"heads": ["L0H1"], "curves": {"demo/addition": POINTS, "a" * 99: POINTS}}


def test_each_task_has_a_line_and_missing_scores_have_no_point():
    axes = curve_figure(DRAWN).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[0], [0]]


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
