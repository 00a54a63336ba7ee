"""How numbers are written."""

import math

import pytest
from shaping import shaped

from caploc.result import Score, TaskComparison
from caploc.wording import NOT_MEASURED, ScoreKind, Unit, called, unit_of, unit_of_task

SHARE = Unit(ScoreKind.SHARE, "acc")
PLAIN = Unit(ScoreKind.PLAIN, "word_perplexity", higher_is_better=False)
NBSP = "\u00a0"


@pytest.mark.parametrize(
    "value, text",
    [(0.99, "99 %"), (0.123, "12.3 %"), (0.0, "0 %"), (1.0, "100 %"), (None, NOT_MEASURED)],
)
def test_shares_are_percentages(value, text):
    assert SHARE.score(value).replace(NBSP, " ") == text


@pytest.mark.parametrize(
    "value, text",
    [(-0.41, "−41.0 points"), (0.0123, "+1.2 points"), (-0.0003, "0.0 points"),
     (0.0, "0 points"), (None, NOT_MEASURED)],
)  # fmt: skip
def test_effects_on_shares_are_points(value, text):
    assert SHARE.effect(value).replace(NBSP, " ") == text


@pytest.mark.parametrize(
    "value, text",
    [(12.14, "12.1"), (1234.5, "1,234"), (-0.5, "−0.500"), (3e8, "3.00e+08"), (math.inf, "∞")],
)
def test_other_scores_keep_three_digits(value, text):
    assert PLAIN.score(value) == text


@pytest.mark.parametrize(
    "unit, value, limit, text",
    [(SHARE, -0.41, 0.41, "−41"), (SHARE, -0.016, 0.41, "−1.6"), (SHARE, 0.0001, 0.41, "0.0"),
     (SHARE, 0.0, 0.41, "0"), (PLAIN, 4.1, 4.1, "+4.1"), (PLAIN, 0.0004, 4.1, "0.0"),
     (PLAIN, 0.0412, 0.0412, "+0.041")],
)  # fmt: skip
def test_a_cell_shows_what_counts_beside_the_largest_effect(unit, value, limit, text):
    assert unit.short_effect(value, limit) == text


@pytest.mark.parametrize(
    "metric, kind",
    [
        ("exact_match,strict-match", ScoreKind.SHARE),
        ("acc_norm", ScoreKind.SHARE),
        ("pass@1", ScoreKind.SHARE),
        ("word_perplexity", ScoreKind.PLAIN),
        ("mcc", ScoreKind.PLAIN),
    ],
)
def test_only_known_shares_become_percentages(result, metric, kind):
    result["task"]["metric"] = metric
    assert unit_of(shaped(result)).kind is kind


def test_an_accuracy_in_hundredths_is_not_multiplied_again(result):
    result["intact"]["score"] = 57.0
    assert unit_of(shaped(result)).kind is ScoreKind.PLAIN


def test_another_task_may_have_another_kind_of_score():
    def kind(intact, knocked_out, **more):
        scores = {"intact": Score(score=intact), "knocked_out": Score(score=knocked_out)}
        return unit_of_task(TaskComparison(name="x", **scores, **more)).kind

    assert kind(0.98, 0.97, metric="acc") is ScoreKind.SHARE
    assert kind(12.0, 13.0, metric="acc") is kind(0.98, 0.97) is ScoreKind.PLAIN
    assert kind(0.5, 0.4, metric="mcc") is ScoreKind.PLAIN


def test_a_task_of_a_yaml_is_called_what_the_yaml_says(tmp_path):
    path = tmp_path / "file.yaml"
    assert called(str(path)) == "file.yaml"  # as it was, where it is gone
    titles = {
        "task: my_sums\ndoc_to_text: x\n": "my_sums",
        '{\n "task": "your task",\n "dataset_path": "json"\n}': "your task",
        "# of both\ngroup: both\ntask:\n  - one\n  - two\n": "both",
        "dataset_path: json\nmetadata:\n    task: no\n": "yaml.3",
    }
    for number, (text, title) in enumerate(titles.items()):
        path = tmp_path / f"yaml.{number}.yaml"
        path.write_text(text)
        assert called(str(path)).removesuffix(".yaml") == title
