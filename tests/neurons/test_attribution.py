"""Scores of neurons: identities that hold for every model, and second ways to the same number."""

import numpy as np
import pytest
import torch

from caploc.engine.encoding import Span
from caploc.errors import OutOfMemory
from caploc.models.loading import load_tokenizer
from caploc.models.proof import reads_first
from caploc.neurons.attribution import mark_positions, measure_target, score_batch
from caploc.neurons.engine import Batch, Batcher
from caploc.neurons.finding import accumulate, score_examples
from caploc.neurons.model import NeuronModel, find_sites, list_projections
from caploc.neurons.options import SCORES, Attribution
from worlds import DEMO
from worlds.tiny import random_tokens, tiny

FAMILIES = ["llama", "gpt2", "gptj", "opt"]
CPU = torch.device("cpu")
TOKENIZER = load_tokenizer(DEMO)  # of another vocabulary, and never asked


def neuron_model(name):
    model = tiny(name)
    sites, grid = find_sites(model)
    return NeuronModel(model, TOKENIZER, grid, sites, name, name, "float32", CPU)


def spans(lengths=((5, 2), (8, 3), (3, 1)), seed=1):
    rows = random_tokens(len(lengths), 9, seed=seed).tolist()
    return [
        Span(tuple(row[:read]), tuple(row[9 - gold :]))
        for row, (read, gold) in zip(rows, lengths, strict=True)
    ]


def outcome(asked, model, batch, factors=None):
    """F with each neuron's activation multiplied by a factor, by plain hooks on the weights."""
    return measure_target(asked, model, batch).detach()


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_equal_finite_differences_of_the_weights(name):
    """Scaling a neuron's output weights by 1 + h is scaling its activation."""
    model, asked = neuron_model(name), Attribution()
    batch = Batch.of(spans(), CPU)
    scores = score_batch(asked, model, batch)
    random = np.random.default_rng(0)
    strongest = scores.abs().sum(0).topk(4).indices.tolist()
    for column in [*strongest, *random.integers(model.grid.size, size=2).tolist()]:
        ends = []
        for step in (-1e-2, 1e-2):
            with scaled(model, column, 1 + step), torch.no_grad():
                ends.append(measure_target(asked, model, batch).double())
        slope = (ends[1] - ends[0]) / 2e-2
        torch.testing.assert_close(scores[:, column], slope, atol=3e-3, rtol=2e-2)


