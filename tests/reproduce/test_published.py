"""The paper's figures agree with each other and with the models, but for the slips listed."""

import pytest

from caploc.components import Head
from caploc.reproduce import read_preset, selection
from caploc.reproduce.selection import PRINTED

LLAMA_8B, LLAMA_3B, LLAMA_1B = "Llama-3.1-8B", "Llama-3.2-3B", "Llama-3.2-1B"
QWEN_7B, QWEN_3B = "Qwen-2.5-7B", "Qwen-2.5-3B"
# Layers and heads a layer by each model's own configuration.
REAL = {
    LLAMA_8B: (32, 32),
    LLAMA_3B: (28, 24),
    LLAMA_1B: (16, 32),
    QWEN_7B: (28, 28),
    QWEN_3B: (36, 16),
}
GENERAL = ["HellaSwag", "BoolQ", "ARC-C", "MMLU"]
THREE = GENERAL[:3]
SUBJECTS = ["W-Bio", "W-Chem", "W-Cyber"]


def named() -> list[tuple[str, str, str]]:
    """Model, where it stands, head: every head that the paper names."""
    rows = [
        (model, task, heads)
        for model, searches in PRINTED["heads"].items()
        for tasks in searches.values()
        for task, heads in tasks.items()
    ]
    rows += [(model, "universal", heads) for model, heads in PRINTED["universal"].items()]
    return [(model, where, head) for model, where, heads in rows for head in heads.split()]


def test_general_in_figure_2_is_the_mean_of_figure_1():
    curve = [int(value) / 10_000 for value in selection.CURVES[frozenset(GENERAL)]]
    for count, source in ((0, ""), (5, "GSM8K")):
        row = dict(zip(PRINTED["figure_1"], PRINTED["five_heads"][source], strict=True))
        mean = sum(row[label] for label in GENERAL) / 4
        assert curve[count] == pytest.approx(mean, abs=6e-5)
        assert selection.published_score(LLAMA_8B, "GSM8K", count, GENERAL) == pytest.approx(mean)


@pytest.mark.parametrize("labels", [["GSM8K"], ["Arith"], ["MBPP", "HEval"]])
def test_the_other_curves_of_figure_2_meet_figure_1(labels):
    curve = selection.CURVES[frozenset(labels)]
    assert len(curve) == 11
    for count, source in ((0, ""), (5, "GSM8K")):
        row = dict(zip(PRINTED["figure_1"], PRINTED["five_heads"][source], strict=True))
        mean = sum(row[label] for label in labels) / len(labels)
        assert int(curve[count]) / 10_000 == pytest.approx(mean, abs=6e-5)


def test_general_in_figure_4_is_the_mean_of_three():
    intact = dict(zip(PRINTED["figure_1"], PRINTED["five_heads"][""], strict=True))
    mean = sum(intact[label] for label in THREE) / 3
    assert selection.published_knowledge(LLAMA_8B, "", 0, THREE) == pytest.approx(mean, abs=6e-5)
    assert selection.published_knowledge(LLAMA_8B, "", 0, ["MMLU"]) == intact["MMLU"]
    assert selection.published_knowledge(LLAMA_8B, "", 0, GENERAL) is None


def test_every_head_exists_but_those_repeated_from_another_model():
    for model, where, name in named():
        layers, heads = REAL[model]
        head = Head.parse(name)
        exists = head.layer < layers and head.index < heads
        assert exists or where in PRINTED["repeated"].get(model, []), (model, where, name)


def test_the_repeated_rows_are_those_of_the_larger_model():
    assert list(PRINTED["repeated"]) == [LLAMA_3B]
    for task in PRINTED["repeated"][LLAMA_3B]:
        larger, smaller = (PRINTED["heads"][model]["CSS"] for model in (LLAMA_8B, LLAMA_3B))
        assert smaller[task] == larger[task]


def test_every_row_names_five_different_heads():
    for searches in PRINTED["heads"].values():
        for tasks in searches.values():
            assert all(len(set(heads.split())) == 5 for heads in tasks.values())


def test_sizes_are_the_models_own_but_for_the_slip_that_is_noted():
    wrong = [
        m for m, (layers, heads) in REAL.items() if PRINTED["sizes"][m] != [layers, layers * heads]
    ]
    assert wrong == [QWEN_3B]


def test_labels_are_those_of_the_preset():
    paper = read_preset("paper")
    labels = {benchmark.label for benchmark in paper.benchmarks}
    models = {model.label for model in paper.models}
    searches = {search.label for search in paper.searches}
    assert set(REAL) <= models and {*PRINTED["figure_1"], *SUBJECTS} <= labels
    assert {label for label in PRINTED["five_heads"] if label} <= labels
    heads = PRINTED["heads"]
    assert set(heads[LLAMA_8B]) == searches
    assert {task for each in heads.values() for tasks in each.values() for task in tasks} <= labels
    assert {*heads, *PRINTED["knowledge"]} <= models


@pytest.mark.parametrize(
    ("model", "source", "count", "labels"),
    [
        (LLAMA_3B, "GSM8K", 5, ["GSM8K"]),  # figure 1 is of one model
        (LLAMA_8B, "MBPP", 4, ["MBPP"]),  # and of five heads
        (LLAMA_8B, "GSM8K", 11, ["GSM8K"]),  # figure 2 ends at ten
        (LLAMA_8B, "GSM8K", 3, THREE),  # and is of all four general ones
        (LLAMA_8B, "GSM8K", 5, ["W-Bio"]),
        (LLAMA_8B, "Arith", 5, ["Arith"]),
        (LLAMA_8B, "GSM8K", 5, []),
    ],
)
def test_what_the_paper_does_not_print_is_not_known(model, source, count, labels):
    assert selection.published_score(model, source, count, labels) is None
    assert selection.published_drop(model, source, count, labels) is None


def test_a_drop_is_the_difference_of_two_printed_scores():
    assert selection.published_drop(LLAMA_8B, "GSM8K", 5, ["GSM8K"]) == pytest.approx(
        0.7847 - 0.3010
    )
    assert selection.published_drop(LLAMA_8B, "Swear", 5, ["Swear"]) == pytest.approx(1 - 0.1458)


def test_a_subjects_heads_are_five():
    assert selection.published_knowledge(LLAMA_8B, "W-Bio", 5, ["W-Bio"]) == 0.7196
    assert selection.published_knowledge(LLAMA_8B, "W-Bio", 3, ["W-Bio"]) is None
    assert selection.published_knowledge(LLAMA_3B, "L0H14", 1, ["MMLU"]) == 0.2371
