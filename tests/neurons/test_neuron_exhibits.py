"""Tables, charts and pages of neurons: what is known, what is not, and hostile text."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.neurons.enhancing import GOLD, METRIC, RANDOM, tabulate_tuning
from caploc.neurons.erasure import tabulate_arms
from caploc.neurons.report import (
    Exhibit,
    chart_curves,
    chart_matrix,
    chart_points,
    join_draws,
    lay_out,
    points_of,
    tabulate_effects,
    write_exhibits,
    write_interval,
)
from caploc.neurons.result import (
    ArmLoss,
    Erased,
    Tuned,
    TuningChange,
    TuningControl,
    TuningFit,
    TuningResult,
)
from caploc.neurons.stats import Interval
from caploc.result import Score
from doubles import Page

HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b\u202e\ud800&lt;"
)
SEEN = HOSTILE.replace("\x00", "␀").replace("\x1b", "␛").replace("\u202e", "⟨U+202E⟩")
SEEN = SEEN.replace("\ud800", "⟨U+D800⟩")
DRAWN = {"svg", "g", "path", "line", "text"}  # as many as the labels have room
NONE = Interval(nan, nan, nan, 0)


def between(mean, low=nan, high=nan):
    return Interval(mean, float(low), float(high), 9)


@pytest.mark.parametrize(
    ("found", "cell"),
    [
        (between(0.5, 0.25, 0.75), "0.500 (0.250 to 0.750)"),
        (between(0.5), "0.500"),
        (between(-0.0001, -0.0004, 0.0), "0.000 (0.000 to 0.000)"),
        (NONE, "–"),
        (None, "–"),
        (join_draws([between(0.1, 0, 9), between(0.3, 0, 9), NONE]), "0.200 (0.100 to 0.300)"),
        (join_draws([between(0.1, 0.0, 9.0)]), "0.100 (0.000 to 9.000)"),
        (join_draws([NONE, NONE]), "–"),
    ],
)
def test_an_interval_is_written_as_far_as_it_is_known(found, cell):
    assert write_interval(found) == cell


def test_charts_draw_what_is_known_and_nothing_of_nothing():
    points = points_of("a", {"x": between(1.0, 0.5, 2.0), "y": NONE, "z": None})
    assert [(point["series"], point["mean"]) for point in points] == [("x", 1.0)]
    assert chart_points(points, "nats").to_dict()["layer"]
    cells = [{"row": "a", "column": "b", "value": value} for value in (0.0, nan)]
    curve = [{"series": "a", "x": 1, "y": 0.5}, {"series": "a", "x": 2, "y": None}]
    for nothing in (chart_points([], ""), chart_matrix(cells, ""), chart_curves(curve, "", "")):
        assert nothing is None


def test_a_column_of_which_nothing_is_known_is_left_out():
    table = Exhibit.of("t", [{"a": "1", "b": "–"}, {"a": "–", "b": "–"}], ["", "note"])
    assert (table.columns, table.rows, table.notes) == (["a"], [["1"], ["–"]], ["note"])


def test_effects_stand_before_those_of_random_neurons():
    own = {("a", "a"): 2.1, ("a", "b"): nan, ("b", "a"): 0.1, ("b", "b"): 0.45}
    table = tabulate_effects("t", "erased", own, {pair: 0.25 for pair in own if pair[0] == "a"},
                             losses=True)  # fmt: skip
    assert table.rows == [["a", "2.100 (0.250)", "– (0.250)"], ["b", "0.100", "0.450"]]
    (cells,) = table.chart.to_dict()["datasets"].values()
    assert [cell["value"] for cell in cells] == [-2.1, -0.1, -0.45]  # in the colour of losses


def arm(name, draw, mean, score=0.5):
    lost = between(mean, mean - 0.1, mean + 0.1)
    return ArmLoss(name, draw, score, lost, lost)


def test_arms_that_were_not_measured_have_no_column():
    arms = [arm("located", 0, 2.1), *(arm("random", n, n / 10, n / 10) for n in range(3))]
    own = Erased.of("a", 9, Score(score=0.9, stderr=0.1), arms, (None, None))
    table = tabulate_arms({"a": own})
    assert dict(zip(table.columns, *table.rows, strict=True)) == {
        "task": "a",
        "intact": "0.900 ± 0.100",
        "erased": "0.500",
        "random": "0.100 (0.000 to 0.200)",
        "log-probability lost": "2.100 (2.000 to 2.200)",
    }


def tuned(own, draws, rate=0.1, edge=False):
    """A task's enhancement."""
    rate = float(rate)

    def changed(name, mean, draw=None):
        gold = TuningChange("a", GOLD, 0.0, mean, between(mean, mean - 0.1, mean + 0.1))
        score = TuningChange("a", METRIC, 0.0, 0.0, between(0.0, 0.0, 0.0))
        fit = TuningFit(1536, rate, edge, 1.0, {rate: 0.5}) if name != "none" else None
        return Tuned(name, draw, 4, fit, (gold, score))

    arms = [changed("none", 0.0), changed("located", own)]
    arms += [changed(RANDOM, mean, number) for number, mean in enumerate(draws)]
    control = TuningControl("a", GOLD, own, tuple(draws), between(own), 1 / 6)
    return TuningResult(9, 2, tuple(arms), (control,))


