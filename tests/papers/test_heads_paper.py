"""The heads paper: its printed figures agree, heads are chosen as it does, shares and chances."""

import numpy as np
import pytest
from scipy import stats

from caploc.components import Head, Heads
from caploc.declaration import Allowed
from papers.exhibits import Exhibit, Value
from papers.heads import published, tables
from papers.heads.measured import Benchmark, Measured, Scored, Setup
from papers.heads.overlaps import common_to_all
from papers.heads.published import PRINTED

LLAMA_8B, LLAMA_3B, QWEN_3B = "Llama-3.1-8B", "Llama-3.2-3B", "Qwen-2.5-3B"
# Layers and heads a layer by each model's own configuration.
REAL = {
    LLAMA_8B: (32, 32),
    LLAMA_3B: (28, 24),
    "Llama-3.2-1B": (16, 32),
    "Qwen-2.5-7B": (28, 28),
    QWEN_3B: (36, 16),
}
GENERAL = ["HellaSwag", "BoolQ", "ARC-C", "MMLU"]


def test_the_curves_of_figure_2_meet_figure_1():
    for labels in (GENERAL, ["GSM8K"], ["Arith"], ["MBPP", "HEval"]):
        curve = published.CURVES[frozenset(labels)]
        assert len(curve) == 11
        for count, source in ((0, ""), (5, "GSM8K")):
            row = dict(zip(PRINTED["figure_1"], PRINTED["five_heads"][source], strict=True))
            mean = sum(row[label] for label in labels) / len(labels)
            assert int(curve[count]) / 10_000 == pytest.approx(mean, abs=6e-5)
            assert published.score(LLAMA_8B, "GSM8K", count, labels) == pytest.approx(mean)


def test_general_in_figure_4_leaves_out_mmlu():
    intact = dict(zip(PRINTED["figure_1"], PRINTED["five_heads"][""], strict=True))
    mean = sum(intact[label] for label in GENERAL[:3]) / 3
    assert published.knowledge(LLAMA_8B, "", 0, GENERAL[:3]) == pytest.approx(mean, abs=6e-5)
    assert published.knowledge(LLAMA_8B, "", 0, GENERAL) is None
    assert published.knowledge(LLAMA_8B, "W-Bio", 3, ["W-Bio"]) is None  # a subject's are five
    assert published.knowledge(LLAMA_3B, "L0H14", 1, ["MMLU"]) == 0.2371


def test_heads_and_sizes_are_the_models_own_but_for_the_slips():
    for model, searches in PRINTED["heads"].items():
        for task, names in (pair for tasks in searches.values() for pair in tasks.items()):
            heads = [Head.parse(name) for name in names.split()]
            layers, width = REAL[model]
            exist = all(head.layer < layers and head.index < width for head in heads)
            assert len(set(heads)) == 5
            assert exist or task in PRINTED["repeated"].get(model, [])
    for task in PRINTED["repeated"][LLAMA_3B]:
        assert published.heads(LLAMA_3B, "CSS", task) == published.heads(LLAMA_8B, "CSS", task)
    sizes = {model: [layers, layers * heads] for model, (layers, heads) in REAL.items()}
    assert [model for model in REAL if PRINTED["sizes"][model] != sizes[model]] == [QWEN_3B]


@pytest.mark.parametrize("name", ["paper", "real"])
def test_a_setup_names_its_own_models_methods_and_benchmarks(name):
    setup = Setup.read(name, Allowed(code=True))
    places = [place for place, _ in setup.studies.values()]
    assert {place.tasks for place in places} <= {each.label for each in setup.benchmarks}
    assert setup.main in setup.methods and setup.lead in setup.models and setup.general
    assert {place.models for place in places if place.methods != setup.main} == {setup.lead}
    assert all(study.controls == 0 for _, study in setup.studies.values())
    if name == "paper":
        labels = {each.label for each in setup.benchmarks}
        assert {*PRINTED["figure_1"], *PRINTED["figure_3"][:3]} <= labels
        assert set(PRINTED["heads"][LLAMA_8B]) == set(setup.methods) and set(REAL) < {*setup.models}


def scored(lost, error=0.01):
    return Scored(0.8, 0.01, 0.8 - lost, 0.01, lost, error)


class Planted(Measured):
    """A model of planted facts: what each head takes of each benchmark, and rankings."""

    def __init__(self, drops, rankings, benchmarks, top=2):
        setup = Setup("planted", "CSS", "m", None, {}, ("CSS",), {"m": None}, benchmarks, top=top)
        super().__init__(setup, "m", {}, None, None, None)
        self.drops, self.found = drops, rankings

    grid = Heads((16,) * 6, (2,) * 6)

    def run(self, benchmark, label=""):
        return self.found.get(benchmark.label)

    def ranking(self, benchmark, label=""):
        return [Head.parse(name) for name in self.found.get(benchmark.label, [])]

    def score(self, benchmark, heads, limit=None):
        lost = self.drops.get(benchmark.label, {})
        return scored(sum(lost.get(str(head), 0.0) for head in heads), 0.01 if heads else 0.0)


