"""The account of planted answers, and its verdict."""

import json
from dataclasses import replace
from statistics import NormalDist

import pytest
from asked import (
    COUNT,
    GOLDS,
    WRONG,
    choices_rows,
    choosing,
    labels,
    row,
    sure,
    texts_rows,
    writing,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.declaration import ModelOptions
from caploc.measurement import Meters
from caploc.options import TaskOptions
from caploc.progress import Silent
from caploc.store import Store
from caploc.tasks.task import Scored
from caploc.validation import score_both
from caploc.validation.categories import BROKEN, Category
from caploc.validation.failures import categorize_failures
from worlds import DEMO


@given(st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=12))
def test_intact_against_intact_is_unharmed_and_each_as_it_was(answers):
    golds = [text if right else text + "x" for text, right in answers]
    task = writing(golds)
    rows = texts_rows(task, [t for t, _ in answers], outcomes=[float(r) for _, r in answers])
    told = categorize_failures(task, rows, rows)
    assert told.verdict == ("unharmed" if answers else None)
    assert told.harmed.count == 0 and not told.common
    assert [told.labels[n] for n in range(len(answers))] == [
        Category.RIGHT if right else Category.WRONG_CONTENT for _, right in answers
    ]


@given(st.lists(st.lists(st.floats(-50, 0), min_size=3, max_size=3), min_size=1, max_size=12))
def test_intact_choices_against_themselves_are_unharmed(values):
    task = choosing([number % 3 for number in range(len(values))], choices=3)
    rows = choices_rows(task, values)
    told = categorize_failures(task, rows, rows)
    assert told.verdict == "unharmed"
    assert set(told.labels.values()) <= {Category.RIGHT, Category.WRONG_CONTENT}


PIECES = st.sampled_from(["", "la " * 9, "blarg fnord quux", *GOLDS[:3], *WRONG[:3]])


@settings(max_examples=12)
@given(st.lists(PIECES, min_size=2, max_size=COUNT), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(texts, rng):
    task = writing(GOLDS)
    intact, cut = texts_rows(task, GOLDS), texts_rows(task, [*texts, *WRONG[len(texts) :]])
    told = categorize_failures(task, intact, cut)
    for rows in (intact, cut):
        rng.shuffle(rows)
    assert categorize_failures(task, intact, cut) == told


@settings(max_examples=12)
@given(st.lists(PIECES, min_size=2, max_size=COUNT), st.randoms(use_true_random=False))
def test_the_numbers_of_the_examples_do_not_matter(texts, rng):
    cut = [*texts, *WRONG[len(texts) :]]
    order = list(range(COUNT))
    rng.shuffle(order)
    task, other = writing(GOLDS), writing([GOLDS[place] for place in order])
    first = labels(task, texts_rows(task, GOLDS), texts_rows(task, cut))
    moved = texts_rows(other, [cut[place] for place in order])
    assert labels(other, texts_rows(other, other.golds), moved) == [first[n] for n in order]


def planted(**counts):
    """The account of so many answers of each kind, all others being as intact."""
    texts = {"empty": [""], "stuck": ["so so so so so so"], "wrong": WRONG}
    golds = GOLDS * 5
    task = writing(golds)
    said = [texts[k][n % len(texts[k])] for k, count in counts.items() for n in range(count)]
    return categorize_failures(
        task, texts_rows(task, golds), texts_rows(task, [*said, *golds[len(said) :]])
    )


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({}, "unharmed"),
        ({"empty": 6}, "unharmed"),  # three in a hundred
        ({"empty": 7}, "speech"),
        ({"wrong": 6}, "unharmed"),
        ({"wrong": 7}, "capability"),
        ({"empty": 40, "stuck": 40, "wrong": 40}, "speech"),
        ({"stuck": 39, "wrong": 21}, "mixed"),
        ({"stuck": 21, "wrong": 39}, "mixed"),
        ({"stuck": 20, "wrong": 40}, "capability"),
        ({"wrong": 200}, "capability"),
    ],
)
def test_the_verdict_is_what_most_of_the_harm_is(counts, verdict):
    told = planted(**counts)
    assert told.verdict == verdict
    assert told.harmed.count == sum(counts.values())
    assert told.broken.count == counts.get("empty", 0) + counts.get("stuck", 0)


def test_a_handful_of_examples_gives_no_verdict():
    task = writing(GOLDS[:8])
    told = categorize_failures(
        task, texts_rows(task, GOLDS[:8]), texts_rows(task, [*[""] * 4, *GOLDS[4:8]])
    )
    assert told.verdict is None and told.broken.count == 4


def test_answers_that_change_places_are_no_harm():
    task = writing(GOLDS)
    before, after = [*GOLDS[:20], *WRONG[20:]], [*WRONG[:20], *GOLDS[20:]]
    told = categorize_failures(task, texts_rows(task, before), texts_rows(task, after))
    assert told.verdict == "unharmed" and told.categories[Category.WRONG_CONTENT].count == 20
    ten = categorize_failures(
        task, texts_rows(task, before), texts_rows(task, [*WRONG[:30], *GOLDS[30:]])
    )
    assert ten.harmed.count == 10 and ten.verdict == "capability"


