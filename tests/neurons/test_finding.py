"""Exactly the planted neurons are found: by several scores and rules, however many there are."""

from itertools import permutations

import numpy as np
import pytest
from planted_models import SHARING, TWO

from caploc.errors import BadOption
from caploc.neurons.finding import SIZES, Finder, score_cache, score_examples
from caploc.neurons.locating import LocatedNeurons
from caploc.neurons.options import Attribution, Rule
from caploc.neurons.sets import overlap_rates
from caploc.neurons.threshold import best
from caploc.progress import Silent
from worlds.planted_neurons import PlantedNeurons

OPPOSED = PlantedNeurons(needed=8, opposing=4, seed=7)
CROWDED = PlantedNeurons(layers=2, width=64, needed=5, seed=8)


@pytest.mark.parametrize("method", ["gradient", "integrated"])
@pytest.mark.parametrize(
    "plan",
    [
        PlantedNeurons(needed=1, seed=1),
        PlantedNeurons(needed=5, seed=2),
        pytest.param(PlantedNeurons(needed=20, seed=3), marks=pytest.mark.slow),
        pytest.param(
            PlantedNeurons(layers=2, width=768, needed=20, seed=4), marks=pytest.mark.slow
        ),
        PlantedNeurons(layers=6, needed=5, seed=5),
    ],
    ids=lambda plan: f"{plan.needed} of {plan.layers} layers",
)
def test_exactly_the_planted_neurons_are_found(planted, plan, method, tmp_path):
    model, asked = planted(plan), Attribution(method, steps=7)
    share = plan.needed / model.grid.size
    for rule in (Rule(), Rule(share=share)):
        found = model.find(tmp_path, asked=asked, rule=rule, examples=60)
        assert model.names(found.located) == set(model.truth.needed["warm"])
        assert found.within().rates["iou"].mean == 1
        assert found.examples == found.moments.items == 60


@pytest.mark.parametrize(
    "asked",
    [
        Attribution(target="probability"),
        Attribution(positions="last"),
        Attribution("integrated", steps=5, rule="left"),
    ],
    ids=["probability", "last", "left"],
)
def test_every_target_and_position_finds_them(planted, asked, tmp_path):
    model = planted(TWO)
    found = model.find(tmp_path, asked=asked, task="large")
    assert model.names(found.located) == set(model.truth.needed["large"])


@pytest.mark.parametrize("rule", [Rule(normalised=False), Rule(4.0)])
def test_every_rule_finds_them(planted, rule, tmp_path):
    model = planted(TWO)
    assert model.names(model.find(tmp_path, rule=rule).located) == set(model.truth.needed["warm"])


def test_the_size_of_activations_does_not_find_them(planted, tmp_path):
    """The planted neurons are quiet: what looks for loud ones finds others."""
    model = planted(TWO)
    asked = Attribution("activation")
    rule = Rule(share=6 / model.grid.size, normalised=False)
    found = model.find(tmp_path, asked=asked, rule=rule)
    assert not found.located[model.needed()].any()
    # |lane| is 0, 1.5 and 1 at the three words of a prompt
    scores = found.moments.mean[model.needed()]
    np.testing.assert_allclose(scores, (0 + 1.5 + 1) / 3, atol=1e-4)


def test_scores_are_as_far_apart_as_the_strengths(planted, tmp_path):
    """dF/da is the same for all, so gradient x activation is proportional to the strength."""
    model = planted(PlantedNeurons(needed=5, seed=2))
    strengths = model.truth.needed["warm"]
    found = model.find(tmp_path)
    scores = {name: found.moments.mean[model.grid.mask([name])].item() for name in strengths}
    ratios = [scores[name] / strengths[name] for name in strengths]
    np.testing.assert_allclose(ratios, np.mean(ratios), rtol=1e-3)
    ranked = sorted(strengths, key=strengths.get, reverse=True)
    assert [str(model.grid.component(column)) for column in found.ordered] == ranked
    told = described(model, found)
    assert [row.neuron for row in told.neurons] == ranked


def test_integrated_gradients_of_a_layer_sum_to_what_its_planted_neurons_are_worth(
    planted, tmp_path
):
    model = planted(PlantedNeurons(layers=2, width=768, needed=20, seed=4))
    spans = model.spans(examples=60)
    found = model.find(tmp_path, asked=Attribution("integrated"), examples=60)
    for layer, columns in enumerate(model.grid.layer_slices):
        cut = [n for n in model.truth.needed["warm"] if n.startswith(f"L{layer}N")]
        worth = (model.logprobs(spans) - model.logprobs(spans, cut)).mean()
        assert found.moments.mean[columns].sum() == pytest.approx(worth, rel=0.01)


def test_neurons_that_speak_against_the_answer_do_not_count(planted, tmp_path):
    model = planted(OPPOSED)
    needed, opposing = (set(each["warm"]) for each in (model.truth.needed, model.truth.opposing))
    found = model.find(tmp_path)
    assert model.names(found.located) == needed
    scores = [found.moments.mean[model.grid.mask([name])].item() for name in opposing]
    assert scores and max(scores) < 0


def test_more_neurons_than_can_lie_so_far_out_are_not_found_by_sigma(planted, tmp_path):
    """5 of 128 are more than Cantelli's share."""
    model = planted(CROWDED)
    assert 1 / (1 + 6**2) < 5 / 128
    assert not model.find(tmp_path).located.any()
    share = model.find(tmp_path, rule=Rule(share=5 / 128))
    assert model.names(share.located) == set(model.truth.needed["warm"])
    assert model.find(tmp_path, rule=Rule(3.0)).located.sum() == 5


