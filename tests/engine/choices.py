"""Choices under masks of low and high layers are scored as one row at a time would."""

import numpy as np
import pytest

from caploc.engine.api import Ask
from caploc.tasks.task import LogLikelihood
from worlds.alone import responses, scored, words
from worlds.tiny import random_tokens

LENGTHS = (9, 14, 14, 6)
ENDINGS = ([5, 6, 7], [5, 8], [40])


def masks_of(grid):
    """None, heads of the first layer, of the last, and of both."""
    drawn = np.zeros((4, grid.size), dtype=bool)
    drawn[[1, 3], 0] = drawn[[2, 3], -1] = True
    return drawn


def prompts():
    rows = random_tokens(len(LENGTHS), max(LENGTHS)).tolist()
    return [row[:length] for row, length in zip(rows, LENGTHS, strict=True)]


def choices(masks):
    rows = enumerate((mask, prompt) for mask in masks for prompt in prompts())
    return [
        Ask((row, n), LogLikelihood(words(prompt), f" {words(ending)}"), mask)
        for row, (mask, prompt) in rows
        for n, ending in enumerate(ENDINGS)
    ]


def agree(loaded, engine):
    """All choices are scored as one row at a time would."""
    asks, texts = choices(masks_of(loaded.grid)), prompts()
    got = responses(engine, asks)
    for ask in asks:
        row, ending = ask.key
        truth, _ = scored(loaded, texts[row % len(texts)], ENDINGS[ending], ask.knocked_out)
        assert got[ask.key].logprob == pytest.approx(truth, rel=1e-5, abs=1e-4)
