import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

import models
import outside
import pairs
from outside import SHARES, Subject, areas, attribution, exact, judge

SHAPE = models.Shape(96, 32, 64, layers=2, heads=4, groups=2, width=8)
EXAMPLES, LENGTH = 5, 7


@pytest.fixture(scope="module")
def subject():
    loaded = models.around("tiny", models.random_model(SHAPE))
    rng = random.Random(0)
    drawn = [
        pairs.Pair(*([rng.randrange(3, 96) for _ in range(LENGTH + n % 2)] for _ in "ab"), 5, 7)
        for n in range(EXAMPLES)
    ]
    made = Subject(loaded, drawn)
    made.prepare()
    return made


def test_with_no_head_patched_or_nothing_to_patch_logits_are_the_clean_prompts(subject):
    heads = subject.loaded.grid.size
    (clean,) = subject.crossed(np.zeros((1, heads), dtype=bool), range(EXAMPLES))
    for number, pair in enumerate(subject.pairs):
        logits = subject.loaded.model(torch.tensor([pair.clean])).logits[0, -1]
        assert clean[number] == pytest.approx(float(logits[5] - logits[7]), abs=1e-4)
    # prompts that differ in nothing: whatever is patched, nothing changes
    same = Subject(subject.loaded, [replace(p, corrupted=p.clean) for p in subject.pairs])
    same.prepare()
    (patched,) = same.crossed(np.ones((1, heads), dtype=bool), range(EXAMPLES))
    assert patched == pytest.approx(clean, abs=1e-4)


def test_a_head_patched_alone_is_as_by_a_hook_of_ones_own(subject):
    got = subject.crossed(np.eye(8, dtype=bool), range(EXAMPLES))
    width = SHAPE.width
    for column in range(8):
        layer, head = divmod(column, 4)
        part = slice(head * width, (head + 1) * width)
        for number, pair in enumerate(subject.pairs):

            def patch(_, args, number=number, layer=layer, part=part):
                new = args[0].clone()
                new[0, :, part] = subject.sources[number][layer][:, part]
                return (new,)

            handle = subject.projections[layer].register_forward_pre_hook(patch)
            logits = subject.loaded.model(torch.tensor([pair.clean])).logits[0, -1]
            handle.remove()
            assert got[column, number] == pytest.approx(float(logits[5] - logits[7]), abs=1e-4)


def test_edges_with_their_signs_sum_to_attribution_of_nodes(subject):
    """What a head writes is read by later blocks and the logits, and by nothing else."""
    layers = list(subject.decoder.layers)
    readers = [m for each in layers for m in (each.input_layernorm, each.post_attention_layernorm)]
    readers.append(subject.decoder.norm)
    by_edge = outside.gradients(subject, 0, readers, outside.STEPS)
    by_node = outside.gradients(subject, 0, subject.projections, outside.STEPS)
    for layer in range(len(layers)):
        later = torch.cat(by_edge[2 * layer + 1 :]).sum(dim=0)
        expected = later @ subject.projections[layer].weight
        assert torch.allclose(by_node[layer][0], expected, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_attribution_is_exact_where_the_model_is_linear(subject, monkeypatch, steps):
    """The last layer's heads reach the logits through a block and a norm: small changes only."""
    near = Subject(subject.loaded, subject.pairs)
    near.prepare()
    for number in near.sources:
        with torch.no_grad():
            clean = near.handed_on(torch.tensor([near.pairs[number].clean]))
        near.sources[number] = [
            old[0] + 1e-3 * (new - old[0])
            for new, old in zip(near.sources[number], clean, strict=True)
        ]
    monkeypatch.setattr(outside, "BY_GRADIENT", EXAMPLES)
    monkeypatch.setattr(outside, "EXACT", EXAMPLES)
    if steps == 1:
        assert attribution(near, 0) == pytest.approx(exact(near, 0), rel=0.05, abs=1e-5)
    else:
        assert np.isfinite(attribution(near, 0, steps=steps)).all()


def test_heads_that_are_kept_first_are_those_that_score_highest(subject):
    scores = np.array([0.0, -3.0, 5.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    none, *_, half, whole = judge(subject, scores)
    mask = ~np.isin(np.arange(8), [2, 3, 0, 4])
    assert half == pytest.approx(subject.crossed(mask[None], range(EXAMPLES))[0], abs=1e-3)
    every = np.zeros((1, 8), dtype=bool)
    assert whole == pytest.approx(subject.crossed(every, range(EXAMPLES))[0], abs=1e-3)
    assert none == pytest.approx(subject.crossed(~every, range(EXAMPLES))[0], abs=1e-3)


def test_areas_of_a_perfect_and_of_a_straight_circuit():
    perfect = np.array([0.0, *[2.0] * len(SHARES)])[:, None]
    assert areas(perfect) == pytest.approx((SHARES[-1] - SHARES[0], 0.0))
    straight = np.array([0.0, *SHARES])[:, None]
    cpr, cmd = areas(straight)
    assert cpr == pytest.approx((1 - SHARES[0] ** 2) / 2)
    assert cmd == pytest.approx((1 - SHARES[0]) ** 2 / 2)


@pytest.mark.parametrize("task", pairs.TASKS)
def test_pairs_line_up_and_call_for_unlike_tokens(task):
    def characters(text, add_special_tokens=True):
        return type("Ids", (), {"input_ids": [ord(c) for c in text]})

    drawn = list(islice(pairs.draw(task, characters), 40))
    for pair in drawn:
        assert len(pair.clean) == len(pair.corrupted) and pair.clean != pair.corrupted
        assert pair.answer != pair.other
    assert len({tuple(pair.clean) for pair in drawn}) == 40
