from caploc.report.curves import curve_figure, write_curve

POINTS = [
    {"score": 0.9, "stderr": 0.01, "examples": 9},
    {"score": None, "stderr": None, "examples": 0},
]
DRAWN = {"heads": ["L0H1"], "curves": {"demo/addition": POINTS, "a" * 99: POINTS}}


def test_each_task_has_a_line_and_missing_scores_have_no_point():
    axes = curve_figure(DRAWN).axes[0]
    lines = [container.lines[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[0], [0]]


def test_files_are_written(tmp_path):
    for path in write_curve(tmp_path, DRAWN):
        assert path.parent == tmp_path / "figures" and path.stat().st_size > 1000
