"""The pictures of a run as files, and what they show."""

import sys
from dataclasses import replace

import pytest
from shaping import shaped, shaped_curve

from caploc.components import ALONE
from caploc.report.charts import PRINT, STEPS, Picture, shade, shortened
from caploc.report.headtable import head_table
from caploc.report.plots import (
    CELL,
    MARKS,
    MOST_COLUMNS,
    SMALL_CELL,
    curve_specs,
    drawn_figures,
    effects_spec,
    heads_spec,
    matrix_spec,
    scores_specs,
    write_figures,
    write_matrices,
)
from caploc.report.scores import comparisons
from caploc.report.wording import ScoreKind, Unit, outcome_unit

CURVE = {
    "heads": ["L0H1"],
    "curves": {"demo/addition": [{"score": 0.9, "stderr": 0.1}, {"score": 0.1, "stderr": None}]},
}
HOSTILE = "</script><img src=x onerror=alert(1)>\x00\u202e"


def cells(spec):
    return {(cell["layer"], cell["head"]): cell for cell in spec["data"]["values"]}


def colours(spec):
    """The colour scale of the first layer."""
    return spec["layer"][0]["encoding"]["color"]["scale"]


def test_every_figure_is_written_as_image_and_document(tmp_path, sure):
    write_figures(tmp_path / "figures", shaped(sure), shaped_curve(CURVE))
    names = ["heads", "effects", "scores", "curve"]
    assert drawn_figures(tmp_path) == names
    for name in names:
        image, document = (tmp_path / "figures" / f"{name}.{end}" for end in ("png", "pdf"))
        assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 5_000
        assert document.read_bytes().startswith(b"%PDF") and document.stat().st_size > 2_000


def test_a_run_without_a_curve_or_effects_has_no_such_figure(tmp_path, result):
    for head in result["heads"]:
        head.update(effect=None)
    result.update(validation={"task": {"name": "x"}}, intact=None)
    write_figures(tmp_path / "figures", shaped(result), None)
    assert drawn_figures(tmp_path) == ["heads"]


def test_effects_stand_at_their_numbers_with_their_intervals(sure):
    rows, unit = head_table(shaped(sure)).rows, outcome_unit(shaped(sure))
    values = effects_spec(rows, unit, ALONE)["data"]["values"]
    assert [each["effect"] for each in values] == pytest.approx([-41, -19, -0.3, 2])
    for each in values:
        assert each["effect"] - each["low"] == pytest.approx(5)
        assert each["high"] - each["effect"] == pytest.approx(5)


def test_scores_of_another_measure_have_an_axis_of_their_own(sure):
    rows = comparisons(shaped(sure))
    assert len(scores_specs(rows)) == 1
    odd = replace(rows[-1], unit=Unit(ScoreKind.PLAIN, "bleu"))
    first, second = scores_specs([*rows[:-1], odd])
    titles = [spec["layer"][-1]["encoding"]["x"]["title"] for spec in (first, second)]
    assert titles == ["score (%)", "score (bleu)"]
    assert "vconcat" in Picture.of([first, second]).spec


def test_the_same_result_gives_the_same_picture(tmp_path, result):
    """A PDF has no date, but lists its fonts in any order."""
    for folder in ("one", "two"):
        Picture.of([heads_spec(shaped(result))]).save(tmp_path / folder / "heads")
    images = [(tmp_path / folder / "heads.png").read_bytes() for folder in ("one", "two")]
    assert images[0] == images[1]
    assert b"Date" not in (tmp_path / "one" / "heads.pdf").read_bytes()


@pytest.mark.parametrize("name", ["$\\frac{", "任务", "a\nb", "\x00", HOSTILE, "var(--ink)"])
def test_any_name_can_be_drawn(result, name):
    result["task"]["name"] = result["task"]["metric"] = name
    assert Picture.of([heads_spec(shaped(result))]).png().startswith(b"\x89PNG")


@pytest.mark.parametrize("heads", [[4, 0, 2], [0], [], [1]])
def test_any_grid_can_be_drawn(result, heads):
    result["grid"] = {"layers": len(heads), "heads": heads, "group_sizes": [1] * len(heads)}
    result["heads"] = result["heads"][:1] if heads and heads[0] > 1 else []
    result["top"] = []
    spec = heads_spec(shaped(result))
    assert len(spec["data"]["values"]) == sum(heads)
    assert Picture.of([spec]).pdf().startswith(b"%PDF")