def described(model, found):
    return LocatedNeurons(model.grid, Rule(), {"warm": found}, {}).task("warm")


def located(model, folder, rule=None):
    found = {task: model.find(folder, task=task, rule=rule) for task in model.truth.needed}
    return LocatedNeurons(model.grid, rule or Rule(), found, {})


def test_two_capabilities_are_each_their_own(planted, tmp_path):
    two = located(planted(TWO), tmp_path)
    for rates in two.overlaps().rates.values():
        np.testing.assert_array_equal(rates, np.eye(2))
    assert (two.cohesion().cohesion, two.cohesion().separability) == (1, 0)
    for task in two.found:
        assert two.found[task].within().rates["largest"].mean == 1
        assert two.task(task).across.mean == 0


def test_shared_neurons_are_what_two_capabilities_overlap_by(planted, tmp_path):
    two = located(planted(SHARING), tmp_path)
    overlaps = two.overlaps().rates
    assert overlaps["largest"][0][1] == pytest.approx(3 / 9)
    assert overlaps["iou"][0][1] == pytest.approx(3 / 15)


def test_tasks_are_told_apart_where_intervals_say_so(planted, tmp_path):
    """Two subsets make one pair, which has no interval; four do."""
    model = planted(TWO)
    assert located(model, tmp_path).task("warm").separate is None
    four = {task: model.find(tmp_path, task=task, subsets=4) for task in ("warm", "large")}
    assert LocatedNeurons(model.grid, Rule(), four, {}).task("warm").separate is True
    same = {"warm": four["warm"], "again": four["warm"]}
    assert LocatedNeurons(model.grid, Rule(), same, {}).task("warm").separate is False
    assert described(model, four["warm"]).separate is None


def test_subsets_are_disjoint_parts_and_their_figures_add_up(planted, tmp_path):
    """Against a second way: every example scored by itself, sets made by hand."""
    model = planted(TWO)
    spans = model.spans(examples=50)
    found = model.find(tmp_path, examples=50, subsets=4)
    scores = np.empty((50, model.grid.size))
    for numbers, rows in score_examples(model.neurons, spans, Attribution()):
        scores[numbers] = rows
    assert found.examples == 48
    np.testing.assert_allclose(found.moments.mean, scores[:48].mean(0), atol=1e-12)
    error = scores[:48].std(0, ddof=1) / 48**0.5
    np.testing.assert_allclose(found.moments.standard_error, error, atol=1e-12)
    for number, chosen in enumerate(found.subsets):
        mean = scores[12 * number : 12 * number + 12].mean(0)
        np.testing.assert_array_equal(chosen, mean > mean.mean() + 6 * mean.std())


def test_the_curve_is_of_the_first_examples_of_each_subset(planted, tmp_path):
    model = planted(TWO)
    rule = Rule(share=0.05)  # among the rest it is noise that decides, so that overlaps vary
    spans = model.spans(examples=150)
    finder = Finder(model.neurons, Attribution(), rule, score_cache(tmp_path), Silent())
    found = finder.find("warm", spans, 2)
    assert [step for step, _, _ in found.curve] == [10, 30, 75]
    for step, overlap, iou in found.curve:
        first = finder.find("warm", [*spans[:step], *spans[75 : 75 + step]], 2)
        rates = first.within().rates
        assert (overlap, iou) == pytest.approx((rates["largest"].mean, rates["iou"].mean))
    assert SIZES[0] == 10


def test_halves_are_two_of_five_subsets_against_two_others(planted, tmp_path):
    """Against a second way: every example scored by itself, the fifteen splits made by hand."""
    model, rule = planted(TWO), Rule(share=0.05, normalised=False)
    spans = model.spans(examples=50)
    finder = Finder(model.neurons, Attribution(), rule, score_cache(tmp_path), Silent())
    found = finder.find("warm", spans, 5)
    scores = np.empty((50, model.grid.size))
    for numbers, rows in score_examples(model.neurons, spans, Attribution()):
        scores[numbers] = rows
    parts, splits = scores.reshape(5, 10, -1).mean(1), set()
    for order in permutations(range(5)):
        one, other = (best(parts[list(side)].mean(0), 0.05) for side in (order[:2], order[2:4]))
        splits.add(round(overlap_rates(one, other).largest, 9))
    assert len(found.halves) == 10 and len(splits) > 1
    assert {round(rate, 9) for rate in found.halves} <= splits
    two = finder.find("warm", spans, 2)
    assert set(two.halves) == {overlap_rates(*two.subsets).largest}


def test_a_neuron_may_miss_in_some_subsets(planted, tmp_path):
    model = planted(TWO)
    finder = Finder(model.neurons, Attribution(), Rule(share=0.02), score_cache(tmp_path), Silent())
    spans = model.spans(examples=60)
    votes = finder.find("warm", spans, 6).subsets.sum(0)
    for least, needed in ((1.0, 6), (0.5, 3), (0.01, 1)):
        chosen = finder.find("warm", spans, 6, least=least).located
        np.testing.assert_array_equal(chosen, votes >= needed)
    assert (votes == 6).sum() < (votes >= 1).sum()


@pytest.mark.parametrize(
    ("examples", "subsets", "sentence"),
    [
        (10, 1, "--subsets must be 2 or more; got 1."),
        (3, 4, "gives 3 examples to find neurons on, too few for 4 subsets; take more --examples"),
    ],
)
def test_too_few_are_refused(planted, tmp_path, examples, subsets, sentence):
    with pytest.raises(BadOption, match=sentence):
        planted(TWO).find(tmp_path, examples=examples, subsets=subsets)
