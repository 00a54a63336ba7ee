"""Heads and neurons knocked out at once, against a model with those weights set to zero."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tiny import random_tokens, tiny

from caploc.commonality import Moments, layer_counts
from caploc.engine import BatchEngine
from caploc.engine.encoding import Span
from caploc.errors import BadData, BadOption, UnknownName
from caploc.finished import FinishedRun
from caploc.heads import Head
from caploc.models.loading import CutModel
from caploc.models.projections import find_projections
from caploc.neurons.bench import NeuronBench
from caploc.neurons.conditions import Conditions, Joining, reads_own_layer
from caploc.neurons.cutting import Mode
from caploc.neurons.examples import source
from caploc.neurons.finding import Found
from caploc.neurons.loading import NeuronModel
from caploc.neurons.proof import weights_zeroed
from caploc.neurons.shelf import Shelf
from caploc.neurons.sites import find_sites
from caploc.neurons.together import (
    RANDOM_HEADS,
    RANDOM_NEURONS,
    LocatedHeads,
    drawn_pairs,
    join,
)
from caploc.neurons.together_figure import together_figure
from caploc.progress import Silent
from caploc.store import Store
from caploc.study import Study
from caploc.tasks.catalog import TaskOptions
from caploc.workbench import ModelOptions

pytestmark = pytest.mark.slow  # whole studies

NAMES = "L0H10,L0H15,L0H14,L0H13,L0H5"
ASKED = Joining(limit=6)


@pytest.fixture(scope="module")
def addition():
    return source(ModelOptions("demo"), "demo/addition", TaskOptions(), 8, 0)


@pytest.fixture(scope="module")
def engine(demo):
    return BatchEngine(demo)


@pytest.fixture
def bench(engine, neurons, tmp_path):
    store = Store(tmp_path / "rows.sqlite")
    yield NeuronBench(engine, neurons, store, Shelf(tmp_path))
    store.close()


@pytest.fixture(scope="module")
def found(neurons):
    """Neurons of three layers, by hand: scores are their numbers."""
    located = np.zeros(neurons.grid.size, dtype=bool)
    located[np.random.default_rng(0).choice(neurons.grid.size, 60, replace=False)] = True
    located[neurons.grid.layer_slices[2]] = False
    scores = np.where(located, np.arange(neurons.grid.size), 0.0)
    moments = Moments.empty(neurons.grid.size).added(scores[None])
    return Found("demo/addition", 8, located, np.stack([located, located]), moments)


@pytest.fixture(scope="module")
def joined(engine, neurons, addition, found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined")
    store = Store(folder / "rows.sqlite")
    bench = NeuronBench(engine, neurons, store, Shelf(folder))
    costs = {Head(0, index): -0.1 * index for index in range(16)}
    yield join(bench, addition, LocatedHeads(tuple(Head.parse_all(NAMES)), costs), found, ASKED)
    store.close()


@contextmanager
def heads_zeroed(demo, mask):
    """The output projections' columns of some heads are zero inside."""
    saved = []
    for projection, columns in zip(demo.projections, demo.grid.layer_slices, strict=True):
        width = projection.in_features // (columns.stop - columns.start)
        inside = torch.from_numpy(np.repeat(mask[columns], width))
        saved.append((projection.weight, projection.weight.clone()))
        projection.weight[:, inside] = 0
    try:
        yield
    finally:
        for weight, before in saved:
            weight.copy_(before)


def plain_logprobs(demo, spans):
    """Mean log-probability of a gold token, example by example, by the plain model."""
    values = []
    for span in spans:
        count = len(span.continuation)
        with torch.no_grad():
            logits = demo.model(torch.tensor([span.inputs])).logits[0, -count:].double()
        gold = torch.tensor(span.continuation)[:, None]
        values.append(float(logits.log_softmax(-1).gather(1, gold).mean()))
    return np.array(values)


@pytest.mark.parametrize("condition", ["nothing", "heads", "neurons", "both"])
def test_every_condition_is_the_model_with_those_weights_zeroed(
    demo, neurons, bench, addition, found, condition
):
    heads = demo.grid.mask(Head.parse_all(NAMES)) & (condition in ("heads", "both"))
    cut = found.located & (condition in ("neurons", "both"))
    measured = Conditions.of(bench, addition, ASKED, Silent()).outcomes("logprob", heads, cut)
    spans = addition.judged_spans(bench.wording, ASKED.limit)
    with weights_zeroed(neurons.projections, torch.from_numpy(cut)), heads_zeroed(demo, heads):
        expected = plain_logprobs(demo, spans)
    np.testing.assert_allclose(measured, expected, atol=1e-4)
    assert (condition == "nothing") == np.allclose(expected, plain_logprobs(demo, spans))


