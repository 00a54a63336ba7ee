"""Rows of every causal language model that transformers ships, against zeroed weights.

Each family is a tiny random model. Prompts of unlike lengths under shuffled masks go into one
engine; each row is held against plain transformers on a copy of the model in which the weights that
read its heads are zero, one text at a time: a pass that reads a text at once, and `generate`, which
reads single tokens from kept keys. In nemotron_h these two differ, intact or cut, and rows differ
as they do: a text is that of `generate`, a log-probability that of the pass.
"""

import random

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.given import proved
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import responses, word_tokenizer, words, zeroed_copy
from worlds.autoconfig import OTHERS, build_other
from worlds.tiny import FAMILIES, VOCABULARY, tiny

pytestmark = pytest.mark.slow
LENGTHS, NEW, PAD, END = (3, 9, 6), 5, 0, 1
TEXT, ODDS = 0, 1  # what is asked of a prompt: the last part of an ask's number


def written(model, prompt):
    """What plain `generate` writes after one prompt, up to the end."""
    ids = torch.tensor([prompt])
    said = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
    )[0, len(prompt) :].tolist()
    said = said[: said.index(END)] if END in said else said
    return [token for token in said if token != PAD]  # which no text shows


def likelihood(model, prompt, answer):
    """The log-probability of an answer in one plain pass."""
    ids = torch.tensor([prompt + answer])
    read = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    logprobs = read.logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum())


def draw(grid):
    """Prompts of unlike lengths with an answer to each, and masks: none, half of the heads, one."""
    drawn = torch.Generator().manual_seed(5)
    texts = torch.randint(2, VOCABULARY, (len(LENGTHS), max(LENGTHS) + 2), generator=drawn).tolist()
    prompts = [(text[:n], text[-2:]) for text, n in zip(texts, LENGTHS, strict=True)]
    masks = np.zeros((3, grid.size), dtype=bool)
    masks[1] = np.random.default_rng(1).permutation(grid.size) % 2 == 0
    masks[2, -1] = True
    return prompts, masks


@pytest.mark.parametrize("name", (*FAMILIES, *OTHERS))
@torch.no_grad()
def test_rows_of_a_family_are_those_of_zeroed_weights(name):
    model = tiny(name) if name in FAMILIES else build_other(name)
    loaded = proved(model, word_tokenizer())
    prompts, masks = draw(loaded.grid)
    options = options_json({"until": [], "max_gen_toks": NEW, "do_sample": False})
    asks = [
        Ask((m, 2 * n + kind), request, mask)
        for m, mask in enumerate(masks)
        for n, (prompt, answer) in enumerate(prompts)
        for kind, request in (
            (TEXT, Generate(words(prompt), options)),
            (ODDS, LogLikelihood(words(prompt), " " + words(answer))),
        )
    ]
    random.Random(0).shuffle(asks)
    found = responses(BatchEngine(loaded), asks)
    for m, mask in enumerate(masks):
        model = zeroed_copy(loaded.model, mask)
        model.generation_config = GenerationConfig(pad_token_id=PAD)  # BART's kin force an end
        for n, (prompt, answer) in enumerate(prompts):
            assert found[m, 2 * n + TEXT].text.split() == words(written(model, prompt)).split()
            odds = likelihood(model, prompt, answer)
            assert found[m, 2 * n + ODDS].logprob == pytest.approx(odds, rel=1e-4, abs=2e-4)
    moved = found[0, 2 + ODDS].logprob - found[1, 2 + ODDS].logprob
    assert abs(moved) > 1e-3, "the cut does not show"
