"""What located neurons follow: planted sets, exact chance, and the demo model again by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadData
from caploc.neurons.attribution import score_batch
from caploc.neurons.engine import Batch
from caploc.neurons.model import NeuronGrid
from caploc.neurons.options import Attribution, Rule
from caploc.stats import plain_value
from papers.cnl.contrasts import ARMS, CONTRASTS, ContrastSet, Item, kept, sentiment
from papers.cnl.decoupling import (
    ItemLocator,
    as_prompt,
    decouple,
    follow_contrasts,
    key,
    same_answer,
    similarity,
)
from papers.cnl.prompts import Encoder, FactAnswers
from worlds.contrasts import sums

pytestmark = pytest.mark.slow

GRID = NeuronGrid((300, 500, 0, 200))


def by(method, share=0.01):
    return ItemLocator.of(method, Rule(share=share))


BEST = by("gradient")


def jaccards(first, second):
    """The IoU of each set with that in the same row of the other; NaN if both are empty."""
    both, either = (first & second).sum(axis=1), (first | second).sum(axis=1)
    return np.divide(both, either, out=np.full(len(both), np.nan), where=either > 0)


def planted(contrasts, neurons_of):
    """Sets by a function from an item to the columns chosen for it."""
    sets = {}
    for item in (item for each in contrasts for item in each.items):
        chosen = np.zeros(GRID.size, dtype=bool)
        chosen[neurons_of(item)] = True
        sets[key(item)] = np.packbits(chosen)
    return sets


def follow(contrasts, neurons_of):
    found = follow_contrasts(planted(contrasts, neurons_of), contrasts)
    return found["effects"], found["same_answer"], found["beyond_answer"]


def columns(text, count=10):
    """Columns of a text's own, the same whenever it is asked."""
    seed = list(text.encode())
    return np.random.default_rng(seed).choice(GRID.size, count, replace=False)


def test_sets_that_follow_the_commonality_have_that_effect_only():
    contrasts = sums(120)
    effects, same, beyond = follow(contrasts, lambda item: columns(item.commonality))
    assert effects["commonality"].mean > 0.9
    assert effects["individual"].mean == 0
    assert abs(effects["content"].mean) < 1e-12
    assert same.mean == 1


def test_sets_that_follow_the_content_do_not_follow_what_is_asked():
    contrasts = sums(120)
    effects, same, beyond = follow(contrasts, lambda item: columns(item.content))
    assert effects["individual"].mean > 0.9
    assert effects["content"].mean > 0.9
    assert abs(effects["commonality"].mean) < 0.01
    assert beyond.mean > 0.9


def test_sets_that_follow_the_answer_look_individual_but_not_beyond_it():
    """A rewording keeps the answer, other content does not: only the control tells them apart."""
    contrasts = sums(120)
    effects, same, beyond = follow(contrasts, lambda item: columns(item.answer))
    assert effects["individual"].mean > 0.9
    assert same.mean == 1
    assert beyond.mean == 0
    assert 60 < beyond.items <= 120


def contrast(base, *partners):
    return ContrastSet(base, dict(zip(ARMS, partners, strict=True)))


def test_an_item_of_the_same_answer_has_other_content():
    def made(content, prompt, answer="9"):
        return Item("add", content, "plain", prompt, answer)

    lone = [made(str(n), f"{n}+", str(100 + n)) for n in range(5)]
    contrasts = [
        contrast(*lone),
        contrast(made("a", "a+"), made("a", "b+"), *lone[2:]),
    ]
    found = planted(contrasts, lambda item: columns(item.prompt))
    assert np.isnan(same_answer(found, contrasts, 0)).all()
    third = [*contrasts, contrast(made("c", "c+"), *lone[1:])]
    found = planted(third, lambda item: columns(item.answer))
    np.testing.assert_array_equal(np.isnan(same_answer(found, third, 0)), [True, False, False])


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_packed_sets_overlap_as_the_sets_do(neurons, seed):
    items = [Item("k", str(n), "w", f"{n}?", "!") for n in range(4)]
    sets = np.random.default_rng(seed).random((4, neurons)) < 0.5
    found = {key(item): np.packbits(each) for item, each in zip(items, sets, strict=True)}
    told = similarity(found, items, items[::-1])
    np.testing.assert_array_equal(told, jaccards(sets, sets[::-1]))


