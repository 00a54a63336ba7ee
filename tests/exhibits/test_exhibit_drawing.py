"""Shared pictures: what stands in them is what was given, and nothing odd stops them.

Warnings are errors in tests, so that every picture drawn here is drawn without one.
"""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.exhibits import drawing

NAN = float("nan")
HOSTILE = "$x_{\\frac$\n\x00\U0001f984 </svg>" * 3


def rendered(figure):
    """Draw it for good: some faults show only then."""
    figure.savefig(BytesIO(), format="png", bbox_inches="tight", dpi=40)
    return figure


def texts(figure):
    """The numbers in a matrix."""
    return [text.get_text() for text in figure.axes[0].texts]


def ticks(labels):
    return [label.get_text() for label in labels]


def test_a_matrix_shows_every_known_number_in_its_place():
    values = np.array([[0.5, NAN, -1.25], [0.0, 2.0, -0.001]])
    figure = rendered(drawing.matrix(["a", "b"], ["x", "y", "z"], values, label="nats"))
    found = {(t.get_position()[1], t.get_position()[0]): t.get_text() for t in figure.axes[0].texts}
    assert found == {
        (0, 0): "0.50", (0, 2): "-1.25", (1, 0): "0.00", (1, 1): "2.00", (1, 2): "0.00",
    }  # fmt: skip
    assert ticks(figure.axes[0].get_yticklabels()) == ["a", "b"]
    assert ticks(figure.axes[0].get_xticklabels()) == ["x", "y", "z"]
    assert figure.axes[1].get_ylabel() == "nats"


@pytest.mark.parametrize("diverging", [True, False])
def test_shades_are_centred_only_for_changes(diverging):
    figure = drawing.matrix(["a"], ["x", "y"], np.array([[1.0, -4.0]]), label="",
                            diverging=diverging)  # fmt: skip
    image = figure.axes[0].images[0]
    assert image.get_clim() == ((-4.0, 4.0) if diverging else (0, 4.0))


def test_numbers_can_be_read_on_dark_and_light_shades():
    figure = drawing.matrix(["a"], ["x", "y"], np.array([[1.0, 0.1]]), label="")
    assert [text.get_color() for text in figure.axes[0].texts] == ["white", "black"]


@pytest.mark.parametrize(
    "values",
    [np.full((2, 2), NAN), np.zeros((2, 2)), np.full((1, 1), 3.0), np.full((2, 3), -7.5),
     np.array([[1e6, -1e6]]), np.array([[1e-12]])],
    ids=["unknown", "zero", "single", "equal", "large", "tiny"],
)  # fmt: skip
@pytest.mark.parametrize("diverging", [True, False])
def test_a_matrix_of_any_numbers_is_drawn(values, diverging):
    names = [list(map(str, range(count))) for count in values.shape]
    figure = rendered(drawing.matrix(*names, values, label="l", diverging=diverging))
    assert len(texts(figure)) == np.isfinite(values).sum()


@given(values=st.lists(st.lists(st.none() | st.floats(-1e9, 1e9), min_size=2, max_size=2),
                       min_size=1, max_size=3))  # fmt: skip
@settings(max_examples=12)
def test_a_matrix_hides_no_number_and_invents_none(values):
    table = np.array([[NAN if each is None else each for each in row] for row in values])
    figure = drawing.matrix([""] * len(table), ["", ""], table, label="", digits=3)
    assert texts(figure) == [f"{each:z.3f}" for each in table.ravel() if np.isfinite(each)]


def test_points_lie_at_their_means_with_their_intervals():
    series = {
        "own": [(1.0, 0.5, 1.5), (None, None, None)],
        "other": [(-2.0, None, None), (0.25, 0.25, 0.25)],
    }
    figure = rendered(drawing.points(["first", "second"], series, label="nats"))
    axes = figure.axes[0]
    lines = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) and
             line.get_linestyle() != "None" and list(line.get_xdata()) != [0, 0]]  # fmt: skip
    marks = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() != "None"]
    assert sorted(marks) == [-2.0, 0.25, 1.0]
    assert sorted(map(list, lines)) == [[0.25, 0.25], [0.5, 1.5]]
    assert ticks(axes.get_yticklabels()) == ["first", "second"]
    assert axes.yaxis_inverted() and axes.get_xlabel() == "nats"
    assert ticks(axes.get_legend().get_texts()) == ["own", "other"]


def test_a_series_is_in_the_legend_once_even_if_its_first_is_unknown():
    series = {"own": [(None, None, None), (1.0, None, None), (2.0, None, None)]}
    figure = drawing.points(["a", "b", "c"], series, label="")
    assert ticks(figure.axes[0].get_legend().get_texts()) == ["own"]


@pytest.mark.parametrize(
    ("names", "series"),
    [
        (["a"], {"s": [(None, None, None)]}),
        (["a"], {}),
        ([], {"s": []}),
        (["a"], {"s": [(1.0, 1.0, 1.0)]}),
        (["a", "b"], {"s": [(0.0, 0.0, 0.0)] * 2}),
        (["a"], {"s": [(NAN, NAN, NAN)]}),
        (["a"], {"s": [(1.0, NAN, None)]}),
        ([HOSTILE], {HOSTILE: [(1.0, 0.0, 2.0)]}),
        (["a"], {str(n): [(float(n), None, None)] for n in range(12)}),
    ],
    ids=["unknown", "no series", "no names", "point", "zeros", "nan", "half", "hostile", "many"],
)
def test_points_of_any_kind_are_drawn(names, series):
    assert rendered(drawing.points(names, series, label="l")).axes


def test_curves_pass_through_the_known_points_alone():
    figure = rendered(
        drawing.curves({"a": [(1, 0.5), (2, None), (4, 1.0)]}, across="examples", up="overlap")
    )
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), [[1, 0.5], [4, 1.0]])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("examples", "overlap")


@pytest.mark.parametrize("logarithmic", [True, False])
@pytest.mark.parametrize(
    "series",
    [{}, {"a": []}, {"a": [(1.0, None)]}, {"a": [(10, 0.5)]}, {"a": [(1, 0.0), (10, 0.0)]},
     {"a": [(5, 1.0), (5, 1.0)]}, {HOSTILE: [(1, 1.0), (2, 0.0)]},
     {str(n): [(1, float(n)), (2, 1.0)] for n in range(15)}],
    ids=["none", "empty", "unknown", "single", "flat", "same place", "hostile", "many"],
)  # fmt: skip
def test_curves_of_any_kind_are_drawn(series, logarithmic):
    figure = rendered(drawing.curves(series, across="x", up="y", logarithmic=logarithmic))
    assert figure.axes[0].get_xscale() == ("log" if logarithmic else "linear")


def test_curves_beyond_the_colours_are_told_apart_by_their_lines():
    figure = drawing.curves({str(n): [(1, 1.0)] for n in range(12)}, across="", up="")
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    assert len(set(looks)) == 12