def test_tuning_is_told_beside_its_draws():
    result = tuned(0.5, [0.1, 0.2, 0.3, 0.4, 0.45])
    table = tabulate_tuning("a", result)
    none, located, drawn = table.rows
    assert none[:3] == ["none", "–", "–"] and none[4] == "0.000 (-0.100 to 0.100)"
    assert located[:3] == ["located", "1,536", "0.1"] and located[4] == "0.500 (0.400 to 0.600)"
    assert drawn[0] == f"{RANDOM}, 5 draws" and drawn[4] == "0.290 (0.100 to 0.450)"
    assert "p 0.167 with 5 draws" in table.notes[-1]
    at_edge = tuned(0.5, [0.5] * 5, 1, edge=True)
    assert tabulate_tuning("a", at_edge).rows[1][2] == "1 (edge)"


def written(folder, text="plain"):
    points = chart_points(points_of(text, {"own": between(1.0, 0.5, 2.0)}), "nats")
    table = Exhibit.of(text, [{text: text, "b": "0.500"}], [text], points)
    return Page(write_exhibits(folder, text, [text], [table, Exhibit.of("", [])], text))


def test_hostile_text_is_text_wherever_it_stands(tmp_path):
    page, plain = written(tmp_path, HOSTILE), written(tmp_path / "plain")
    # no element more than on the page of a harmless text, and no attribute
    shown, expected = (
        [(tag, set(own)) for tag, own in each.elements if tag not in DRAWN]
        for each in (page, plain)
    )
    assert shown == expected and {*dict(page.elements)} == {*dict(plain.elements)}
    # title, line, exhibit's title, its column, its row's name, its note, the command
    assert sum(SEEN in text for text in page.texts) >= 7
    assert any((each.get("aria-label") or "").startswith(SEEN) for each in page.having("div"))
    assert not set("\x00\x1b\u202e\ud800") & set(page.source)


@given(text=st.text(max_size=40))
def test_any_text_comes_back_as_it_is_shown(tmp_path_factory, text):
    table = Exhibit.of(text, [{"a": text, "b": "0.500"}])
    page = Page(write_exhibits(tmp_path_factory.mktemp("any"), "t", [], [table], ""))
    title = lay_out(table)["title"]  # HTML knows no carriage return, and ours are drawn
    assert title == "" or any(title in each for each in page.texts)
    assert "not recorded" in page.texts


def test_nothing_is_loaded_from_elsewhere_and_figures_lie_inside(tmp_path):
    page = written(tmp_path)
    for _, attributes in page.elements:
        for name in {"src", "srcset", "href", "data", "poster", "action"} & set(attributes):
            assert attributes[name].startswith(("data:", "#"))
    assert "@import" not in page.source and "url(http" not in page.source
    (policy,) = (
        each["content"]
        for each in page.having("meta")
        if each.get("http-equiv", "").lower() == "content-security-policy"
    )
    assert policy.startswith("default-src 'none'") and "img-src data:" in policy
    assert len(page.having("svg")) == 2  # for wide and narrow pages; the second has no figure
    assert {"part-1", "part-2"} <= {each.get("id") for each in page.having("section")}


def test_tasks_that_are_files_are_called_by_their_names():
    one, other, third = "/a/x/pairs.yaml", "/a/y/pairs.yaml", "/a/z/rhymes.yaml"
    table = Exhibit.of("t", [{"task": one, other: "1", third: "2"}])
    assert (table.columns, table.rows) == (
        ["task", "y/pairs.yaml", "rhymes"],
        [["x/pairs.yaml", "1", "2"]],
    )
