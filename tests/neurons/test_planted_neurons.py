"""Planted models do what their truth says, by plain transformers."""

import json

import numpy as np
import pytest
import torch
from planted_models import SHARING, TWO
from transformers import AutoModelForCausalLM, AutoTokenizer

from worlds.planted import SHARPNESS
from worlds.planted_neurons import (
    DOUBTS,
    ITEMS,
    PlantedNeurons,
)

OPPOSED = PlantedNeurons(layers=3, needed=8, opposing=4, seed=7)
PLANS = [PlantedNeurons(needed=1), TWO, SHARING, OPPOSED]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=["one", "two", "sharing", "opposed"])


def rows(model, task, split="test"):
    lines = (model.folder / f"{task}_{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def right(model, task, cut=()):
    """Which evaluation examples a plain forward pass answers rightly, by what it says first."""
    examples, tokenizer = rows(model, task), model.engine.loaded.tokenizer
    prompts = tokenizer([example["prompt"] for example in examples], return_tensors="pt")
    gold = torch.tensor(tokenizer.convert_tokens_to_ids([each["answer"] for each in examples]))
    weights = model.engine.loaded.model.model.layers
    places = [tuple(map(int, name[1:].split("N"))) for name in cut]
    before = [weights[layer].mlp.down_proj.weight[:, index].clone() for layer, index in places]
    with torch.inference_mode():
        for layer, index in places:
            weights[layer].mlp.down_proj.weight[:, index] = 0
        said = model.engine.loaded.model(prompts["input_ids"]).logits[:, -1].argmax(-1)
        for (layer, index), values in zip(places, before, strict=True):
            weights[layer].mlp.down_proj.weight[:, index] = values
    return (said == gold).numpy()


def test_plain_transformers_answer_every_example_in_words(planted):
    model = planted(TWO)
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    plain = AutoModelForCausalLM.from_pretrained(model.folder)
    for task in ("warm", "large"):
        examples = rows(model, task)
        prompts = tokenizer([example["prompt"] for example in examples], return_tensors="pt")
        spoken = plain.generate(**prompts, max_new_tokens=1, do_sample=False)[:, -1:]
        assert tokenizer.batch_decode(spoken) == [example["answer"] for example in examples]
        assert {example["answer"] for example in examples} == {"yes", "no"}


@each_plan
def test_the_truth_says_every_outcome_under_random_cuts(planted, plan):
    model, random = planted(plan), np.random.default_rng(0)
    truth = model.truth
    every = {*truth.shared}
    for task in truth.needed:
        every |= {*truth.needed[task], *truth.opposing[task]}
    seen = set()
    for share in (0, 0.1, 0.3, 0.5, 0.8, 1):
        cut = [name for name in sorted(every) if random.random() < share]
        for task in truth.needed:
            found = right(model, task, cut)
            assert np.array_equal(found, truth.right(task, cut))
            assert found.mean() == truth.accuracy(task, cut)
            seen.add(found.mean())
    assert {0.0, 1.0} <= seen and len(seen) > 2 * (plan.needed > 1)


@each_plan
def test_the_log_probability_is_that_of_a_softmax_over_answers_and_noise(planted, plan):
    """`S x` for the answer, `-S x` for its opposite, `S doubt`, and words of nearly 0."""
    model, spans = planted(plan), planted(plan).spans()
    tokenizer = model.engine.loaded.tokenizer
    items = tokenizer.convert_ids_to_tokens([span.inputs[-1] for span in spans])
    numbers = np.array([int(item.removeprefix("item")) for item in items])
    doubts = DOUBTS[0] + (DOUBTS[1] - DOUBTS[0]) * numbers / (ITEMS - 1)
    strongest = max(model.truth.needed["warm"], key=model.truth.needed["warm"].get)
    for cut in ((), (strongest,), tuple(model.truth.needed["warm"])):
        left = model.truth.left("warm", cut)
        answers = np.stack([np.full(len(doubts), left), np.full(len(doubts), -left), doubts])
        others = len(tokenizer) - 3
        total = np.log(np.exp(SHARPNESS * answers).sum(0) + others)
        expected = SHARPNESS * left - total
        np.testing.assert_allclose(model.logprobs(spans, cut), expected, atol=0.08)
