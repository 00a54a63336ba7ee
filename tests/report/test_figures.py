"""The figure files."""

import subprocess
import sys

import matplotlib
import pytest

from caploc.report.figures import HOUSE_STYLE, drawable, heads_figure, write_heads_figure


def test_both_files_are_written(tmp_path, result):
    image, document = write_heads_figure(tmp_path / "figures", result)
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 5_000
    assert document.read_bytes().startswith(b"%PDF") and document.stat().st_size > 2_000


def test_the_same_result_gives_the_same_files(tmp_path, result):
    first = [path.read_bytes() for path in write_heads_figure(tmp_path / "one", result)]
    assert [path.read_bytes() for path in write_heads_figure(tmp_path / "two", result)] == first


@pytest.mark.parametrize("name", ["$\\frac{", "任务", "a\nb", "\x00\ud800"])
def test_any_name_can_be_drawn(tmp_path, result, name):
    result["task"]["name"] = result["task"]["metric"] = name
    write_heads_figure(tmp_path, result)


@pytest.mark.parametrize("heads", [[4, 0, 2], [0], [], [1]])
def test_any_grid_can_be_drawn(tmp_path, result, heads):
    result["grid"] = {"layers": len(heads), "heads": heads, "group_sizes": [1] * len(heads)}
    result["heads"] = result["heads"][:1] if heads and heads[0] > 1 else []
    write_heads_figure(tmp_path, result)


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
    write_heads_figure(tmp_path, result)
    assert settings() == before


def test_pyplot_is_not_touched(tmp_path):
    check = (
        "import sys; from pathlib import Path; from caploc.report.figures import *;"
        "write_heads_figure(Path(sys.argv[1]), {}); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check, str(tmp_path)], check=True)


def test_characters_without_a_glyph_become_boxes():
    assert drawable("é 任", 9) == "é □"
    assert drawable("abcdef", 4) == "abc…"
