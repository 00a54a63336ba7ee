"""What located neurons follow: planted sets, exact chance, and the demo model again by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine import BatchEngine
from caploc.errors import BadData, BadOption, UnknownName
from caploc.neurons.attribution import Attribution, Batch
from caploc.neurons.contrasts import ARMS, ContrastSet, Item, kept, sums
from caploc.neurons.decoupling import (
    CONTRASTS,
    ItemLocator,
    PackedSets,
    answer_rightly,
    decouple,
    draw_contrasts,
    follow_contrasts,
    key,
    same_answer,
)
from caploc.neurons.finding import Rule, score_cache
from caploc.neurons.sites import NeuronGrid
from caploc.neurons.study import NeuronBench
from caploc.progress import Silent
from caploc.stats.sets import jaccards
from caploc.store import Store
from caploc.tasks.task import LogLikelihood

GRID = NeuronGrid((300, 500, 0, 200))
BEST = ItemLocator(Attribution(), Rule(share=0.01))


@pytest.fixture(scope="module")
def bench(demo, neurons, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoupling")
    store = Store(folder / "rows.sqlite")
    yield NeuronBench(BatchEngine(demo), neurons, store, score_cache(folder))
    store.close()


def planted(contrasts, neurons_of):
    """Sets by a function from an item to the columns chosen for it."""
    rows, bits = {}, []
    for each in contrasts:
        for item in each.items:
            if key(item) not in rows:
                chosen = np.zeros(GRID.size, dtype=bool)
                chosen[neurons_of(item)] = True
                rows[key(item)] = len(bits)
                bits.append(np.packbits(chosen))
    return PackedSets(np.array(bits), GRID.size, rows)


def columns(text, count=10):
    """Columns of a text's own, the same whenever it is asked."""
    seed = list(text.encode())
    return np.random.default_rng(seed).choice(GRID.size, count, replace=False)


def test_sets_that_follow_the_commonality_have_that_effect_only():
    contrasts = sums(120)
    found = follow_contrasts(
        planted(contrasts, lambda item: columns(item.commonality)), contrasts, BEST
    )
    assert found.effects.commonality.mean > 0.9
    assert found.effects.individual.mean == 0
    assert abs(found.effects.content.mean) < 1e-12
    assert found.same_answer.mean == 1


def test_sets_that_follow_the_content_do_not_follow_what_is_asked():
    contrasts = sums(120)
    found = follow_contrasts(
        planted(contrasts, lambda item: columns(item.content)), contrasts, BEST
    )
    assert found.effects.individual.mean > 0.9
    assert found.effects.content.mean > 0.9
    assert abs(found.effects.commonality.mean) < 0.01
    assert found.beyond_answer.mean > 0.9


def test_sets_that_follow_the_answer_look_individual_but_not_beyond_it():
    """A rewording keeps the answer, other content does not: only the control tells them apart."""
    contrasts = sums(120)
    found = follow_contrasts(planted(contrasts, lambda item: columns(item.answer)), contrasts, BEST)
    assert found.effects.individual.mean > 0.9
    assert found.same_answer.mean == 1
    assert found.beyond_answer.mean == 0
    assert 60 < found.beyond_answer.items <= 120


def test_an_item_of_the_same_answer_has_other_content():
    def made(content, prompt, answer="9"):
        return Item("add", content, "plain", prompt, answer)

    lone = [made(str(n), f"{n}+", str(100 + n)) for n in range(5)]
    contrasts = [
        ContrastSet(*lone),
        ContrastSet(made("a", "a+"), made("a", "b+"), *lone[2:]),
    ]
    found = planted(contrasts, lambda item: columns(item.prompt))
    assert np.isnan(same_answer(found, contrasts, 0)).all()
    third = [*contrasts, ContrastSet(made("c", "c+"), *lone[1:])]
    found = planted(third, lambda item: columns(item.answer))
    np.testing.assert_array_equal(np.isnan(same_answer(found, third, 0)), [True, False, False])


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_packed_sets_are_the_sets(neurons, seed):
    items = [Item("k", str(n), "w", f"{n}?", "!") for n in range(4)]
    sets = np.random.default_rng(seed).random((4, neurons)) < 0.5
    rows = {key(item): row for row, item in enumerate(items)}
    found = PackedSets(np.packbits(sets, axis=1), neurons, rows)
    np.testing.assert_array_equal(found.of(items[::-1]), sets[::-1])
    counts = sets.sum(axis=1)
    sizes = found.sizes
    assert sizes == {
        "mean": counts.mean(),
        "fewest": counts.min(),
        "most": counts.max(),
        "none": (counts == 0).sum(),
    }


