"""The recipe does what it says: steps of known size, the best rate kept, its edge seen."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_tuning_batches import random_spans

from caploc.engine.encoding import Span
from caploc.errors import BadOption, OutOfMemory, RunFailed
from caploc.neurons import training
from caploc.neurons.engine import Batch
from caploc.neurons.model import find_sites
from caploc.neurons.options import TuningRecipe
from caploc.neurons.training import (
    find_best_rate,
    make_lessons,
    train_once,
    validation_loss,
)
from caploc.neurons.weights import tune_everything, tune_neurons
from caploc.progress import Silent
from worlds.tiny import tiny

RECIPE = TuningRecipe(steps=12, batch_size=4, rates=(1e-3, 1e-2, 1e-1), seed=1)


def prepared(recipe, count=6):
    model = tiny("llama")
    chosen = np.zeros(find_sites(model)[1].size, dtype=bool)
    chosen[:count] = True
    # random texts whose answer is always the same token
    spans = [Span(span.inputs, (7,)) for span in random_spans(25)]
    return model, chosen, make_lessons(spans, recipe)


def test_steps_are_adams_at_a_rate_that_is_warmed_up_with_clipped_gradients(unchanged, monkeypatch):
    monkeypatch.setattr(training, "CLIP", 0.05)
    model, chosen, lessons = prepared(RECIPE)
    with tune_neurons(unchanged(model), chosen) as tunable:
        train_once(model, tunable, lessons, 0.02, RECIPE, Silent())
        found = [each.detach().clone() for each in tunable.parameters]
    with tune_neurons(model, chosen) as tunable:
        optimizer = torch.optim.Adam(tunable.parameters, lr=0)
        for step, spans in enumerate(lessons.train):
            optimizer.zero_grad()
            batch = Batch.of(spans, model.device)
            optimizer.param_groups[0]["lr"] = 0.02 * min(1, (step + 1) / 5)
            logits = model(input_ids=batch.tokens, attention_mask=batch.real.long()).logits
            labels = torch.full_like(batch.tokens, -100)
            labels[batch.rows, batch.places] = batch.gold
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            norm = math.sqrt(sum(float(each.grad.square().sum()) for each in tunable.parameters))
            for change in tunable.parameters:
                change.grad *= min(1, 0.05 / norm)
            optimizer.step()
            tunable.settle()
        for own, plain in zip(found, tunable.parameters, strict=True):
            assert torch.allclose(own, plain, atol=1e-4)


def outcomes_of_training(recipe, most=99, whole=False, error=torch.OutOfMemoryError):
    """Weights after training, and the rows of each pass; more than `most` rows do not fit."""
    model, chosen, lessons = prepared(recipe)
    sizes, inner = [], training.gold_logprobs

    def limited(model, batch):
        sizes.append(batch.size)
        found = inner(model, batch)
        if batch.size > most:
            found.sum().backward()  # what a failed pass leaves behind must not count
            raise error("CUDA out of memory. Tried to allocate")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "gold_logprobs", limited)
        with tune_everything(model) if whole else tune_neurons(model, chosen) as tunable:
            loss = train_once(model, tunable, lessons, 0.01, recipe, Silent())
            return [each.detach().clone() for each in tunable.parameters], sizes, loss


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "full"])
@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_that_does_not_fit_is_learnt_from_in_parts_with_the_same_gradients(whole, most):
    plain, sizes, loss = outcomes_of_training(RECIPE, whole=whole)
    parts, smaller, again = outcomes_of_training(RECIPE, most, whole)
    assert set(sizes) == {4} and smaller[0] == 4 and max(smaller[3:]) <= most
    assert again == pytest.approx(loss, rel=1e-4)
    for one, other in zip(plain, parts, strict=True):
        torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)


def test_one_example_that_does_not_fit_ends_in_a_sentence():
    with pytest.raises(OutOfMemory, match="Not even one row fits"):
        outcomes_of_training(RECIPE, 0)
    with pytest.raises(ValueError, match="out of memory"):
        outcomes_of_training(RECIPE, 2, error=ValueError)  # another error is no reason to go on


def test_the_search_keeps_the_weights_of_the_best_rate_each_tried_from_the_same_start(unchanged):
    model, chosen, lessons = prepared(RECIPE)
    with tune_neurons(unchanged(model), chosen) as tunable:
        untuned = validation_loss(model, lessons)
        fit = find_best_rate(model, tunable, lessons, RECIPE)
        assert validation_loss(model, lessons) == fit.losses[fit.rate] == min(fit.losses.values())
    assert fit.untuned_loss == untuned and fit.parameters == 6 * 3 * 32
    for rate, loss in fit.losses.items():
        with tune_neurons(model, chosen) as tunable:
            assert train_once(model, tunable, lessons, rate, RECIPE, Silent()) == loss


@pytest.mark.parametrize(
    ("rates", "best", "at_edge"),
    [
        ((1e-7, 3e-7), 3e-7, True),
        ((1e-6, 1e-2, 1e30), 1e-2, False),
        ((1e-2, 1e30), 1e-2, True),
        ((1e-7,), 1e-7, False),
    ],
)
def test_a_best_rate_at_the_edge_is_marked_and_one_that_diverges_is_none(rates, best, at_edge):
    recipe = replace(RECIPE, rates=rates)
    model, chosen, lessons = prepared(recipe)
    with tune_neurons(model, chosen) as tunable:
        fit = find_best_rate(model, tunable, lessons, recipe)
    assert (fit.rate, fit.at_edge) == (best, at_edge)
    assert {rate for rate, loss in fit.losses.items() if loss is None} == {1e30} & {*rates}


def test_training_that_diverges_at_every_rate_is_one_sentence():
    recipe = replace(RECIPE, rates=(1e30, 1e31))
    model, chosen, lessons = prepared(recipe)
    with (
        tune_neurons(model, chosen) as tunable,
        pytest.raises(RunFailed, match="diverged at every learning rate from 1e\\+30 to 1e\\+31"),
    ):
        find_best_rate(model, tunable, lessons, recipe)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "--steps must be greater than or equal to 1; got 0"),
        ({"rates": ()}, "--rates"),
        ({"rates": (0.1, 0.01)}, "--rates must be numbers that rise"),
        ({"rates": (0.0, 0.01)}, "--rates must be greater than 0"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(wrong, message):
    with pytest.raises(BadOption, match=message):
        TuningRecipe(**wrong)


def test_a_list_is_not_called_too_short_for_items_that_were_refused():
    with pytest.raises(BadOption) as told:
        TuningRecipe(rates=(-1.0,))
    assert "at least" not in str(told.value)
