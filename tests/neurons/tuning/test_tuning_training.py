"""The recipe does what it says: steps of known size, the best rate kept, its edge seen."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_tuning_batches import random_spans
from tiny import tiny

from caploc.engine.encoding import Span
from caploc.errors import BadOption, OutOfMemory, RunFailed
from caploc.neurons import training
from caploc.neurons.engine import Batch
from caploc.neurons.model import find_sites
from caploc.neurons.training import (
    TuningRecipe,
    find_best_rate,
    make_lessons,
    train_once,
    validation_loss,
)
from caploc.neurons.weights import TrainableRows, TrainableWhole
from caploc.progress import Silent

RECIPE = TuningRecipe(steps=12, batch_size=4, warmup=3, rates=(1e-3, 1e-2, 1e-1), seed=1)


def prepared(recipe, family="llama", count=6):
    model = tiny(family)
    chosen = np.zeros(find_sites(model)[1].size, dtype=bool)
    chosen[:count] = True
    return model, chosen, make_lessons(learnable(25), recipe)


def learnable(count):
    """Random texts whose answer is always the same token."""
    return [Span(span.inputs, (7,)) for span in random_spans(count)]


class Counting:
    """Progress that adds up."""

    def __init__(self):
        self.planned, self.done, self.tokens, self.said = 0, 0, 0.0, []

    def start(self, what, rows):
        self.planned += rows
        self.said.append(what)

    def advance(self, rows, tokens):
        self.done += rows
        self.tokens += tokens


@pytest.mark.parametrize(("warmup", "share"), [(0, 1.0), (1, 1.0), (4, 0.25)])
def test_the_first_step_is_the_warmed_up_rate(warmup, share, unchanged):
    recipe = replace(RECIPE, steps=1, warmup=warmup)
    model, chosen, given = prepared(recipe)
    with TrainableRows(unchanged(model), chosen) as rows:
        train_once(model, rows, given, 0.01, recipe, Silent())
        moved = torch.cat([change.detach().abs().flatten() for change in rows.parameters()])
    # AdamW's first step has the size of the rate wherever the gradient is not tiny
    assert float(moved.median()) == pytest.approx(0.01 * share, rel=1e-3)
    assert float(moved.max()) <= 0.01 * share * (1 + 1e-5)


def test_gradients_are_clipped(unchanged):
    recipe = replace(RECIPE, steps=1, warmup=1, clip=1e-9)
    model, chosen, given = prepared(recipe)
    with TrainableRows(unchanged(model), chosen) as rows:
        train_once(model, rows, given, 0.01, recipe, Silent())
        moved = max(float(change.detach().abs().max()) for change in rows.parameters())
    # gradients of at most 1e-9 beside AdamW's 1e-8 in the denominator
    assert 0 < moved < 0.01 / 10


def test_a_trial_is_plain_training_written_again(unchanged):
    recipe = replace(RECIPE, clip=0.05)
    model, chosen, given = prepared(recipe)
    with TrainableRows(unchanged(model), chosen) as rows:
        trial = train_once(model, rows, given, 0.02, recipe, Silent())
        found = rows.delta()
    with TrainableRows(model, chosen) as rows:
        optimizer = torch.optim.Adam(rows.parameters(), lr=0)
        losses = []
        for step, spans in enumerate(given.train):
            batch = Batch.of(spans, model.device)
            optimizer.param_groups[0]["lr"] = 0.02 * min(1, (step + 1) / 3)
            logits = model(input_ids=batch.tokens, attention_mask=batch.real.long()).logits
            labels = torch.full_like(batch.tokens, -100)
            labels[batch.rows, batch.places] = batch.gold
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            gradients = torch.autograd.grad(loss, rows.parameters())
            norm = math.sqrt(sum(float(each.square().sum()) for each in gradients))
            for change, gradient in zip(rows.parameters(), gradients, strict=True):
                change.grad = gradient * min(1, 0.05 / norm)
            optimizer.step()
            losses.append(float(loss.detach()))
        for key, value in rows.delta().items():
            assert torch.allclose(value, found[key], atol=1e-4), key
        assert trial.train_loss == pytest.approx(sum(losses[-10:]) / 10, rel=1e-4)
        assert trial.validation_loss == pytest.approx(validation_loss(model, given), rel=1e-3)


def outcomes_of_training(recipe, most=99, whole=False, error=torch.OutOfMemoryError):
    """Weights after training, and the rows of each pass; more than `most` rows do not fit."""
    model, chosen, given = prepared(recipe)
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
        trainable = TrainableWhole(model) if whole else TrainableRows(model, chosen)
        with trainable as rows:
            trial = train_once(model, rows, given, 0.01, recipe, Silent())
            return [each.detach().clone() for each in rows.parameters()], sizes, trial


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "full"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_batch_that_does_not_fit_is_learnt_from_in_parts_with_the_same_gradients(whole, most):
    plain, sizes, trial = outcomes_of_training(RECIPE, whole=whole)
    parts, smaller, again = outcomes_of_training(RECIPE, most, whole)
    assert set(sizes) == {4} and smaller[0] == 4 and max(smaller[3:]) <= most
    assert again.train_loss == pytest.approx(trial.train_loss, rel=1e-4)
    for one, other in zip(plain, parts, strict=True):
        torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)


def test_one_example_that_does_not_fit_ends_in_a_sentence():
    with pytest.raises(OutOfMemory, match="Not even one row fits"):
        outcomes_of_training(RECIPE, 0)
    with pytest.raises(ValueError, match="out of memory"):
        outcomes_of_training(RECIPE, 2, error=ValueError)  # another error is no reason to go on


def test_checkpointing_learns_the_same(unchanged):
    plain, _, trial = outcomes_of_training(RECIPE)
    lean, _, again = outcomes_of_training(replace(RECIPE, checkpointing=True))
    assert again.validation_loss == pytest.approx(trial.validation_loss, rel=1e-5)
    for one, other in zip(plain, lean, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)
    unchanged(tiny("llama"))


def test_the_search_keeps_the_weights_of_the_best_rate(unchanged):
    model, chosen, given = prepared(RECIPE)
    progress = Counting()
    with TrainableRows(unchanged(model), chosen) as rows:
        untuned = validation_loss(model, given)
        fit = find_best_rate(model, rows, given, RECIPE, progress=progress, what="tuning some")
        assert validation_loss(model, given) == fit.best.validation_loss
        again = [train_once(model, rows, given, 0.0, RECIPE, Silent())]
        assert again[0].validation_loss == fit.best.validation_loss
    assert fit.untuned_loss == untuned
    assert fit.parameters == 6 * 3 * 32
    assert fit.best.validation_loss == min(trial.validation_loss for trial in fit.trials)
    assert progress.planned == progress.done == RECIPE.steps * len(fit.trials)
    assert progress.tokens > 0 and progress.said[0] == "tuning some"


def test_every_rate_starts_from_the_same_weights(unchanged):
    model, chosen, given = prepared(RECIPE)
    with TrainableRows(unchanged(model), chosen) as rows:
        fit = find_best_rate(model, rows, given, replace(RECIPE, extensions=0))
    for trial in fit.trials:
        with TrainableRows(model, chosen) as rows:
            assert train_once(model, rows, given, trial.rate, RECIPE, Silent()) == trial


def test_a_best_rate_at_the_edge_is_followed_and_flagged(unchanged):
    low = replace(RECIPE, rates=(1e-7, 3e-7), extensions=2)
    model, chosen, given = prepared(low)
    with TrainableRows(unchanged(model), chosen) as rows:
        fit = find_best_rate(model, rows, given, low)
    assert [trial.rate for trial in fit.trials] == pytest.approx([1e-7, 3e-7, 9e-7, 27e-7])
    assert fit.at_edge and fit.best.rate == fit.trials[-1].rate
    # answers that nothing can teach: the less is learned, the better
    hopeless = make_lessons(random_spans(25), low)
    with TrainableRows(model, chosen) as rows:
        fit = find_best_rate(model, rows, hopeless, low)
    assert [trial.rate for trial in fit.trials] == pytest.approx([1e-7 / 9, 1e-7 / 3, 1e-7, 3e-7])
    assert fit.at_edge and fit.best.rate == fit.trials[0].rate
    with TrainableRows(model, chosen) as rows:
        fit = find_best_rate(model, rows, given, replace(RECIPE, rates=(1e-6, 1e-2, 1e30)))
    assert len(fit.trials) == 3 and fit.best.rate == 1e-2 and not fit.at_edge
    one = replace(RECIPE, rates=(1e-7,))
    with TrainableRows(model, chosen) as rows:
        fit = find_best_rate(model, rows, given, one)
    assert len(fit.trials) == 1 and not fit.at_edge


def test_training_that_diverges_is_told_from_training_that_does_not(unchanged):
    model, chosen, given = prepared(RECIPE)
    with TrainableRows(unchanged(model), chosen) as rows:
        fit = find_best_rate(model, rows, given, replace(RECIPE, rates=(1e-2, 1e30), extensions=0))
        assert fit.best.rate == 1e-2
        assert fit.trials[1].validation_loss is None and fit.trials[1].train_loss is None
        assert validation_loss(model, given) == fit.best.validation_loss
    with (
        TrainableRows(model, chosen) as rows,
        pytest.raises(RunFailed, match="diverged at every learning rate from 1e\\+29 to 1e\\+31"),
    ):
        find_best_rate(model, rows, given, replace(RECIPE, rates=(1e30, 1e31), extensions=1))


def test_the_same_seed_trains_the_same_and_another_does_not(unchanged):
    model, chosen, _ = prepared(RECIPE)
    unchanged(model)
    losses = []
    for seed in (1, 1, 2):
        recipe = replace(RECIPE, seed=seed)
        with TrainableRows(model, chosen) as rows:
            given = make_lessons(learnable(25), recipe)
            losses.append(find_best_rate(model, rows, given, recipe).best.validation_loss)
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps must be 1 or more; got 0"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"warmup": -1}, "warmup must be 0 or more; got -1"),
        ({"extensions": -1}, "extensions must be 0 or more"),
        ({"clip": 0.0}, "clip, the largest gradient norm, must be positive; got 0"),
        ({"held_out": 1.0}, "between 0 and 1; got 1"),
        ({"rates": ()}, "rising order; got none"),
        ({"rates": (0.1, 0.01)}, "rising order; got 0.1, 0.01"),
        ({"rates": (0.0, 0.01)}, "positive learning rates"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(wrong, message):
    with pytest.raises(BadOption, match=message):
        make_lessons(random_spans(5), replace(RECIPE, **wrong))