def test_losses_interaction_and_scores_are_those_of_the_conditions(bench, addition, found, joined):
    measured = Conditions.of(bench, addition, ASKED, Silent())
    heads = bench.engine.grid.mask(Head.parse_all(NAMES))
    none, nothing = heads & False, found.located & False
    pairs = {"heads": (heads, nothing), "neurons": (none, found.located)}
    pairs["both"] = (heads, found.located)
    for name in ("metric", "logprob"):
        intact = measured.outcomes(name, none, nothing)
        lost = {each: (intact - measured.outcomes(name, *pair)) for each, pair in pairs.items()}
        told = getattr(joined.located, name)
        for each, values in lost.items():
            assert getattr(told, each).mean == pytest.approx(values.mean(), abs=1e-9)
        apart = lost["both"] - lost["heads"] - lost["neurons"]
        assert told.interaction.mean == pytest.approx(apart.mean(), abs=1e-9)
    right = measured.outcomes("metric", *pairs["both"]).mean()
    assert joined.located.scores["both"] == pytest.approx(right)
    assert joined.intact == 1.0


def test_draws_keep_one_part_and_match_the_layers_of_the_other(bench, neurons, found):
    grid = bench.engine.grid
    placed = LocatedHeads(tuple(Head.parse_all(NAMES + ",L3H2"))).placed(grid)
    pairs = drawn_pairs(placed, found.located, bench, Joining(draws=7))
    assert len(pairs) == 1 + 2 * 7
    for (arm, _), (heads, cut) in list(pairs.items())[1:]:
        assert layer_counts(heads, grid).tolist() == layer_counts(placed.chosen, grid).tolist()
        assert neurons.grid.counts(cut) == neurons.grid.counts(found.located)
        assert (heads & placed.chosen).any() == (arm == RANDOM_NEURONS)
        assert (cut & found.located).any() == (arm == RANDOM_HEADS)


def test_specificity_is_of_the_interaction_with_its_sign(joined):
    for arm in (RANDOM_NEURONS, RANDOM_HEADS):
        drawn = np.array([each.logprob.interaction.mean for each in joined.drawn(arm)])
        own = joined.located.logprob.interaction.mean
        sign = 1 if own >= 0 else -1
        told = joined.specificity[arm]["logprob"]
        assert told.located == pytest.approx(sign * own)
        assert told.pooled_gain == pytest.approx(sign * (own - drawn.mean()) / drawn.std(ddof=1))
        assert joined.verdict.reached[arm] == (sign * drawn >= sign * own).sum()


def test_no_random_heads_where_a_layer_has_too_few_others(bench, found):
    most = LocatedHeads(tuple(Head(1, index) for index in range(12)))
    pairs = drawn_pairs(most.placed(bench.engine.grid), found.located, bench, ASKED)
    assert {arm for arm, _ in pairs} == {"located", RANDOM_NEURONS}


def test_what_was_measured_is_not_asked_again(engine, neurons, addition, found, tmp_path):
    heads, told = LocatedHeads(tuple(Head.parse_all(NAMES))), []
    for answer in (engine.answer, None):
        store = Store(tmp_path / "rows.sqlite")
        bench = NeuronBench(Watched(engine, answer), neurons, store, Shelf(tmp_path))
        told.append(join(bench, addition, heads, found, ASKED).as_dict())
        store.close()
    assert told[0] == told[1]


class Watched(BatchEngine):
    """An engine that answers by what it is given: None refuses."""

    def __init__(self, engine, answer):
        self.__dict__.update(vars(engine))
        self.how = answer

    def answer(self, asks):
        asks = list(asks)
        assert not asks or self.how is not None, "asked again"
        return self.how(asks) if asks else iter(())