def by_hand(neurons, item, method):
    """An item's own best 1 %, from its scores alone."""
    batch = Batch.of([Encoder(neurons).encode(as_prompt(item)).span], torch.device("cpu"))
    scores = score_batch(Attribution(method), neurons, batch)[0]
    chosen = np.zeros(neurons.grid.size, dtype=bool)
    chosen[scores.topk(23).indices.numpy()] = True
    return chosen


def test_the_demo_model_s_sums_are_located_as_by_hand(demo, neurons):
    contrasts = sums(12)
    effects = []
    for method in ("gradient", "activation"):
        found = decouple(demo, neurons, contrasts, by(method))
        assert (found["contrasts"], found["right"]) == (12, 12)
        assert found["answered"] == dict.fromkeys(("base", *ARMS), 1.0)
        effects.append(found["effects"])
        sets = {
            arm: np.array([by_hand(neurons, item, method) for item in items])
            for arm, items in {
                "base": [c.base for c in contrasts],
                **{arm: [c.partners[arm] for c in contrasts] for arm in ARMS},
            }.items()
        }
        for arm in ARMS:  # ranks of nearly equal scores may differ between batches
            told = jaccards(sets["base"], sets[arm]).mean()
            assert found["effects"]["similarity"][arm].mean == pytest.approx(told, abs=0.01)
        assert found["size"] == 23
    assert effects[0] != effects[1]


def test_an_item_is_right_if_greedy_decoding_says_its_answer(demo, neurons):
    contrasts = CONTRASTS["demo/capitals"](25, seed=0)
    items = [item for each in contrasts for item in each.items]
    items.append(
        replace(items[0], answer=chr(ord("A") + (ord(items[0].answer) - ord("A") + 1) % 4))
    )
    asker = FactAnswers(neurons)
    told = {key(item): asker.right(as_prompt(item)) for item in items}
    for item in [*items[:-1:4], items[-1]]:
        prompt = demo.tokenizer(item.prompt, return_tensors="pt")
        said = demo.model.generate(**prompt, max_new_tokens=1, do_sample=False)[0, -1]
        assert told[key(item)] == (demo.tokenizer.decode(said) == item.answer)
    assert not all(told.values())
    found = decouple(demo, neurons, contrasts, BEST)
    right = kept(contrasts, lambda item: told[key(item)])
    assert 0 < found["right"] == len(right) < 25
    assert found["answered"]["base"] == np.mean([told[key(each.base)] for each in contrasts])
    effects = found["effects"]
    assert effects["items"] + effects["undefined"] == found["right"]


def test_a_seed_gives_the_same_tables_and_files_hold_them(demo, neurons):
    told = [plain_value(decouple(demo, neurons, sums(8), BEST, seed=2)) for _ in range(2)]
    assert told[0] == told[1]
    assert json.loads(json.dumps(told[0], allow_nan=False))["effects"]["items"] == 8
    assert str(BEST) == "gradient, the best 1 %"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "units"), [("neurons", 2304), ("tracing", 6), ("circuits", 8812)]
)
def test_items_are_located_as_single_facts_are(demo, neurons, method, units):
    """Each by its own unit; the same item is the same set, and most items have one."""
    contrasts = sums(4)
    items = [item for each in contrasts for item in each.items]
    found = np.stack(list(by(method).sets(demo, neurons, items).values()))
    assert found.shape[1] == -(-units // 8)
    sizes = np.bitwise_count(found).sum(axis=1)
    assert (sizes > 0).mean() > 0.7 and (method != "tracing" or sizes.max() == 1)
    told = decouple(demo, neurons, contrasts, by(method))
    assert told["size"] == sizes.mean()
    assert told["effects"]["items"] + told["effects"]["undefined"] == 4
    assert str(by(method)) == method


@pytest.mark.parametrize("name", CONTRASTS)
def test_every_set_of_contrasts_can_be_drawn(name):
    drawn = CONTRASTS[name](5, seed=1)
    assert drawn == CONTRASTS[name](9, seed=1)[:5]
    assert len(drawn) == 5


def test_contrasts_that_the_model_cannot_do_are_refused(demo, neurons):
    with pytest.raises(BadData, match=r"none of 3 contrasts \(alone: base 0 %, SS 0 %"):
        decouple(demo, neurons, sentiment(3), BEST)
