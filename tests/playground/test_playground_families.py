"""Every family of models: answers as `generate` gives them, odds as plain passes do, attention."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from caploc.components import Head
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import TokenizedPrompt
from caploc.errors import BadOption
from caploc.models.attention import pattern
from caploc.playground.answers import SIDES, PairedGeneration

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "engine"), str(TESTS / "models")]  # for `import alone`, `import tiny`
from alone import around, said, under  # noqa: E402
from tiny import FAMILIES, random_tokens, tiny  # noqa: E402

pytestmark = pytest.mark.slow
LIMIT = 6
# Made with other attention, they cannot change it: two then let a token see what follows.
BLIND = frozenset({"falcon, one key-value head", "falcon, grouped", "falcon, alibi"})
# State spaces are scanned in one pass and stepped in another, which rounds otherwise.
NEAR = {"nemotron_h, attention beside state spaces": 1e-2}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_and_looks_as_it_does_by_itself(name):
    loaded = around(tiny(name))
    engine = BatchEngine(loaded)
    tokens = random_tokens(1, 9)[0].tolist()
    columns = range(0, loaded.grid.size, 3)
    heads = tuple(loaded.grid.component(column) for column in columns)
    cut, none = loaded.grid.mask(heads), np.zeros(loaded.grid.size, dtype=bool)
    prompt = TokenizedPrompt(tuple(tokens), (), LIMIT, "{}")
    pair = PairedGeneration(engine, dict.fromkeys(SIDES, prompt), heads)
    events = [event for event in pair.events() if event["event"] == "token"]
    for side, mask in (("intact", none), ("knocked_out", cut)):
        answer = [event for event in events if event["side"] == side]
        assert [event["token"] for event in answer] == said(loaded, tokens, mask, LIMIT)
        text = torch.tensor([[*tokens, *(event["token"] for event in answer)]])
        for reader, hidden in (("intact", none), ("knocked_out", cut)):
            with torch.inference_mode(), under(loaded, hidden):
                logits = loaded.model(text).logits[0, len(tokens) - 1 : -1].float()
            truth = torch.log_softmax(logits, -1).gather(1, text[0, len(tokens) :, None])[:, 0]
            assert [event[reader] for event in answer] == pytest.approx(
                truth.tolist(), abs=NEAR.get(name, 1e-3)
            )
    looks(name, loaded, tokens, heads[0])


def looks(name: str, loaded, tokens: list[int], head: Head) -> None:
    """The head's pattern is a distribution over what came before, and the model's own."""
    if name in BLIND:
        with pytest.raises(BadOption, match="computes something else"):
            pattern(loaded, tokens, head)
        return
    found = pattern(loaded, tokens, head)
    # some families have a sink beside the tokens, so that rows may sum to less than one
    assert bool((found.sum(dim=1) <= 1 + 1e-5).all()) and bool((found >= 0).all())
    assert torch.equal(found.triu(1), torch.zeros_like(found))
