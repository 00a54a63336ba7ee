"""Heads knocked out by an amount: every way to run them is the model with scaled weights."""

import numpy as np
import pytest
import torch

import caploc
from caploc.engine import Ask, BatchEngine, Source
from caploc.evaluation import Evaluation, evaluate
from caploc.heads import Head
from caploc.models.loading import load_model
from caploc.tasks.task import Generate, LogLikelihood, options_json
from caploc.workbench import ModelOptions
from caploc.workers.distributed import AskBatch

OPTIONS = options_json({"until": [], "max_gen_toks": 5, "do_sample": False})
PROMPTS = ("47+38=", "sort 72941=")
NAMES = ("L0H1:0.5", "L1H0", "L1H2:0.25")


@pytest.fixture(scope="module")
def loaded():
    return load_model("demo")


@pytest.fixture(scope="module")
def engines(loaded):
    packed, plain = BatchEngine(loaded), BatchEngine(loaded, backend="plain")
    assert packed.packed is not None
    return [packed, plain]


def asks(mask, source=None):
    """One of every kind for each prompt, and the same with nothing knocked out."""
    requests = [Generate(text, OPTIONS) for text in PROMPTS]
    requests += [LogLikelihood(text, "85") for text in PROMPTS]
    masks = (mask, np.zeros(mask.size, dtype=bool), mask > 0)
    return [
        Ask((number, part), request, each, source if each.any() else None)
        for number, request in enumerate(requests)
        for part, each in enumerate(masks)
    ]


def responses(engine, asked):
    return {a.key: a.response for batch in engine.answer(asked) for a in batch}


def test_both_engines_say_what_the_model_with_scaled_weights_says(loaded, engines):
    asked = asks(loaded.grid.mask(NAMES))
    scaled = load_model("demo")
    for head in loaded.grid.named(loaded.grid.mask(NAMES)):
        weight = scaled.projections[head.layer].weight.data
        width = weight.shape[1] // loaded.grid.per_layer[head.layer]
        weight[:, head.index * width :][:, :width] *= 1 - head.amount
    truth = BatchEngine(scaled)
    wanted = responses(truth, [a for a in asks(loaded.grid.mask([])) if a.key[1] == 0])
    for engine in engines:
        found = responses(engine, asked)
        for key, response in wanted.items():
            if hasattr(response, "text"):
                assert found[key].text == response.text
            else:
                assert found[key].logprob == pytest.approx(response.logprob, abs=1e-4)
                others = {found[key[0], part].logprob for part in range(3)}
                assert len(others) == 3  # neither intact nor knocked out wholly


def test_where_another_output_takes_its_place_both_engines_mix_alike(loaded, engines):
    source = Source(tuple(Generate(text, OPTIONS) for text in PROMPTS), mean=True)
    packed, plain = (responses(e, asks(loaded.grid.mask(NAMES), source)) for e in engines)
    for key, response in plain.items():
        if hasattr(response, "logprob"):
            assert packed[key].logprob == pytest.approx(response.logprob, abs=1e-4)


def test_amounts_travel_to_other_processes():
    mask = np.array([0.0, 0.3, 1.0])
    asked = [Ask((0, 0), Generate("a", OPTIONS), each) for each in (mask, mask > 0)]
    again = AskBatch.of(asked).asks()
    assert [each.knocked_out.tolist() for each in again] == [mask.tolist(), [False, True, True]]


def test_a_block_halves_a_head_by_name(loaded):
    tokens = torch.tensor([loaded.tokenizer(PROMPTS[0])["input_ids"]])
    with torch.no_grad():
        said = {}
        for names in ([], ["L1H0:0.5"], ["L1H0"], ["L1H0:1"]):
            with caploc.knockout(loaded, names):
                said[tuple(names)] = loaded.model(tokens).logits
    assert torch.equal(said["L1H0",], said["L1H0:1",])
    assert not torch.allclose(said["L1H0:0.5",], said["L1H0",])
    assert not torch.allclose(said["L1H0:0.5",], said[()])


def test_evaluated_heads_keep_their_amounts_and_a_second_run_asks_nothing(tmp_path, monkeypatch):
    heads = tuple(Head.parse_all("L0H1:0.5,L1H0"))
    part = Evaluation(ModelOptions("demo"), heads, ("demo/addition",), limit=2)
    first = evaluate(part, tmp_path / "part")
    assert first.heads == ["L0H1:0.5", "L1H0"] and first.cost.rows == 4

    def refuse(self, asks):
        assert not list(asks)
        return iter(())

    monkeypatch.setattr(BatchEngine, "answer", refuse)
    again = evaluate(part, tmp_path / "part")
    assert again.tasks == first.tasks
