"""What was lost, in words."""

import pytest
from shaping import shaped

from caploc.report.scores import comparisons, lost
from caploc.result import Failures


def failures(verdict, **shares):
    kinds = {kind.replace("_", " "): {"count": 1, "share": share} for kind, share in shares.items()}
    return Failures.model_validate({"verdict": verdict, "categories": kinds})


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("capability", "content is lost"),
        ("speech", "the question is no longer answered"),
        ("mixed", "content and form are lost"),
    ],
)
def test_the_largest_kinds_of_harm_are_named(verdict, words):
    told = failures(verdict, right=0.3, wrong_content=0.4, loop=0.15, empty=0.1, format=0.05)
    text = lost(told).replace("\u00a0", " ")
    assert text == f"{words}: 40 % wrong content, 15 % loop, 10 % empty, ..."


@pytest.mark.parametrize(
    "told", [None, Failures(), failures("unharmed", right=1.0), failures(None)]
)
def test_nothing_is_said_where_nothing_was_lost(told):
    assert lost(told) == ""


def test_a_kind_cannot_write_into_the_page_or_break_the_line():
    assert "\n" not in lost(failures("speech", **{"a\nb": 0.5}))


def test_each_score_says_what_was_lost(result):
    told = failures("capability", right=0.5, wrong_content=0.5)
    result["validation"]["task"]["failures"] = told.as_dict()
    for entry in result["validation"]["other_tasks"]:
        entry["failures"] = failures("unharmed", right=1.0).as_dict()
    rows = comparisons(shaped(result))
    assert [row.lost for row in rows if row.lost] == [lost(told)]
    result["validation"]["task"]["change"] = {"outcome": -0.02, "verdict": "open"}
    assert not any(row.lost for row in comparisons(shaped(result)))
