"""What a plan reckons is what is measured."""

import json
import sqlite3
from dataclasses import dataclass

import numpy as np
import pytest
from labs import written
from typer.testing import CliRunner

from caploc import designs
from caploc.cli import app
from caploc.progress import Silent
from caploc.reproduce import EXHIBITS, Bill, PresetDryRun, asked_by, bits, plan_exhibits
from caploc.reproduce.laboratory import Laboratory, open_laboratory
from caploc.reproduce.preset import FRESH, Preset
from caploc.reproduce.selection import search_own, universal_heads
from caploc.search import METHODS, Problem, Settings
from caploc.store import pack

SIX = {
    "Llama-3.1-8B": ("llama", 32, 32, 8, 4096, 128, 14336, 128256, False, 8.03),
    "Llama-3.2-3B": ("llama", 28, 24, 8, 3072, 128, 8192, 128256, True, 3.21),
    "Llama-3.2-1B": ("llama", 16, 32, 8, 2048, 64, 8192, 128256, True, 1.24),
    "Qwen-2.5-7B": ("qwen2", 28, 28, 4, 3584, 128, 18944, 152064, False, 7.62),
    "Qwen-2.5-3B": ("qwen2", 36, 16, 2, 2048, 128, 11008, 151936, True, 3.09),
    "Qwen-2.5-14B": ("qwen2", 48, 40, 8, 5120, 128, 13824, 152064, False, 14.77),
}


def write_config(folder, label):
    """A model's folder with its shape, and nothing else."""
    kind, layers, heads, key_values, hidden, width, inner, words, tied, _ = SIX[label]
    config = {
        "model_type": kind,
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "Qwen2ForCausalLM"],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": words,
        "tie_word_embeddings": tied,
    }
    config |= {"head_dim": width} if kind == "llama" else {}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))


@dataclass
class Told(PresetDryRun):
    """A reckoning that is told what a laboratory knows, instead of pretending it."""

    laboratory: Laboratory | None = None

    def score(self, model, benchmark, heads, limit=None):
        super().score(model, benchmark, heads, limit)
        return self.laboratory.score(model, benchmark, heads, limit)

    def failures(self, model, benchmark, heads):
        super().failures(model, benchmark, heads)
        return self.laboratory.failures(model, benchmark, heads)

    def search(self, model, benchmark, label, excluded=()):
        super().search(model, benchmark, label, excluded)
        return self.laboratory.search(model, benchmark, label, excluded)


def sets_that_agree(laboratory: Laboratory) -> int:
    """Settings of the small preset's search that found what another one found.

    It is run with the universal heads in, and again with them out, if there are any.
    """
    model, same = laboratory.preset.models[0], 0
    for benchmark in laboratory.preset.localized:
        ways = [laboratory.search(model, benchmark, "CSS")]
        if universal_heads(laboratory, model):
            ways.append(search_own(laboratory, model, benchmark, "CSS"))
        tried = [each for way in ways for each in way.told["settings"]]
        same += len(tried) - len({frozenset(each["heads"]) for each in tried if each["heads"]})
    return same


@pytest.mark.slow
def test_a_plan_that_is_told_the_findings_counts_every_row(ran, few_fresh, no_model):
    """A plan takes each setting of a search to find heads of its own; no more is pretended."""
    with open_laboratory(ran.preset, ran.folder, Silent(), "") as laboratory:
        told = Told(ran.preset, laboratory=laboratory)
        for fill in EXHIBITS.values():
            fill(told)
        same = sets_that_agree(laboratory)
    spec = ran.preset.search("CSS")
    each = spec.examples + 4  # of the search, and fresh ones
    assert told.bill(ran.preset.models[0]).rows - same * each == ran.rows
    with sqlite3.connect(ran.folder / "rows.sqlite") as rows:
        assert rows.execute("SELECT count(*) FROM rows").fetchone() == (ran.rows,)


@pytest.mark.slow
def test_a_plan_pretends_about_as_much_as_is_measured(ran, few_fresh):
    (plan,) = plan_exhibits(ran.preset, ["all"])
    assert plan.heads == 96 and plan.parameters == 1_509_248
    assert plan.rows == pytest.approx(ran.rows, rel=0.25)


