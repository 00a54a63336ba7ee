import numpy as np
import pytest

import models
import plain
from caploc import designs
from caploc.tasks.task import Generate, Scored, options_json
from contenders import Batched, Prefixed
from workloads import Texts, crossed

SHAPE = models.Shape(512, 32, 64, layers=2, heads=4, groups=2, width=8)
PREFIX, EXAMPLES, BATCH = 40, 5, 2
STOPS = {"one character": ["."], "several characters": ["a b"]}


@pytest.fixture(scope="module")
def loaded():
    return models.around("tiny", models.random_model(SHAPE))


@pytest.fixture(scope="module")
def masks(loaded):
    intact = np.zeros((1, loaded.grid.size), dtype=bool)
    return np.concatenate([intact, designs.singles(loaded.grid.size)[:3]])


def generations(loaded, masks, stops):
    texts = Texts(loaded)
    prefix = texts.words(PREFIX)
    options = options_json({"until": stops, "max_gen_toks": 24, "do_sample": False})
    prompts = [f"{prefix} {texts.words(3, 12)}" for _ in range(EXAMPLES)]
    return crossed(masks, [(Generate(prompt, options),) for prompt in prompts])


def choices(loaded, masks, endings):
    texts = Texts(loaded)
    prefix = texts.words(PREFIX)
    rows = [
        texts.choices(f"{prefix} {texts.words(3, 12)}", [texts.words(*endings) for _ in range(4)])
        for _ in range(EXAMPLES)
    ]
    return crossed(masks, rows)


def both(loaded, asks):
    """The runs of the hook loop without and with the prefix cache."""
    loop = Batched(loaded, one_mask=True, batch=BATCH)
    return loop.run(asks), Prefixed(loaded, batch=BATCH).run(asks)


def assert_near(run, other):
    """The same keys, the same choices, and log-probabilities that differ by rounding."""
    assert run.responses.keys() == other.responses.keys()
    for key, said in run.responses.items():
        expected = other.responses[key]
        assert isinstance(said, Scored)
        assert said.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert (said.greedy, said.tokens) == (expected.greedy, expected.tokens)


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
def test_the_prefix_cache_changes_no_text(loaded, masks, stops):
    loop, prefixed = both(loaded, generations(loaded, masks, stops))
    assert prefixed.responses == loop.responses
    said = [[loop.responses[m * EXAMPLES + e, 0] for e in range(EXAMPLES)] for m in range(4)]
    assert all(said[0] != others for others in said[1:])  # the masks matter
    assert len({len(answer.said) for answer in loop.responses.values()}) > 1  # and some stop early


@pytest.mark.parametrize("endings", [(1, 1), (2, 5)], ids=["one token", "several tokens"])
def test_the_prefix_cache_changes_no_score(loaded, masks, endings):
    loop, prefixed = both(loaded, choices(loaded, masks, endings))
    assert_near(prefixed, loop)


def test_the_prefix_is_read_once_for_each_mask_of_each_run(loaded, masks, monkeypatch):
    read, prefilled = [], plain.prefilled
    monkeypatch.setattr(
        plain, "prefilled", lambda model, tokens: (read.append(tokens), prefilled(model, tokens))[1]
    )
    asks = generations(loaded, masks, ["."])
    loop, prefixed = both(loaded, asks)
    assert len(read) == len(masks) and {len(tokens) for tokens in read} == {PREFIX}
    saved = PREFIX * len(masks) * (EXAMPLES - 1)
    assert loop.forward_tokens - prefixed.forward_tokens == saved
    Prefixed(loaded).run(asks)
    assert len(read) == 2 * len(masks)
