"""Rows measured in worlds of known truth, for every estimator's tests."""

import numpy as np
from scipy.special import expit

from caploc import designs
from caploc.recovery import Measurements
from caploc.search import Plan
from worlds.simulate import NOISE, World


def answered(world, plan, ask=World.outcomes):
    """The plan's rows as the world answers them."""
    outcomes = ask(world, plan.masks[plan.mask], plan.example)
    return Measurements(plan.masks, plan.mask, plan.example, outcomes)


def intact_of(world, examples, ask=World.outcomes):
    """Outcomes of examples with no head knocked out."""
    empty = np.zeros((len(examples), world.heads), dtype=bool)
    outcomes = ask(world, empty, np.array(examples))
    return dict(zip(examples, outcomes.tolist(), strict=True))


def crossed(world, masks, examples, ask=World.outcomes):
    """Every mask on every example."""
    plan = Plan.crossed("task", masks, examples)
    return answered(world, plan, ask), intact_of(world, examples, ask)


def effects_on(world, examples):
    """What each head alone takes from the expected accuracy of these very examples."""
    masks = np.vstack([np.zeros((1, world.heads), dtype=bool), designs.singles(world.heads)])
    plan = Plan.crossed("task", masks, examples)
    chance = expit(world.margins(plan.masks[plan.mask], plan.example) / NOISE)
    intact, *alone = chance.reshape(len(masks), -1).mean(axis=1)
    return np.array(alone) - intact


def one_score_a_mask(masks, scores):
    """One example per mask, whose outcome is the mask's score."""
    count = len(masks)
    zeros = np.zeros(count, dtype=int)
    return Measurements(masks, np.arange(count), zeros, np.asarray(scores, dtype=float))