def test_similarity_does_not_depend_on_how_many_are_unpacked_at_a_time():
    contrasts = sums(150)  # more than two stretches
    found = planted(contrasts, lambda item: columns(item.prompt[:3], 40))
    told = follow_contrasts(found, contrasts, BEST)
    for arm in ARMS:
        base = found.of([each.base for each in contrasts])
        partners = found.of([each.partners[arm] for each in contrasts])
        mean = np.nanmean(jaccards(base, partners))
        assert told.effects.similarity[arm].mean == pytest.approx(mean)


def by_hand(demo, neurons, bench, item, method):
    """An item's own best 1 %, from its scores alone."""
    span = bench.wording.spans(LogLikelihood(item.prompt, item.answer))[0]
    batch = Batch.of([span], torch.device("cpu"))
    scores = Attribution(method).scores(neurons, batch)[0]
    chosen = np.zeros(neurons.grid.size, dtype=bool)
    chosen[scores.topk(23).indices.numpy()] = True
    return chosen


def test_the_demo_model_s_sums_are_located_as_by_hand(demo, neurons, bench):
    contrasts = sums(12)
    effects = []
    for method in ("gradient", "activation"):
        found = decouple(bench, contrasts, ItemLocator(Attribution(method), Rule(share=0.01)))
        assert (found.contrasts, found.right) == (12, 12)
        assert found.answered == dict.fromkeys(("base", *ARMS), 1.0)
        (each,) = found.followed
        effects.append(each.effects)
        sets = {
            arm: np.array([by_hand(demo, neurons, bench, item, method) for item in items])
            for arm, items in {
                "base": [c.base for c in contrasts],
                **{arm: [c.partners[arm] for c in contrasts] for arm in ARMS},
            }.items()
        }
        for arm in ARMS:  # ranks of nearly equal scores may differ between batches
            told = jaccards(sets["base"], sets[arm]).mean()
            assert each.effects.similarity[arm].mean == pytest.approx(told, abs=0.01)
        assert (each.sizes["fewest"], each.sizes["most"]) == (23, 23)
    assert effects[0] != effects[1]


def test_an_item_is_right_if_greedy_decoding_says_its_answer(demo, bench):
    contrasts = draw_contrasts("demo/capitals", 25)
    items = [item for each in contrasts for item in each.items]
    items.append(
        replace(items[0], answer=chr(ord("A") + (ord(items[0].answer) - ord("A") + 1) % 4))
    )
    told = answer_rightly(bench, items, Silent())
    for item in [*items[:-1:4], items[-1]]:
        prompt = demo.tokenizer(item.prompt, return_tensors="pt")
        said = demo.model.generate(**prompt, max_new_tokens=1, do_sample=False)[0, -1]
        assert told[key(item)] == (demo.tokenizer.decode(said) == item.answer)
    assert not all(told.values())
    found = decouple(bench, contrasts, BEST)
    right = kept(contrasts, lambda item: told[key(item)])
    assert 0 < found.right == len(right) < 25
    assert found.answered["base"] == np.mean([told[key(each.base)] for each in contrasts])
    assert found.followed[0].effects.items + found.followed[0].effects.undefined == found.right


def test_a_seed_gives_the_same_tables_and_files_hold_them(bench):
    told = [decouple(bench, sums(8), BEST, seed=2) for _ in range(2)]
    assert told[0].as_dict() == told[1].as_dict()
    plain = json.loads(json.dumps(told[0].as_dict(), allow_nan=False))
    (each,) = plain["followed"]
    assert each["locator"] == "gradient, the best 1 %"
    assert each["settings"]["attribution"]["steps"] == 19
    assert each["effects"]["items"] == 8


@pytest.mark.parametrize("name", CONTRASTS)
def test_every_set_of_contrasts_can_be_drawn(name):
    drawn = draw_contrasts(name, 5, seed=1)
    assert drawn == draw_contrasts(name, 9, seed=1)[:5]
    assert len(drawn) == 5


def test_what_cannot_be_done_is_refused(bench):
    with pytest.raises(UnknownName, match="Did you mean 'demo/sums'"):
        draw_contrasts("demo/sum", 5)
    with pytest.raises(BadOption, match="--votes"):
        decouple(bench, sums(2), ItemLocator(Attribution(), Rule(votes=0.5)))
    with pytest.raises(UnknownName, match="neuron score"):
        decouple(bench, sums(2), ItemLocator(Attribution("gradients")))
    with pytest.raises(BadData, match=r"none of 3 contrasts \(alone: base 0 %, SS 0 %"):
        decouple(bench, draw_contrasts("sentiment", 3), BEST)
    with pytest.raises(BadOption, match="at least one"):
        decouple(bench, [], BEST)