def test_the_scale_is_centred_on_zero_and_in_points(result):
    scale = colours(heads_spec(shaped(result)))
    assert (scale["domain"][0], scale["domain"][-1]) == pytest.approx((-41, 41))
    assert len(scale["domain"]) == len(scale["range"]) and scale["domain"][16] == 0


def test_orange_is_the_head_that_the_task_needs_whichever_way_its_score_points(result):
    """Effects are those of outcomes, which are turned where a lower score is better."""
    needed = colours(heads_spec(shaped(result)))["range"][0]
    assert needed == shade(STEPS)
    result["task"]["higher_is_better"] = False
    assert colours(heads_spec(shaped(result)))["range"][0] == needed


def test_what_was_not_measured_is_no_zero(result):
    result["heads"][0]["effect"] = None
    spec, head = heads_spec(shaped(result)), result["heads"][0]
    assert cells(spec)[head["layer"], head["index"]]["effect"] is None
    assert "–: not measured" in spec["title"]["subtitle"]


def test_heads_that_break_tasks_are_marked_and_explained(sure):
    spec = heads_spec(shaped(sure))
    marked = {place: cell["mark"] for place, cell in cells(spec).items() if cell["mark"]}
    assert set(marked.values()) <= set(MARKS)
    assert "cross: breaks another task too" in spec["title"]["subtitle"]
    assert len(marked) == len(set(marked)) > 1


def test_large_maps_have_small_cells(result):
    assert heads_spec(shaped(result))["width"]["step"] == CELL
    result["grid"] = {"layers": 40, "heads": [40] * 40, "group_sizes": [1] * 40}
    assert heads_spec(shaped(result))["width"]["step"] == SMALL_CELL


def test_pictures_are_in_print_colours():
    drawn = Picture.of(curve_specs(shaped_curve(CURVE), {}))
    assert "var(" not in str(drawn.spec) and PRINT["--series-1"] in str(drawn.spec)
    assert drawn.spec["config"]["background"] == "white"


def test_a_notebook_gets_the_specification_and_a_picture(result):
    shown = Picture.of([heads_spec(shaped(result))])._repr_mimebundle_()
    assert set(shown) == {"application/vnd.vegalite.v5+json", "image/png"}


def test_a_matrix_keeps_the_largest_columns_and_marks_each_runs_own():
    heads = [f"L0H{index}" for index in range(MOST_COLUMNS + 2)]
    effects = [-0.5] * MOST_COLUMNS + [0.0, None]
    matrix = {"heads": heads, "rows": [{"run": "a", "effects": effects}]}
    values = matrix_spec(matrix, {"a": ["L0H1"]})["data"]["values"]
    assert [value["head"] for value in values] == heads[:MOST_COLUMNS]
    assert [value["head"] for value in values if value["own"]] == ["L0H1"]
    assert {value["share"] for value in values} == {-1.0}


def test_there_is_a_matrix_for_each_model_that_names_a_head(tmp_path):
    matrix = {"heads": ["L0H1"], "rows": [{"run": "a", "effects": [-0.5]}]}
    empty = {"heads": [], "rows": []}
    told = {"runs": [{"name": "a", "top": ["L0H1"]}]}
    told["models"] = [{"matrix": each} for each in (matrix, empty, matrix)]
    assert write_matrices(tmp_path, told) == ["matrix", "matrix-2"]
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "matrix-2.pdf"


def test_long_names_lose_their_middle():
    assert shortened("q" * 60 + "_one", 40) == "q" * 20 + "…" + "q" * 15 + "_one"
    assert shortened("a\nb") == "a␊b"
    assert sys.getsizeof(shortened("x" * 10_000)) < 500


def test_a_picture_says_what_to_do_with_it_and_is_saved_under_any_name(result, tmp_path):
    picture = Picture.of([heads_spec(shaped(result))])
    assert len(repr(picture)) < 100 and ".save(" in repr(picture)
    picture.save(str(tmp_path / "heads.png"))
    assert {path.name for path in tmp_path.iterdir()} == {"heads.png", "heads.pdf"}
