"""Running out of memory loses no row."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.errors import OutOfMemory
from caploc.tasks.task import Generate, Generated, LogLikelihood, options_json
from worlds.alone import responses

pytestmark = pytest.mark.slow  # memory is let run out again and again

MEGABYTE = 2**20
PREFIX = "the old king went to the castle and the pirate sang in the rain. " * 3
OWN = ["47+38=", "sort 72941 and 58034 and 61935:", "the moon over the night and the sun:", "6*7="]
LONG = "and the parrot said that the rum was gone, "


def masks_of(grid, count):
    drawn = np.random.default_rng(0).random((count, grid.size)) < 0.05
    drawn[0] = False
    return drawn


def texts(masks, prefix=PREFIX, limit=8):
    """Texts to be said, each prompt under each mask."""
    options = options_json({"until": ["\n"], "max_gen_toks": limit, "do_sample": False})
    pairs = [(mask, prefix + LONG[: 9 * n] + own) for mask in masks for n, own in enumerate(OWN)]
    return [Ask((n, 0), Generate(prompt, options), mask) for n, (mask, prompt) in enumerate(pairs)]


def few_of_many(masks):
    """One text for each mask, each mask with a reading of the prefix to itself."""
    return texts(masks)[:: len(OWN) + 1]


def choices(masks):
    """Long choices, two for each question."""
    return [
        Ask(
            (len(OWN) * n + m, part),
            LogLikelihood(PREFIX + own, f" {PREFIX[part : 100 + m]}"),
            mask,
        )
        for n, mask in enumerate(masks)
        for m, own in enumerate(OWN)
        for part in range(2)
    ]


CASES = {
    "a prefix": lambda masks: texts(masks[:3]),
    "no prefix": lambda masks: texts(masks[:3], prefix=""),
    "a prefix for each row": few_of_many,
    "choices": lambda masks: choices(masks[:3]),
}
# Tokens that a pass must be able to have: of the prefix, or of the longest row after it.
LEAST = {"a prefix": 210, "no prefix": 60, "a prefix for each row": 210, "choices": 260}
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def truth(loaded):
    """Answers without a limit."""
    masks = masks_of(loaded.grid, 16)
    return {case: responses(BatchEngine(loaded), make(masks)) for case, make in CASES.items()}


def same(got, expected):
    for key, response in expected.items():
        if isinstance(response, Generated):
            assert got[key] == response
        else:
            assert got[key].logprob == pytest.approx(response.logprob, abs=1e-3)
            assert got[key].tokens == response.tokens


@pytest.fixture
def crowded(monkeypatch):
    """Let a pass of more than so many tokens run out of memory; returns how often it did."""
    forward, failed = PackedModel.forward, []

    def limit(most):
        def crowding(packed, one):
            if len(one.tokens) > most:
                failed.append(len(one.tokens))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return forward(packed, one)

        monkeypatch.setattr(PackedModel, "forward", crowding)
        return failed

    return limit


@each_case
def test_running_out_of_memory_loses_no_row(loaded, truth, crowded, case):
    engine = BatchEngine(loaded, memory=512 * MEGABYTE)
    failed = crowded(LEAST[case])
    same(responses(engine, CASES[case](masks_of(loaded.grid, 16))), truth[case])
    assert failed


def test_a_row_that_fits_nowhere_is_one_sentence_and_the_engine_lives_on(loaded, truth, crowded):
    engine = BatchEngine(loaded, memory=64 * MEGABYTE)
    masks = masks_of(loaded.grid, 16)
    crowded(10)
    for case in ("no prefix", "choices"):
        with pytest.raises(OutOfMemory, match="Not even one row fits") as raised:
            responses(engine, CASES[case](masks))
        assert "\n" not in str(raised.value) and str(raised.value).endswith(".")
    crowded(LEAST["choices"])
    same(responses(engine, CASES["no prefix"](masks)), truth["no prefix"])
