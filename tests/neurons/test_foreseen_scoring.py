"""What is foreseen of memory and passes is what there is, on models without values."""

import numpy as np
import pytest
import torch
from allocations import CPU, AllocationMeter, count, shape, without_values
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from caploc.engine.encoding import Span
from caploc.engine.neurons import Batch, Batcher, checkpointed, tuning_bytes
from caploc.neurons.attribution import METHODS, Attribution
from caploc.neurons.locating import foresee_scoring
from caploc.neurons.study import NeuronStudy, load_source
from caploc.neurons.training import TuningArm, TuningRecipe, find_best_rate, make_lessons
from caploc.stats.threshold import Rule
from caploc.workbench import ModelOptions

FAMILIES = {
    "llama": {"hidden_size": 512, "intermediate_size": 1376, "num_key_value_heads": 8},
    "qwen2": {"hidden_size": 768, "intermediate_size": 4480, "num_key_value_heads": 1},
    "gemma3_text": {"hidden_size": 640, "num_key_value_heads": 1, "head_dim": 256},
    "gpt2": {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    "mistral": {"hidden_size": 1024, "intermediate_size": 3584, "num_key_value_heads": 4},
}
LLAMA_2_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}


def config(family, layers=4, vocabulary=32000):
    sizes = {"num_hidden_layers": layers, "vocab_size": vocabulary} | FAMILIES[family]
    return shape(family, **{"num_attention_heads": 8} | sizes)


def empty(of, dtype):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(of, dtype=dtype)


def span(tokens, predicted=4):
    return Span(tuple(range(tokens)), (7,) * predicted)


def counted(of, dtype, asked, tokens, rows, around=None):
    """Bytes alive at most while so many rows are scored."""

    def work(neurons):
        batch = Batch.of([span(tokens)] * rows, CPU)
        if around is None:
            asked.scores(neurons, batch)
        else:
            with around(neurons.model, neurons.projections):
                asked.scores(neurons, batch)

    return count(of, dtype, work)


def foreseen(of, dtype, asked, tokens, rows, **how):
    needs = asked.needs(empty(of, dtype), **{"waits": False} | how)
    return needs.fixed + asked.copies * rows * needs.row(tokens, 4)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, id="float32"),
        pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("method", "layers", "tokens", "rows"),
    [
        ("gradient", 4, 256, 1),
        ("gradient", 8, 256, 1),
        ("gradient", 4, 512, 2),
        ("joint", 4, 128, 2),
        ("integrated", 4, 128, 2),
    ],
)
def test_the_peak_of_scoring_is_foreseen(family, dtype, method, layers, tokens, rows):
    of, asked = config(family, layers), Attribution(method, steps=3)
    peak = counted(of, dtype, asked, tokens, rows)
    assert foreseen(of, dtype, asked, tokens, rows) == pytest.approx(peak, rel=0.2)


@pytest.mark.parametrize("method", ["activation", "logit"])
def test_the_peak_without_gradients_is_foreseen_from_above(method):
    of, asked = config("llama", 8), Attribution(method)
    peak = counted(of, torch.bfloat16, asked, 256, 2)
    assert peak <= foreseen(of, torch.bfloat16, asked, 256, 2) <= 1.6 * peak


@pytest.mark.parametrize("layers", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_layers_run_again_keep_what_is_foreseen_of_them(layers):
    of, asked = config("mistral", layers), Attribution()
    peak = counted(of, torch.bfloat16, asked, 256, 2, checkpointed)
    plan = foreseen(of, torch.bfloat16, asked, 256, 2, waits=True)
    assert peak <= 1.15 * plan and plan <= 2 * peak
    assert plan < foreseen(of, torch.bfloat16, asked, 256, 2) / (layers / 4)


@pytest.mark.parametrize("layers", [4, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_forward_passes_are_counted_by_depth(method, layers):
    """In multiplications of the layers: the unembedding, once a pass, is made small."""
    asked, of = Attribution(method, steps=4), config("llama", layers, vocabulary=64)
    with FakeTensorMode():
        neurons, batch = without_values(of, torch.float32), Batch.of([span(64, 1)], CPU)
        operations = []
        for work in (lambda: neurons.model(batch.tokens), lambda: asked.scores(neurons, batch)):
            with FlopCounterMode(display=False) as counter:
                work()
            operations.append(counter.get_total_flops())
    assert operations[1] / operations[0] == pytest.approx(asked.passes(layers), rel=0.12)


def test_19_points_of_512_tokens_on_llama_2_7b_fit_in_24_gigabytes_in_bfloat16():
    """By the plan, and by what is alive when the points are read one after another."""
    of, asked = shape("llama", **LLAMA_2_7B), Attribution("joint")
    model = empty(of, torch.bfloat16)
    weights, room = 2 * model.num_parameters(), 24e9
    batcher = Batcher(model, None, int(room - weights), asked.needs(model, waits=False))
    assert 6.7e9 < model.num_parameters() < 6.8e9 and asked.copies == 19
    at_once = batcher.at_once(span(512, 64), 1, 19)
    assert 1 <= at_once < 19 and batcher.rows(span(512, 64), 19) == 1
    assert weights + batcher.peak(span(512, 64), 19, 1) <= room

    def work(neurons):
        part = Batch.of([span(512, 64)], CPU, at_once)
        Attribution("joint", steps=at_once).scores(neurons, part)

    peak = count(of, torch.bfloat16, work)
    assert weights + peak <= room
    assert batcher.peak(span(512, 64), 19, 1) == pytest.approx(peak, rel=0.15)


def test_a_plan_reads_no_weights_and_tells_every_method(monkeypatch):
    monkeypatch.setattr("caploc.models.loading.Weights.load", lambda self: pytest.fail("read"))
    model = ModelOptions("demo", device="cpu")
    study = NeuronStudy(model, ("demo/addition",), Attribution(steps=7), Rule(), examples=20)
    result, (table,) = foresee_scoring(study)
    plans = {each["method"]: each for each in result["plans"]}
    assert set(plans) == set(METHODS) and len(table.rows) == len(METHODS)
    source = load_source(model, "demo/addition", study.options, 20, 0)
    assert plans["gradient"]["examples"] == len(source.find_on) == 20
    assert [plans[name]["passes"] for name in METHODS] == [2, 1 + 7 * 6, 14, 1, 1]
    assert all(each["least"] <= each["peak"] for each in plans.values())
    assert plans["gradient"]["weights"] == 4 * sum(
        parameter.numel() for parameter in model.weights().empty.parameters()
    )


@pytest.mark.parametrize("name", ["full", "complement", "located"])
def test_the_memory_of_tuning_is_foreseen(name):
    """Weights are many beside tokens, so that what each trained value takes is what is seen."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        shape("llama", vocab_size=64, num_hidden_layers=2, **sizes), dtype=torch.bfloat16
    )
    model.eval().requires_grad_(False)
    chosen = np.zeros(2 * 1024, dtype=bool)
    chosen[: 100 if name == "located" else 2000] = True
    recipe = TuningRecipe(steps=2, batch_size=2, rates=(1e-4, 1e-3), extensions=0)
    given = make_lessons([span(6, 2)] * 6, recipe)
    with AllocationMeter(model.parameters()) as meter:
        arm = TuningArm(name, None if name == "full" else chosen)
        with arm.open(model, recipe) as trainable:
            fit = find_best_rate(model, trainable, given, recipe)
    assert meter.peak == pytest.approx(tuning_bytes(fit.parameters, model), rel=0.2)