def test_rows_of_a_search_are_those_of_its_formula():
    """One benchmark, no candidate: the masks of each rate, a set a setting, and two scores."""
    content = written(top=5, search=[{"label": "CSS", "method": "css-search"}])
    del content["benchmark"][1]
    for benchmark, size in zip(content["benchmark"], (1319, 3270), strict=True):
        benchmark |= {"examples": size}
    preset = Preset.model_validate(content)
    rates = (int(rate * 96) / 96 + 1e-9 for rate in (0.0105, 0.02, 0.03, 0.05, 0.07, 0.1))
    drawn = [designs.stratified(96, 400, rate=rate, seed=0) for rate in dict.fromkeys(rates)]
    masks = len({mask.tobytes() for each in drawn for mask in each})
    settings = 4 * len({each.tobytes() for each in drawn})
    reckoning = PresetDryRun(preset)
    EXHIBITS["table2"](reckoning)
    scores = 2 * 1319 + 2 * 3270  # intact rows of the search are among these
    a_set = 100 + FRESH
    fewer = masks * 100 + settings * a_set + scores - reckoning.bill(preset.models[0]).rows
    assert fewer in (0, a_set, 2 * a_set)  # chance outcomes let few settings agree


@pytest.mark.parametrize("method", ["one-shot", "greedy", "css", "csb"])
def test_masks_are_those_that_the_method_draws(method):
    settings = Settings(masks=10, rate=0.1, top=3)
    problem = Problem(24, [9, 4, 7, 5, 1], settings, fresh=[0, 2])
    asked = dict(asked_by(method, problem))
    assert set(asked.values()) == {bits((9, 4, 7, 5, 1))}
    assert asked.pop(bytes(3))  # the intact model
    drawn = {"css": designs.stratified, "csb": designs.bernoulli}
    if method in drawn:
        masks = drawn[method](24, 10, rate=0.1, seed=0)
        assert set(asked) == {pack(mask) for mask in masks if mask.any()}
    else:
        assert len(asked) == METHODS[method].masks(problem)


def test_a_search_that_scatters_its_rows_is_counted_row_by_row():
    problem = Problem(16, list(range(40)), Settings(top=2, budget=200), fresh=list(range(40, 60)))
    rows = sum(
        examples.bit_count() for mask, examples in asked_by("adaptive", problem) if any(mask)
    )
    assert 32 <= rows <= 200


def test_rows_are_counted_once_whoever_asks():
    preset = Preset.model_validate(written())
    model, add = preset.models[0], preset.benchmarks[0]
    reckoning, heads = PresetDryRun(preset), preset.models[0].grid.heads[:1]
    for limit in (100, 100, 300, 50):
        reckoning.score(model, add, heads, limit)
    assert reckoning.bill(model).rows == 2 * 300


def test_a_limit_is_one_of_each_task_of_a_group():
    content = written(limit=10)
    content["benchmark"][0] |= {"examples": 35, "parts": 3}
    preset = Preset.model_validate(content)
    reckoning, (model,) = PresetDryRun(preset), preset.models
    assert reckoning.score(model, preset.benchmarks[0], []).examples == 30
    assert reckoning.score(model, preset.benchmarks[0], [], limit=2).examples == 6
    assert reckoning.bill(model).rows == 30


def test_heads_are_found_on_a_task_of_its_own_size():
    content = written(search=[{"label": "CSS", "method": "one-shot"}])
    content["benchmark"][0] |= {"identify": "demo/prose", "identify_examples": 6, "examples": 500}
    preset = Preset.model_validate(content)
    reckoning = PresetDryRun(preset)
    reckoning.search(preset.models[0], preset.benchmarks[0], "CSS")
    assert reckoning.bill(preset.models[0]).rows == 97 * 6


def test_hours_are_those_of_the_assumed_rates():
    read, said = (Bill("m", 1, 10**9, **{kind: 989_000}) for kind in ("read", "said"))
    # 2 x 1e9 x 989e3 operations at 0.4 x 989e12 a second
    assert read.hours * 3600 == pytest.approx(5.0)
    assert said.hours == pytest.approx(4 * read.hours)


@pytest.mark.slow
def test_the_papers_plan_needs_configurations_only(tmp_path, no_model):
    for label in SIX:
        write_config(tmp_path / label, label)
    models = [part for label in SIX for part in ("--model", f"{label}={tmp_path / label}")]
    arguments = ["reproduce", "table2", "--preset", "paper", "--plan", "--json", *models]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [one["model"] for one in told] == list(SIX)
    for one in told:
        _, layers, heads, *_, billions = SIX[one["model"]]
        assert one["heads"] == layers * heads
        assert one["parameters"] / 1e9 == pytest.approx(billions, rel=0.02)
        assert one["rows"] > 4 * 2400 * 50 and one["h200_hours"] > 0
    hours = {one["model"]: one["h200_hours"] for one in told}
    assert max(hours, key=hours.get) == "Qwen-2.5-14B"
    assert min(hours, key=hours.get) == "Llama-3.2-1B"
    shown = CliRunner().invoke(app, ["reproduce", "table1", "--preset", "paper", "--plan", *models])
    assert "14.77 B" in shown.stdout and "assumed and not measured" in shown.stdout
    assert not np.any([(tmp_path / "runs").exists()])
