"""Charts as Vega-Lite draws them."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from shaping import shaped, shaped_curve

from caploc.components import ALONE
from caploc.report.charts import (
    NARROW,
    SERIES,
    SHAPES,
    WIDE,
    by_series,
    chart,
    number_channel,
)
from caploc.report.headtable import head_table
from caploc.report.plots import (
    curve_specs,
    draw_effects,
    draw_ratio,
    draw_shares,
    scores_specs,
    units_by_task,
)
from caploc.report.scores import comparisons
from caploc.report.wording import outcome_unit

PLACE = re.compile(r"translate\(([-\d.e]+),([-\d.e]+)\)")
HOSTILE = "</svg></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


def marks(svg):
    """Note and place of each mark that a reader can point at."""
    found = {}
    for element in ElementTree.fromstring(svg).iter():
        if element.get("data-note"):
            place = PLACE.match(element.get("transform") or "")
            note = element.get("data-note").replace("\u00a0", " ")
            found[note] = tuple(map(float, place.groups())) if place else None
    return found


def test_effects_lie_where_their_numbers_are(sure):
    table = head_table(shaped(sure))
    drawn = draw_effects(table.rows, outcome_unit(shaped(sure)), ALONE)
    for svg in (drawn.wide, drawn.narrow):
        places = {note.split(":")[0]: place for note, place in marks(svg).items()}
        assert list(places) == ["L0H1", "L1H3", "L0H0", "L1H0"]
        xs, ys = zip(*places.values(), strict=True)
        share = [(x - xs[0]) / (xs[-1] - xs[0]) for x in xs]
        assert share == pytest.approx([(e + 41) / 43 for e in (-41, -19, -0.3, 2)], abs=1e-3)
        steps = {round(low - high, 3) for high, low in zip(ys, ys[1:], strict=False)}
        assert len(steps) == 1 and steps.pop() > 0


def test_notes_hold_the_numbers_as_the_table_writes_them(sure):
    table = head_table(shaped(sure))
    (first, *_) = marks(draw_effects(table.rows, outcome_unit(shaped(sure)), ALONE).wide)
    assert first == "L0H1: −41.0 points\n95 % interval −46.0 to −36.0"


def test_without_effects_there_is_no_chart(result):
    for head in result["heads"]:
        head.update(effect=None, low=None, high=None)
    rows = head_table(shaped(result)).rows
    assert draw_effects(rows, outcome_unit(shaped(result)), ALONE) is None


def test_a_share_is_drawn_on_a_whole_axis_and_every_draw_has_its_mark(sure):
    (spec,) = scores_specs(comparisons(shaped(sure)))
    drawn = chart("", spec)
    found = marks(drawn.wide)
    assert sum("one draw" in note for note in found) == 4
    left, right = (
        found["held-out examples\nknocked out: 22 %"],
        found["held-out examples\nintact: 100 %"],
    )
    other = found["random heads\nknocked out: 95 % ± 3.6"]
    assert (other[0] - left[0]) / (right[0] - left[0]) == pytest.approx((95 - 22) / 78, abs=1e-3)
    assert left[1] == right[1] < other[1]


def test_scores_of_different_measures_have_charts_of_their_own(sure):
    sure["validation"]["other_tasks"][0]["metric"] = "bleu"
    assert len(scores_specs(comparisons(shaped(sure)))) == 2


def test_the_curve_has_a_line_for_each_task_and_no_point_where_nothing_was_measured(result):
    points = [{"score": 0.9, "stderr": 0.1}, {"score": None, "stderr": None}, {"score": 0.1}]
    drawn = {
        "heads": ["L0H1", "L1H3"],
        "curves": {"demo/addition": points, "demo/sentences": points},
    }
    (spec,) = curve_specs(shaped_curve(drawn), units_by_task(shaped(result)))
    found = marks(chart("", spec).wide)
    assert len(found) == 4 and "demo/addition\n2 heads knocked out, last L1H3: 10 %" in found


def test_a_ratio_lies_by_its_number_beside_one():
    drawn = draw_ratio(0.5, 0.25, 2.0)
    ((place, _),) = marks(drawn.wide).values()
    zero = marks(draw_ratio(0.0, 0.0, 2.0).wide)
    ((origin, _),) = zero.values()
    ((end, _),) = marks(draw_ratio(2.0, 0.0, 2.0).wide).values()
    assert (place - origin) / (end - origin) == pytest.approx(
        0.25, abs=1e-2
    )  # the numbers at the axis differ in width
    assert marks(draw_ratio(0.5, None, None).wide)


def test_rows_that_double_lie_evenly():
    drawn = draw_shares([(1.0, 0.5), (2.0, 0.6), (4.0, 0.7)], 0.85, "expected recall")
    xs = [x for x, _ in marks(drawn.wide).values()]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=1e-2)
    assert "4 times the rows: 70" in drawn.summary


def test_hostile_names_stay_text_in_a_chart(sure):
    first, *others = head_table(shaped(sure)).rows
    rows = [replace(first, head=HOSTILE), *others]
    drawn = draw_effects(rows, outcome_unit(shaped(sure)), ALONE)
    for svg in (drawn.wide, drawn.narrow):
        tags = {element.tag for element in ElementTree.fromstring(svg).iter()}
        assert tags <= {"svg", "g", "path", "text", "line", "rect"}
        assert "<script" not in svg and "<img" not in svg
        names = {name for e in ElementTree.fromstring(svg).iter() for name in e.attrib}
        assert not {name for name in names if name.startswith("on") or "href" in name}
        assert not {"id", "role", "aria-label"} & names
    assert any(note.startswith(HOSTILE) for note in marks(drawn.wide))


def test_a_chart_fits_its_width_and_uses_the_pages_colours():
    values = {"values": [{"a": 1.0}, {"a": 2.0}]}
    drawn = chart(
        "two", {"data": values, "mark": "point", "encoding": {"x": number_channel("a", "a")}}
    )
    for svg, width in ((drawn.wide, WIDE), (drawn.narrow, NARROW)):
        assert float(ElementTree.fromstring(svg).get("width")) == pytest.approx(width, abs=1)
        assert "var(--line)" in svg and "#ddd" not in svg


def test_no_address_is_read():
    with pytest.raises(ValueError, match="."):
        chart("no", {"data": {"url": "https://example.org/a.csv"}, "mark": "point", "encoding": {}})


def test_no_two_series_look_alike():
    names = [f"task {number}" for number in range(len(SERIES) * len(SHAPES))]
    colours, shapes = (
        by_series(names)[channel]["scale"]["range"] for channel in ("color", "shape")
    )
    assert len(set(zip(colours, shapes, strict=True))) == len(names)
    assert set(colours) == set(SERIES) and set(shapes) == set(SHAPES)
