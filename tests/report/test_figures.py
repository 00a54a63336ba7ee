"""The figure files."""

import subprocess
import sys
from dataclasses import replace

import matplotlib
import pytest

from caploc.report.effects import effects_figure, scores_figure
from caploc.report.figures import HOUSE_STYLE, drawable, heads_figure
from caploc.report.headtable import head_table
from caploc.report.plates import drawn_figures, write_figures, write_plate
from caploc.report.scores import comparisons
from caploc.report.units import Kind, Unit, outcome_unit

CURVE = {
    "heads": ["L0H1"],
    "curves": {"demo/addition": [{"score": 0.9, "stderr": 0.1}, {"score": 0.1, "stderr": None}]},
}


def write_heads(folder, result):
    """Write the map of heads."""
    return write_plate(folder, "heads", lambda: heads_figure(result))


def test_every_figure_is_written_as_image_and_document(tmp_path, sure):
    write_figures(tmp_path / "figures", sure, CURVE)
    names = ["heads", "effects", "scores", "curve"]
    assert drawn_figures(tmp_path) == names
    for name in names:
        image, document = (tmp_path / "figures" / f"{name}.{end}" for end in ("png", "pdf"))
        assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 5_000
        assert document.read_bytes().startswith(b"%PDF") and document.stat().st_size > 2_000


def test_a_run_without_a_curve_or_effects_has_no_such_figure(tmp_path, result):
    for head in result["heads"]:
        head.update(effect=None)
    result.update(validation=None, intact=None)
    write_figures(tmp_path / "figures", result, None)
    assert drawn_figures(tmp_path) == ["heads"]


def test_effects_stand_at_their_numbers_with_their_intervals(sure):
    rows = head_table(sure).rows
    lines = effects_figure(rows, outcome_unit(sure)).axes[0].lines
    dots = [line.get_xdata()[0] for line in lines if line.get_marker() in "oD"]
    assert dots == pytest.approx([-41, -19, -0.3, 2])
    assert [list(line.get_xdata()) for line in lines if len(line.get_xdata()) == 2][1:] == [
        pytest.approx([effect - 5, effect + 5]) for effect in dots
    ]


def test_scores_of_another_measure_do_not_share_the_axis(sure):
    rows = comparisons(sure)
    assert len(scores_figure(rows).axes[0].get_yticks()) == 5
    odd = replace(rows[-1], unit=Unit(Kind.PLAIN, "bleu"))
    assert len(scores_figure([*rows[:-1], odd]).axes[0].get_yticks()) == 4


def test_the_same_result_gives_the_same_files(tmp_path, result):
    first = [path.read_bytes() for path in write_heads(tmp_path / "one", result)]
    assert [path.read_bytes() for path in write_heads(tmp_path / "two", result)] == first


@pytest.mark.parametrize("name", ["$\\frac{", "任务", "a\nb", "\x00\ud800"])
def test_any_name_can_be_drawn(tmp_path, result, name):
    result["task"]["name"] = result["task"]["metric"] = name
    write_heads(tmp_path, result)


@pytest.mark.parametrize("heads", [[4, 0, 2], [0], [], [1]])
def test_any_grid_can_be_drawn(tmp_path, result, heads):
    result["grid"] = {"layers": len(heads), "heads": heads, "group_sizes": [1] * len(heads)}
    result["heads"] = result["heads"][:1] if heads and heads[0] > 1 else []
    write_heads(tmp_path, result)


def test_the_scale_is_centred_on_zero_and_in_points(result):
    image = heads_figure(result).axes[0].images[0]
    assert image.get_clim() == pytest.approx((-41, 41))


def test_heads_that_break_tasks_are_marked_and_explained(sure):
    axes = heads_figure(sure).axes[0]
    signs = {line.get_marker(): list(line.get_xdata()) for line in axes.lines}
    assert signs == {"o": [3], "x": [0]}
    assert "cross: breaks another task too" in axes.get_xlabel()


def settings():
    """The settings that our style changes; to look at the backend would already choose one."""
    return {key: matplotlib.rcParams[key] for key in HOUSE_STYLE}


def test_settings_of_the_caller_are_left_alone(tmp_path, result):
    before = settings()
    write_heads(tmp_path, result)
    assert settings() == before


def test_pyplot_is_not_touched(tmp_path):
    check = (
        "import sys; from pathlib import Path; from caploc.report.plates import *;"
        "write_figures(Path(sys.argv[1]), {}, None); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check, str(tmp_path)], check=True)


def test_characters_without_a_glyph_become_boxes():
    assert drawable("é 任", 9) == "é □"
    assert drawable("abcdef", 4) == "abc…"
