"""Opened models: of every family that has circuits, in double precision."""

import copy
from dataclasses import replace

import pytest
import torch

from caploc.models.projections import find_projections
from papers.cnl.circuits import PromptPair
from papers.cnl.edges import open_model
from worlds.tiny import tiny

# One token differs; the answers are any two tokens.
PAIR = PromptPair(clean=(3, 9, 17, 20, 8), corrupted=(3, 9, 31, 20, 8), gold=5, other=6)


@pytest.fixture(scope="session")
def pair():
    return PAIR


@pytest.fixture(scope="session")
def loaded(demo):
    """A model of one's own as a loaded one; of the demo model it keeps the tokenizer."""

    def load(model):
        projections, grid = find_projections(model)
        return replace(demo, model=model, projections=projections, grid=grid)

    return load


@pytest.fixture(scope="session")
def opened(loaded):
    """A family's tiny model, opened; changed first where a change is given."""

    def open_family(name, change=None):
        model = copy.deepcopy(tiny(name)).to(torch.float64)
        if change:
            change(model)
        return open_model(loaded(model))

    return open_family