def test_other_modes_cut_otherwise_and_are_kept_apart(bench, addition, found):
    heads = bench.engine.grid.mask(Head.parse_all(NAMES))
    both = {}
    for mode in ("zero", "scale=1", "scale=0", "mean"):
        asked = Joining(Mode.parse(mode), limit=4)
        measured = Conditions.of(bench, addition, asked, Silent())
        both[mode] = measured.outcomes("logprob", heads, found.located)
    alone = measured.outcomes("logprob", heads, found.located & False)
    np.testing.assert_allclose(both["scale=1"], alone, atol=1e-5)
    np.testing.assert_allclose(both["scale=0"], both["zero"], atol=1e-5)
    assert not np.allclose(both["mean"], both["zero"], atol=1e-3)
    assert not np.allclose(both["zero"], alone, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"), [("llama", True), ("gpt2", True), ("gptj", False), ("mixtral", True)]
)
def test_neurons_read_the_heads_of_their_layer_unless_blocks_run_side_by_side(demo, name, expected):
    model = tiny(name)
    cpu = torch.device("cpu")
    projections, grid = find_projections(model)
    sites, wide = find_sites(model)
    heads = CutModel(model, demo.tokenizer, grid, projections, name, name, "float32", cpu)
    neurons = NeuronModel(model, demo.tokenizer, wide, sites, name, name, "float32", cpu)
    tokens = random_tokens(1, 7, seed=0)[0].tolist()
    span = Span(tuple(tokens[:5]), tuple(tokens[5:]))
    assert reads_own_layer(heads, neurons, span) is expected


def test_a_finished_run_gives_its_heads_and_what_each_costs(demo, tmp_path):
    rows = [
        {"head": "L1H2", "effect": -0.5},
        {"head": "L0H3", "effect": 0.25},
        {"head": "L4H0", "effect": None},
    ]
    study = Study(ModelOptions("demo"), "demo/addition")
    model = {"name": "demo", "fingerprint": demo.fingerprint}
    run = FinishedRun(tmp_path, study, {"model": model, "top": ["L1H2", "L4H0"], "heads": rows}, {})
    heads = LocatedHeads.of(run, demo)
    assert LocatedHeads.of(run, demo, 1).heads == (Head(1, 2),)
    placed = heads.placed(demo.grid)
    assert demo.grid.named(placed.chosen) == [Head(1, 2), Head(4, 0)]
    assert placed.weights[demo.grid.column(Head(1, 2))] == 0.5
    assert np.nansum(placed.weights) == 0.25
    assert np.isnan(placed.weights).sum() == demo.grid.size - 2
    model["fingerprint"] = "another"
    with pytest.raises(BadData, match="run and neurons of one model"):
        LocatedHeads.of(run, demo)
    with pytest.raises(UnknownName, match="L0 to L5"):
        LocatedHeads((Head(6, 0),)).placed(demo.grid)


def test_files_hold_everything_and_a_figure_shows_it(joined, neurons, found):
    told = json.loads(json.dumps(joined.as_dict(), allow_nan=False))
    assert told["heads"] == NAMES.split(",")
    np.testing.assert_array_equal(neurons.grid.mask(told["neurons"]), found.located)
    assert len(told["pairings"]) == 11
    assert told["specificity"][RANDOM_HEADS]["metric"]["per_item"] is None
    assert told["alignment"]["weighed"]["heads"] == [1.0, 0, 0, 0, 0, 0]
    assert told["verdict"]["sentence"]
    figure = together_figure(joined)
    assert isinstance(figure, Figure)
    left, right = figure.axes
    heights = [bar.get_height() for bar in left.patches]
    shares = joined.alignment.located
    np.testing.assert_allclose(heights, [*shares.heads, *shares.neurons])
    lost = joined.located.logprob
    np.testing.assert_allclose(
        [bar.get_height() for bar in right.patches],
        [0, lost.heads.mean, lost.neurons.mean, lost.both.mean],
    )
    assert len(right.get_xticks()) == 6
    figure.canvas.draw()


def test_what_means_nothing_is_refused(bench, addition, found):
    heads = LocatedHeads(tuple(Head.parse_all(NAMES)))
    for asked, words in ((Joining(draws=4), "draws"), (Joining(limit=1), "limit")):
        with pytest.raises(BadOption, match=f"--{words} must be"):
            join(bench, addition, heads, found, asked)
    with pytest.raises(BadOption, match="no located head"):
        join(bench, addition, LocatedHeads(()), found, ASKED)