class scaled:
    """One neuron's output weights times a factor, for a block."""

    def __init__(self, model, column, factor):
        for _, columns, module in list_projections(model.projections):
            if columns.start <= column < columns.stop:
                self.weights, self.factor = reads_first(module), factor
                self.row = column - columns.start

    def __enter__(self):
        self.before = self.weights[self.row].clone()
        self.weights[self.row] = self.before * self.factor

    def __exit__(self, *_):
        self.weights[self.row] = self.before


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_a_data_set_s_gradient_score_is_weight_times_weight_gradient(name):
    model, asked = neuron_model(name), Attribution()
    batch = Batch.of(spans(), CPU)
    scores = score_batch(asked, model, batch).sum(0)
    weights = [module.weight for _, _, module in list_projections(model.projections)]
    for weight in weights:
        weight.requires_grad_()
    found = torch.autograd.grad(measure_target(asked, model, batch).sum(), weights)
    for weight in weights:
        weight.requires_grad_(False)
    axis = 1 if name == "gpt2" else 0  # transformers' Conv1D keeps its weight transposed
    products = [(w * g).sum(axis).double() for w, g in zip(weights, found, strict=True)]
    torch.testing.assert_close(scores, torch.cat(products), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_example_scores_alone_what_it_scores_in_a_batch(name):
    model = neuron_model(name)
    for method in SCORES:
        asked = Attribution(method, steps=3)
        together = score_batch(asked, model, Batch.of(spans(), CPU))
        alone = torch.cat([score_batch(asked, model, Batch.of([span], CPU)) for span in spans()])
        torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gptj"])
@pytest.mark.parametrize("positions", ["all", "last"])
def test_integrated_gradients_of_a_layer_sum_to_what_its_loss_costs(name, positions):
    """Completeness, midpoint rule: to 1 % of the largest term with 60 points."""
    model = neuron_model(name)
    asked = Attribution("integrated", positions=positions, steps=60)
    batch = Batch.of(spans(), CPU)
    scores = score_batch(asked, model, batch)
    whole = outcome(asked, model, batch)
    for columns in model.grid.layer_slices:
        lost = silenced(asked, model, batch, columns)
        torch.testing.assert_close(
            scores[:, columns].sum(1),
            (whole - lost).double(),
            atol=0.01 * float(scores[:, columns].abs().sum(1).max()),
            rtol=0,
        )


def silenced(asked, model, batch, columns):
    """F with these neurons at zero where the attribution looks, by plain hooks."""
    where = mark_positions(asked, batch)
    cut = torch.zeros(model.grid.size, dtype=torch.bool)
    cut[columns] = True
    handles = []
    for _, inside, module in list_projections(model.projections):

        def hook(_, args, inside=inside):
            each = args[0].reshape(*where.shape, -1).clone()
            each[where[..., None] & cut[inside]] = 0
            return (each.reshape(args[0].shape),)

        handles.append(module.register_forward_pre_hook(hook))
    try:
        with torch.no_grad():
            return measure_target(asked, model, batch)
    finally:
        for handle in handles:
            handle.remove()


def test_the_activation_baseline_is_the_mean_size_over_positions():
    model = neuron_model("llama")
    batch = Batch.of(spans(((4, 1), (7, 1))), CPU)
    seen = []
    handle = model.projections[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    scores = score_batch(Attribution("activation"), model, batch)
    handle.remove()
    expected = seen[0][0, :4].abs().mean(0).double()
    torch.testing.assert_close(scores[0, model.grid.layer_slices[1]], expected)


def test_every_example_is_scored_once_whatever_the_batch():
    model = neuron_model("llama")
    many = spans(((5, 2), (8, 3), (3, 1), (8, 1), (2, 2), (6, 4)))
    found = {}
    for numbers, rows in score_examples(model, many, Attribution()):
        found |= dict(zip(numbers, rows, strict=True))
    small = Batcher(model.model, most_rows=2)
    for numbers, rows in score_examples(model, many, Attribution(), batcher=small):
        assert len(numbers) <= 2
        for number, row in zip(numbers, rows, strict=True):
            np.testing.assert_allclose(row, found[number], atol=1e-5)
    total = accumulate(model, many, Attribution())
    np.testing.assert_allclose(total.mean, np.mean(list(found.values()), axis=0), atol=1e-12)
    assert total.items == len(many)


def test_a_batch_that_does_not_fit_is_halved_and_nothing_is_lost():
    model, tried = neuron_model("llama"), []

    def work(batch):
        tried.append(batch.size)
        if batch.size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return [0] * batch.size

    done = [n for numbers, _ in Batcher(model.model).run(spans() * 2, work) for n in numbers]
    assert sorted(done) == list(range(6))
    assert max(tried) > 2


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_points_of_an_integral_may_be_shared_among_passes(at_once):
    model, asked = neuron_model("llama"), Attribution("integrated", steps=5)
    whole = score_batch(asked, model, Batch.of(spans(), CPU))
    shared = score_batch(asked, model, Batch.of(spans(), CPU, at_once))
    torch.testing.assert_close(shared, whole, atol=1e-6, rtol=1e-4)


def test_an_example_that_fits_a_few_times_gets_several_passes():
    model, asked, rows = neuron_model("llama"), Attribution("integrated", steps=7), []
    span = max(spans(), key=lambda span: len(span.inputs))
    plenty = Batcher(model.model)
    tight = Batcher(model.model, memory=3 * plenty.row_bytes(span))

    def work(batch):
        rows.append((batch.size, batch.at_once))
        return list(score_batch(asked, model, batch))

    found = {}
    for name, batcher in (("whole", plenty), ("shared", tight)):
        done = [
            (number, each)
            for numbers, results in batcher.run(spans(), work, asked.copies)
            for number, each in zip(numbers, results, strict=True)
        ]
        found[name] = torch.stack([each for _, each in sorted(done, key=lambda pair: pair[0])])
    torch.testing.assert_close(found["shared"], found["whole"], atol=1e-6, rtol=1e-4)
    assert rows[0] == (len(spans()), 7) and (1, 3) in rows


def test_points_that_do_not_fit_together_are_tried_in_halves_and_one_at_last():
    model, tried = neuron_model("llama"), []

    def work(batch):
        tried.append((batch.size, batch.at_once))
        if batch.size > 1 or batch.at_once > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return [0]

    most = 2
    done = [n for numbers, _ in Batcher(model.model).run(spans(), work, 9) for n in numbers]
    assert sorted(done) == [0, 1, 2] and (1, 9) in tried and tried[-1][1] <= 2
    most = 0
    with pytest.raises(OutOfMemory, match="Not even one row"):
        list(Batcher(model.model).run(spans(), work, 9))


def test_nothing_is_left_on_the_model():
    model = neuron_model("llama")
    modules = list(model.model.modules())

    def added():
        return [(len(m._forward_pre_hooks), "forward" in vars(m)) for m in modules]

    before = added()
    for method in SCORES:
        score_batch(Attribution(method, steps=2), model, Batch.of(spans(), CPU))
    assert added() == before
    assert all(p.grad is None and not p.requires_grad for p in model.model.parameters())
