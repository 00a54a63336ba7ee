import json

import numpy as np
import pytest

import draws
from caploc import designs
from caploc.search import METHODS, Plan

NAME = "small-addition"


@pytest.fixture(scope="module")
def stored():
    return draws.Stored.read(NAME)


def test_the_pages_say_what_is_stored():
    kept = json.loads(draws.OUT.read_text())
    assert draws.OUT.with_suffix(".md").read_text() == draws.page(kept)
    assert draws.readme(kept) in draws.README.read_text()


def test_answers_are_those_stored_and_their_mean_is_the_truth(stored):
    heads = len(stored.kept)
    masks = np.concatenate([np.zeros((1, heads), dtype=bool), designs.singles(heads)])
    gaps = []
    for seed in range(30):
        plan = Plan.crossed(draws.PROBE, masks, range(draws.NUMBERED))
        outcome = draws.Answers(stored, seed)(plan).outcome.reshape(len(masks), -1)
        gaps.append((outcome[1:] - outcome[0]).mean(axis=1) - stored.truth)
    assert np.abs(np.mean(gaps, axis=0)).max() < 0.02


def test_masks_of_several_heads_are_not_answered(stored):
    both = np.zeros((1, len(stored.kept)), dtype=bool)
    both[0, :2] = True
    with pytest.raises(AssertionError, match="single heads"):
        draws.Answers(stored, 0)(Plan.crossed(draws.PROBE, both, [0]))


def test_the_default_search_finds_the_heads_of_an_always_right_model(stored):
    run = draws.Method(METHODS["scan"].search).run(stored, 0)
    assert run.recall >= 0.8 and run.strong[0] == run.strong[1] > 0
    inside, count = run.held["all"]
    assert run.held["named"][1] == len(run.chosen) and inside >= count - 2