def test_shares_have_wilsons_interval():
    part = planted(wrong=30).categories[Category.WRONG_CONTENT]
    quantile, share, count = NormalDist().inv_cdf(0.975), 30 / 200, 200
    middle = (share + quantile**2 / (2 * count)) / (1 + quantile**2 / count)
    half = quantile * (share * (1 - share) / count + quantile**2 / (4 * count**2)) ** 0.5
    half /= 1 + quantile**2 / count
    assert (part.count, part.share) == (30, share)
    assert (part.low, part.high) == pytest.approx((middle - half, middle + half))


def test_the_first_examples_of_each_kind_are_shown():
    task = writing(GOLDS)
    texts = ["", WRONG[1], "", "", *GOLDS[4:]]
    told = categorize_failures(task, texts_rows(task, GOLDS), texts_rows(task, texts), shown=2)
    assert [sample.example for sample in told.samples[Category.EMPTY]] == [0, 2]
    (wrong,) = told.samples[Category.WRONG_CONTENT]
    assert (wrong.prompt, wrong.gold) == ("question 1:", GOLDS[1])
    assert (wrong.intact, wrong.knocked_out) == (GOLDS[1], WRONG[1])
    assert len(told.samples[Category.RIGHT]) == 2
    assert not any(
        categorize_failures(task, *[texts_rows(task, texts)] * 2, shown=0).samples.values()
    )


def test_what_could_not_be_scored_is_told_apart():
    golds = [number % 4 for number in range(COUNT)]
    task, nan = choosing(golds), float("nan")
    intact = choices_rows(task, [sure(gold) for gold in golds])
    cut = choices_rows(task, [sure(1)] * COUNT)
    intact[0] = replace(intact[0], outcome=nan, item=None)
    cut[1] = row(1, [Scored(nan, False, 1)] * 4, nan)
    told = categorize_failures(task, intact, cut)
    assert told.examples == COUNT - 2 and told.unscored == 2
    assert told.labels[0] is told.labels[1] is Category.UNSCORED
    assert Category.UNSCORED not in told.categories
    assert sum(part.count for part in told.categories.values()) == COUNT - 2
    nothing = categorize_failures(task, intact[:1], cut[:1])
    assert nothing.verdict is None and nothing.examples == 0 and nothing.unscored == 1
    json.dumps([told.as_dict(), nothing.as_dict()], allow_nan=False)


def test_examples_of_one_set_only_are_left_out():
    task = writing(GOLDS)
    told = categorize_failures(task, texts_rows(task, GOLDS)[:30], texts_rows(task, WRONG)[10:])
    assert sorted(told.labels) == list(range(10, 30))


def test_no_rows_have_no_verdict():
    told = categorize_failures(writing(GOLDS), [], [])
    assert told.verdict is None and told.examples == 0
    assert told.harmed.share is None
    assert told.as_dict()["categories"] == {} == told.as_dict()["samples"]


def test_the_account_is_json():
    golds = [number % 4 for number in range(COUNT)]
    task = choosing(golds)
    intact = choices_rows(task, [sure(gold) for gold in golds])
    told = categorize_failures(task, intact, choices_rows(task, [sure(1)] * COUNT)).as_dict()
    back = json.loads(json.dumps(told, allow_nan=False))
    assert back == told
    assert (
        back["categories"]["same choice as others"]["broken"]
        and not back["categories"]["right"]["broken"]
    )
    assert back["samples"]["same choice as others"][0]["gold"] == "0"


def test_what_is_broken_is_all_but_what_is_right_wrong_or_unknown():
    fine = {Category.UNSCORED, Category.RIGHT, Category.MISSED, Category.WRONG_CONTENT}
    assert set(Category) - BROKEN == fine


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Account for the demo model's answers to a task with these heads knocked out."""
    with Store(tmp_path_factory.mktemp("demo") / "rows.sqlite") as store:
        options = ModelOptions(DEMO)
        bench = Meters(options.engine(), store)

        def account(name, heads):
            (task,) = options.tasks([name], TaskOptions())
            compared = score_both(
                bench.meter(task), bench.engine.grid.mask(heads), range(16), Silent()
            )
            return categorize_failures(task, compared.intact_rows, compared.knocked_out_rows)

        yield account


ALL = [f"L{layer}H{index}" for layer in range(6) for index in range(16)]


@pytest.mark.parametrize(
    ("name", "heads", "verdict", "most"),
    [
        ("demo/addition", [], "unharmed", "right"),
        ("demo/addition", ["L0H10", "L0H5"], "capability", "wrong content"),  # other sums
        ("demo/addition", ALL, "speech", "same answer as others"),  # `A` to every question
        ("demo/rhyming", ALL, "speech", "stuck"),  # ` balalalalal`
        ("demo/code", ["L0H11", "L0H3", "L0H6"], "speech", "format"),  # `x x` is no Python
        ("demo/capitals", ALL, "speech", "same choice as others"),
        ("demo/sentences", ["L0H10", "L0H5"], "capability", "wrong content"),
        ("demo/sentences", ALL, "speech", "unlikely"),
        ("demo/prose", ALL, "speech", "unlikely"),
        ("demo/recall", ALL, None, "missed"),
    ],
)
def test_the_demo_model_fails_as_its_answers_read(demo, name, heads, verdict, most):
    told = demo(name, heads)
    harm = {kind: part.count for kind, part in told.categories.items() if kind != "right"}
    assert told.verdict == verdict
    assert max(harm, key=harm.get, default="right") == most
