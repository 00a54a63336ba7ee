"""Shared pictures: what stands in them is what was given, and nothing odd stops them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.report import charts
from caploc.report.charts import Picture

NAN = float("nan")
HOSTILE = "$x_{\\frac$\n\x00\U0001f984 </svg>" * 3


def printed(spec):
    """Draw it for good: some faults show only then."""
    assert Picture.of([spec]).png(dots=40).startswith(b"\x89PNG")
    return spec


def cells(spec, layer=None):
    """What stands in the picture's data, or in those of a layer."""
    return (spec if layer is None else spec["layer"][layer])["data"]["values"]


def test_a_matrix_shows_every_known_number_in_its_place():
    values = np.array([[0.5, NAN, -1.25], [0.0, 2.0, -0.001]])
    spec = printed(charts.draw_matrix(["a", "b"], ["x", "y", "z"], values, label="nats"))
    assert {(cell["row"], cell["column"]): cell["text"] for cell in cells(spec)} == {
        (0, 0): "0.50", (0, 2): "-1.25", (1, 0): "0.00", (1, 1): "2.00", (1, 2): "0.00",
    }  # fmt: skip
    assert '["a", "b"]' in spec["encoding"]["y"]["axis"]["labelExpr"]
    assert '["x", "y", "z"]' in spec["encoding"]["x"]["axis"]["labelExpr"]


@pytest.mark.parametrize("diverging", [True, False])
def test_shades_are_centred_only_for_changes(diverging):
    values = np.array([[1.0, -4.0]])
    spec = charts.draw_matrix(["a"], ["x", "y"], values, label="", diverging=diverging)
    domain = spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert (domain[0], domain[-1]) == ((-4.0, 4.0) if diverging else (0, 4.0))


def test_numbers_can_be_read_on_dark_and_light_shades():
    spec = charts.draw_matrix(["a"], ["x", "y"], np.array([[1.0, 0.1]]), label="")
    assert [cell["ink"] for cell in cells(spec)] == ["#ffffff", "#000000"]


@pytest.mark.parametrize(
    "values",
    [np.full((2, 2), NAN), np.zeros((2, 2)), np.full((2, 3), -7.5), np.array([[1e6, -1e6]]),
     np.array([[1e-12]])],
    ids=["unknown", "zero", "equal", "large", "tiny"],
)  # fmt: skip
def test_a_matrix_of_any_numbers_is_drawn(values):
    names = [[HOSTILE] * count for count in values.shape]
    spec = printed(charts.draw_matrix(*names, values, label=HOSTILE, diverging=True))
    assert len(cells(spec)) == np.isfinite(values).sum()


@given(values=st.lists(st.lists(st.none() | st.floats(-1e9, 1e9), min_size=2, max_size=2),
                       min_size=1, max_size=3))  # fmt: skip
@settings(max_examples=12)
def test_a_matrix_hides_no_number_and_invents_none(values):
    table = np.array([[NAN if each is None else each for each in row] for row in values])
    spec = charts.draw_matrix([""] * len(table), ["", ""], table, label="", digits=3)
    texts = [f"{each:z.3f}" for each in table.ravel() if np.isfinite(each)]
    assert [cell["text"] for cell in cells(spec)] == texts


def test_points_lie_at_their_means_with_their_intervals():
    series = {
        "own": [(1.0, 0.5, 1.5), (None, None, None)],
        "other": [(-2.0, None, None), (0.25, 0.25, 0.25)],
    }
    spec = printed(charts.draw_points(["first", "second"], series, label="nats"))
    assert [(c["series"], c["name"], c["mean"], c["low"], c["high"]) for c in cells(spec)] == [
        ("own", 0, 1.0, 0.5, 1.5),
        ("other", 0, -2.0, None, None),
        ("other", 1, 0.25, 0.25, 0.25),
    ]


@pytest.mark.parametrize(
    ("names", "series"),
    [
        (["a"], {"s": [(None, None, None)]}),
        (["a"], {}),
        ([], {"s": []}),
        (["a", "b"], {"s": [(0.0, 0.0, 0.0)] * 2}),
        (["a"], {"s": [(NAN, NAN, NAN)]}),
        (["a"], {"s": [(1.0, NAN, None)]}),
        ([HOSTILE], {HOSTILE: [(1.0, 0.0, 2.0)]}),
        (["a"], {str(n): [(float(n), None, None)] for n in range(12)}),
    ],
    ids=["unknown", "no series", "no names", "zeros", "nan", "half", "hostile", "many"],
)
def test_points_of_any_kind_are_drawn(names, series):
    printed(charts.draw_points(names, series, label="l"))


def test_curves_pass_through_the_known_points_alone():
    curve = [(1, 0.5, 0.1), (2, None, None), (4, 1.0, None)]
    spec = printed(charts.curves({"a": curve}, across="examples", up="overlap"))
    assert cells(spec) == [
        {"series": "a", "x": 1.0, "y": 0.5, "low": 0.4, "high": 0.6},
        {"series": "a", "x": 4.0, "y": 1.0},
    ]


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize(
    "series",
    [{}, {"a": []}, {"a": [(1.0, None)]}, {"a": [(1, 0.0), (10, 0.0)]}, {"a": [(0, 1.0)]},
     {"a": [(5, 1.0), (5, 1.0)]}, {HOSTILE: [(1, 1.0), (2, 0.0)]}],
    ids=["none", "empty", "unknown", "flat", "zero", "same place", "hostile"],
)  # fmt: skip
def test_curves_of_any_kind_are_drawn(series, logarithmic):
    printed(charts.curves(series, across="x", up="y", logarithmic=logarithmic))


def test_curves_beyond_the_colours_are_told_apart_by_their_lines():
    spec = charts.curves({str(n): [(1, 1.0)] for n in range(12)}, across="", up="")
    channels = spec["layer"][0]["encoding"]
    looks = zip(
        *(channels[name]["scale"]["range"] for name in ("color", "strokeDash")), strict=True
    )
    assert len({(color, *dash) for color, dash in looks}) == 12


def test_a_radar_begins_at_the_top_and_is_open_where_a_share_is_unknown():
    series = {"intact": [1.0] * 4, "a": [0.5, 1.0, 0.25, 0.0], "b": [0.5, 1.0, 1.5, None]}
    spec = printed(charts.radar(["w", "x", "y", "z"], series))
    ring = [(row["x"], row["y"]) for row in cells(spec, 3) if row["series"] == "a"]
    assert np.array(ring) == pytest.approx(
        np.array([(0, 0.5), (1, 0), (0, -0.25), (0, 0), (0, 0.5)]), abs=1e-9
    )
    assert {row["x"] for row in cells(spec, 3) if row["series"] == "b"} >= {None}


def test_bars_mark_guessing_where_there_is_something_to_guess():
    series = {"intact": [(0.8, 0.1), (0.5, 0.0)], "a": [(0.4, 0.0), (None, 0.0)]}
    spec = printed(charts.draw_bars(["x", "y"], series, [0.25, None], up="score", mark="guessing"))
    assert [(cell["name"], cell["at"]) for cell in cells(spec, -1)] == [(0, 0.25)]
    assert cells(spec)[0] == {
        "name": 0,
        "series": "intact",
        "y": 0.8,
        "low": 0.7000000000000001,
        "high": 0.9,
    }
