"""Universal heads leave every task's heads, and only they do."""

from dataclasses import replace

import numpy as np
import pytest
from labs import planted, written
from scipy import stats

from caploc.components import Head, Heads
from caploc.recovery import Estimate, Measurements
from caploc.report.exhibits import Value
from caploc.reproduce import exhibits
from caploc.reproduce.laboratory import ScoredTask, needed_columns
from caploc.reproduce.preset import Preset
from caploc.reproduce.selection import (
    TRIED,
    idle,
    knowledge_heads,
    named_heads,
    universal_candidates,
    universal_heads,
)
from caploc.search import Found
from caploc.stats.chance import common_to_all


def names(heads):
    return [str(head) for head in heads]


def shared(**fields):
    """L0H0 is found for both families; what it costs each is planted."""
    rankings = {"Add": ["L0H0", "L1H0", "L2H0"], "Sort": ["L3H0", "L0H0", "L4H0"]}
    return planted(rankings=rankings, **fields)


def test_a_head_that_every_family_needs_is_taken_out_and_the_next_follows():
    lab = shared(drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")})
    model = lab.preset.models[0]
    assert names(universal_heads(lab, model)) == ["L0H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[0])) == ["L1H0", "L2H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[1])) == ["L3H0", "L4H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[1], count=1)) == ["L3H0"]


def test_the_search_is_not_made_again_unless_asked_for():
    drops = {label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")}
    once, twice = (
        shared(drops=drops, preset=Preset.model_validate(written(search_again=again)))
        for again in (False, True)
    )
    for lab in (once, twice):
        heads = named_heads(lab, lab.preset.models[0], lab.preset.benchmarks[0])
        assert names(heads) == ["L1H0", "L2H0"]
    assert not any(once.excluded) and ["L0H0"] in twice.excluded
    notes = [" ".join(exhibits.table2(lab).notes) for lab in (once, twice)]
    assert "taken out of what a search found, and the next ones move up" in notes[0]
    assert "were made again without the universal heads" in notes[1]


def test_the_fourth_table_counts_the_searches_whose_heads_it_prints():
    drops = {label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")}
    for again, expected in ((False, (7, 7, 70)), (True, (17, 24, 240))):
        lab = shared(drops=drops, preset=Preset.model_validate(written(search_again=again)))
        for row in exhibits.table4(lab).rows:
            assert tuple(cell.number for cell in row[-3:]) == expected


def test_only_heads_of_a_negative_effect_are_found_by_a_search():
    nothing = np.full(5, np.nan)
    effect = np.array([0.0, np.nan, -0.2, 0.1, -0.3])
    estimate = Estimate("lasso", effect, nothing, nothing, nothing)
    seen = Measurements.none(5)
    assert needed_columns(Found([4], estimate.order(), estimate, seen)) == [4, 2]
    assert needed_columns(Found([3, 4], [3, 4, 2, 0, 1], estimate, seen)) == [3, 4, 2]


def test_a_short_ranking_is_not_filled_up_and_said_to_be_short():
    lab = planted(rankings={"Add": ["L1H0"], "Sort": []})
    curve = exhibits.fig2(lab)
    assert [row[:2] for row in curve.rows] == [("0", "–"), ("1", "L1H0")]
    assert "CSS found 1 of 10 heads: the curves end there." in curve.notes
    table = exhibits.table2(lab)
    assert table.rows[1][3:] == (Value(None),) * 3
    for found, label in ((1, "Add"), (0, "Sort")):
        said = f"CSS found {found} of 2 heads for {label} on demo; no other head is added."
        assert said in table.notes


def test_the_ninth_table_says_what_each_head_of_greedy_added(monkeypatch):
    lab = planted()
    steps = (Head(1, 0), 0.25), (Head(2, 0), 0.0)
    searched = lab.search
    monkeypatch.setattr(lab, "search", lambda *asked: replace(searched(*asked), steps=steps))
    said = "CSS for Add, what each head added: L1H0 0.250, L2H0 0.000."
    assert said in exhibits.table9(lab).notes


def test_a_head_that_few_need_stays():
    lab = shared(drops={"Add": {"L0H0": 0.5}})
    model = lab.preset.models[0]
    assert names(universal_candidates(lab, model)) == ["L0H0"]
    assert universal_heads(lab, model) == []
    assert names(named_heads(lab, model, lab.preset.benchmarks[0])) == ["L0H0", "L1H0"]


def test_a_loss_that_may_be_chance_makes_no_head_universal():
    drops = {label: {"L0H0": 0.1} for label in ("Add", "Sort", "Gen")}
    unsure, sure = shared(drops=drops, stderr=0.05), shared(drops=drops, stderr=0.001)
    assert universal_heads(unsure, unsure.preset.models[0]) == []
    assert names(universal_heads(sure, sure.preset.models[0])) == ["L0H0"]


def test_a_head_of_twins_is_no_candidate():
    """Two benchmarks of one family need the same heads because they are the same task."""
    content = written()
    content["benchmark"][1] |= {"family": "math"}
    lab = shared(
        drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")},
        preset=Preset.model_validate(content),
    )
    assert universal_candidates(lab, lab.preset.models[0]) == []


def test_a_head_beyond_the_first_is_no_candidate():
    lab = planted(rankings={"Add": ["L1H0", "L2H0", "L0H0"], "Sort": ["L3H0", "L4H0", "L0H0"]})
    assert universal_candidates(lab, lab.preset.models[0]) == []


def test_candidates_of_most_families_come_first():
    content = written(top=3)
    content["benchmark"].append(
        {"label": "Say", "task": "demo/rhyming", "group": "words", "localize": True}
    )
    rankings = {
        "Add": ["L0H1", "L0H0", "L1H0"],
        "Sort": ["L0H1", "L0H0", "L2H0"],
        "Say": ["L0H0", "L3H0", "L4H0"],
    }
    lab = planted(rankings=rankings, preset=Preset.model_validate(content))
    assert names(universal_candidates(lab, lab.preset.models[0])) == ["L0H0", "L0H1"]


def test_candidates_are_tried_on_few_examples_and_once():
    lab = shared(drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")})
    model = lab.preset.models[0]
    for _ in range(3):
        universal_heads(lab, model)
    assert lab.limits == [TRIED] * 3  # one candidate, three benchmarks


@pytest.mark.parametrize(("chosen", "expected"), [(99, []), (2, []), (1, ["L2H0"]), (0, ["L1H0"])])
def test_heads_that_the_search_would_not_name_are_idle(chosen, expected):
    lab = planted(chosen=chosen)
    found = idle(lab, lab.preset.models[0], lab.preset.benchmarks[0], "CSS")
    assert set(map(Head.parse, expected)) <= found
    assert bool(found) == bool(expected)


def test_knowledge_heads_are_those_of_all_subjects():
    content = written()
    content["benchmark"].append(
        {"label": "Say", "task": "demo/rhyming", "group": "knowledge", "localize": True}
    )
    for benchmark in content["benchmark"][:2]:
        benchmark |= {"group": "knowledge"}
    rankings = {"Add": ["L1H0", "L0H5"], "Sort": ["L0H5", "L1H0"], "Say": ["L0H5", "L2H0"]}
    lab = planted(rankings=rankings, preset=Preset.model_validate(content))
    found, p = knowledge_heads(lab, lab.preset.models[0])
    assert names(found) == ["L0H5"] and p == pytest.approx(common_to_all(1, 96, [2, 2, 2]))


def test_heads_that_chance_alone_would_give_are_no_knowledge_heads():
    """Two sets of 24 of 96 heads share six by chance."""
    content = written(top=24)
    for benchmark in content["benchmark"][:2]:
        benchmark |= {"group": "knowledge"}
    heads = [f"L{layer}H{head}" for layer in range(6) for head in range(16)]
    rankings = {"Add": heads[:24], "Sort": heads[18:42]}
    lab = planted(rankings=rankings, preset=Preset.model_validate(content))
    found, p = knowledge_heads(lab, lab.preset.models[0])
    assert found == [] and p > 0.3


def test_what_all_of_several_random_sets_share_is_counted_exactly():
    assert common_to_all(2, 30, [5, 7]) == pytest.approx(stats.hypergeom.sf(1, 30, 5, 7))
    assert common_to_all(0, 30, [5, 7]) == pytest.approx(1)
    random = np.random.default_rng(0)
    drawn = [
        len(set.intersection(*(set(random.permutation(12)[:size]) for size in (5, 6, 7)))) >= 2
        for _ in range(20_000)
    ]
    assert common_to_all(2, 12, [5, 6, 7]) == pytest.approx(np.mean(drawn), abs=0.012)


def test_a_search_draws_as_many_examples_of_every_part():
    preset = Preset.model_validate(written())
    spec = preset.searches[0].model_copy(update={"examples": 4})
    problem = preset.problem(spec, Heads((4, 4)), [50, 10, 3])
    own = [
        sum(start <= e < end for e in problem.examples)
        for start, end in ((0, 50), (50, 60), (60, 63))
    ]
    assert own == [4, 4, 3] and not set(problem.examples) & set(problem.fresh)
    assert len(problem.fresh) == 34 + 6


def test_an_error_is_never_none_of_a_sample():
    whole = ScoredTask(1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 60, 0.0).unsure([Head(0, 0)])
    assert whole.ends == pytest.approx((0.9398, 1.0), abs=1e-3)
    assert 0.01 < whole.stderr < 0.03 and whole.intact_stderr == whole.stderr
    assert whole.drop_stderr == pytest.approx(1 / 62, rel=0.02)
    some = ScoredTask(0.8, 0.05, 0.5, 0.06, 0.3, 0.05, 60, 0.0)
    assert some.unsure([Head(0, 0)]) == some
    assert whole.unsure([]) == whole
    assert ScoredTask(0.8, 0.05, 0.8, 0.05, 0.0, 0.0, 60, 0.0).unsure([]).drop_stderr == 0.0
