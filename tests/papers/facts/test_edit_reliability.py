"""Edits at every layer against what must be so, and against planted profiles."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.ledger import Cache
from caploc.neurons.stats import plain_value
from papers.cnl.editing import Descent, Editor, covariances, edit_reliability
from worlds.facts import demo_facts, demo_texts

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("statement", 4)
LAYERS = (0, 2, 5)


@dataclass
class Planted:
    """A profile that peaks in one layer, and no profile for a subject."""

    layer: int
    never: str = ""
    name = "planted"
    units = "layers"
    grid: ClassVar = None

    def locate(self, prompt):
        if prompt.subject == self.never:
            return None
        return -np.abs(np.arange(6.0) - self.layer + 0.25)


@pytest.fixture(scope="module")
def editor(neurons):
    return Editor(neurons, covariances(neurons, demo_texts(25), LAYERS), descent=Descent(steps=12))


@pytest.fixture(scope="module")
def lowest(neurons, editor):
    return edit_reliability(FACTS, editor=editor, profiler=Planted(0), seed=0)


@pytest.fixture(scope="module")
def highest(neurons, editor):
    return edit_reliability(
        FACTS, editor=editor, profiler=Planted(5, FACTS[0].prompt.subject), seed=0
    )


def test_a_fact_that_was_edited_is_not_edited_again(neurons, editor, tmp_path):
    measured = []

    def edit(facts):
        cache = Cache(tmp_path / "ledger")

        def recall(what, measure):
            return cache.recall({"what": what}, lambda: measured.append(what) or measure())

        told = {"editor": editor, "profiler": Planted(0), "seed": 0, "recall": recall}
        return edit_reliability(facts, **told)

    edit(FACTS[:2])
    assert len(set(measured)) == 2
    again = edit(FACTS[:3])
    assert len(set(measured)) == len(measured) == 3
    alone = edit_reliability(FACTS[:3], editor=editor, profiler=Planted(0), seed=0)
    assert plain_value(again) == plain_value(alone)


def test_the_last_layer_cannot_be_edited_at_the_subject(lowest):
    """What it writes there no later position reads."""
    last = lowest["layers"][-1]
    assert last["layer"] == 5
    assert (last["efficacy"].mean, last["generalization"].mean, last["score"].mean) == (0, 0, 0)
    assert last["specificity"].mean == 1.0


def test_a_tracer_that_points_where_edits_fail_is_found_out(lowest, highest):
    assert highest["traced"] == [5] * 3
    assert highest["hit"].mean < highest["hit_by_chance"].mean


def test_summaries_are_those_of_the_tables(lowest):
    assert lowest["scores"].shape == lowest["effects"].shape == (4, 3)
    best = lowest["scores"].max(axis=1)
    assert lowest["hit"].mean == (lowest["scores"][:, 0] == best).mean()
    assert [layer["score"].mean for layer in lowest["layers"]] == pytest.approx(
        lowest["scores"].mean(axis=0)
    )
    json.dumps(plain_value(lowest), allow_nan=False)


def test_facts_that_cannot_be_used_are_counted(neurons, editor, lowest, highest):
    assert (lowest["facts"], lowest["skipped"]) == (4, 0)
    assert (highest["facts"], highest["skipped"]) == (3, 1)  # one has no profile
    bare = [replace(FACTS[0], neighbours=()), replace(FACTS[1], rewrites=())]
    with pytest.raises(BadData, match="None of the 2 facts can be edited"):
        edit_reliability(bare, editor=editor, profiler=Planted(0), seed=0)