ADD, SORT = Benchmark("Add", "a", "math"), Benchmark("Sort", "s", "code")
GEN = Benchmark("Gen", "g", "general")


def names(heads):
    return [str(head) for head in heads]


def test_a_head_that_every_family_needs_is_taken_out_and_the_next_follows():
    drops = {label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")}
    rankings = {"Add": ["L0H0", "L1H0", "L2H0"], "Sort": ["L3H0", "L0H0", "L4H0"]}
    model = Planted(drops, rankings, (ADD, SORT, GEN))
    assert names(model.universal) == ["L0H0"]
    assert names(model.heads(ADD)) == ["L1H0", "L2H0"]
    assert names(model.heads(SORT)) == ["L3H0", "L4H0"] and not model.notes
    assert names(model.heads(SORT, count=3)) == ["L3H0", "L4H0"]
    assert "found 2 of 3 heads for Sort" in model.notes[0]


def test_twins_make_no_head_universal():
    drops = {label: {"L0H0": 0.5} for label in ("Add", "Sub")}
    rankings = {"Add": ["L0H0"], "Sub": ["L0H0"]}
    benchmarks = ADD, Benchmark("Sub", "b", "math"), GEN
    assert Planted(drops, rankings, benchmarks).universal == []


def test_knowledge_heads_are_those_of_every_subject_beyond_chance():
    subjects = Benchmark("A", "a", "knowledge", "a"), Benchmark("B", "b", "knowledge", "b")
    rankings = {"A": ["L1H0", "L0H5"], "B": ["L0H5", "L2H0"]}
    model = Planted({}, rankings, (*subjects, GEN))
    assert names(tables.knowledge_heads(model)) == ["L0H5"]
    many = [f"L{layer}H{head}" for layer in range(6) for head in range(16)]
    chance = Planted({}, {"A": many[:24], "B": many[18:42]}, (*subjects, GEN), top=24)
    assert tables.knowledge_heads(chance) == []


def test_tables_of_planted_facts():
    drops = {"Add": {"L1H0": 0.4, "L1H1": 0.2}, "Gen": {"L1H0": 0.08}}
    model = Planted(drops, {"Add": ["L1H0", "L1H1"], "Sort": ["L3H0"]}, (ADD, SORT, GEN))
    row, other = tables.table2(model)
    assert row["task drop"].number == pytest.approx(0.6) and row["general drop"].number == 0.08
    assert row["% of intact"].number == pytest.approx(75) and other["task drop"].number == 0
    steps = [row["score"].number for row in tables.table6(model) if row["task"] == "Add"]
    assert steps == pytest.approx([0.8, 0.4, 0.2])
    marks = list(tables.marked(model.grid, model.heads(ADD), {Head.parse("L1H1")}))
    assert marks == ["L1H0†", "L1H1†‡"]  # of one key-value head


def test_the_error_of_a_share_is_the_gradient_through_the_covariance():
    intact, cut, errors = 0.8, 0.3, (0.02, 0.03)
    for correlation in (-0.5, 0.0, 0.9):
        covariance = correlation * errors[0] * errors[1]
        matrix = np.array([[errors[0] ** 2, covariance], [covariance, errors[1] ** 2]])
        change = np.sqrt(np.array([1, -1]) @ matrix @ np.array([1, -1]))
        gradient = np.array([cut / intact**2, -1 / intact])
        found = Scored(intact, errors[0], cut, errors[1], intact - cut, change).relative()
        assert found.drop == pytest.approx((intact - cut) / intact)
        assert found.drop_stderr == pytest.approx(np.sqrt(gradient @ matrix @ gradient))


def test_what_all_of_several_random_sets_share_is_counted_exactly():
    assert common_to_all(2, 30, [5, 7]) == pytest.approx(stats.hypergeom.sf(1, 30, 5, 7))
    random = np.random.default_rng(0)
    drawn = [
        len(set.intersection(*(set(random.permutation(12)[:size]) for size in (5, 6, 7)))) >= 2
        for _ in range(20_000)
    ]
    assert common_to_all(2, 12, [5, 6, 7]) == pytest.approx(np.mean(drawn), abs=0.012)


def test_an_exhibit_is_written_with_errors_and_the_papers_figures(tmp_path):
    rows = [
        {"task": "a|b_c", "drop": Value(0.5, 0.02, 0.4), "heads": 3},
        {"task": "d", "drop": Value(None), "heads": 0},
    ]
    Exhibit.of("t", "A table", rows, ["a note"]).write(tmp_path)
    text = (tmp_path / "t.md").read_text()
    assert "0.500 ± 0.020 (paper 0.400, +0.100)" in text and "a\\|b_c" in text and "– " in text
    assert "task,drop,drop stderr,drop paper,heads" in (tmp_path / "t.csv").read_text()
