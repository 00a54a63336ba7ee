"""Rows of every causal language model that transformers ships, against zeroed weights.

Each family is a tiny random model. Prompts of unlike lengths under shuffled masks go into one
engine; each row is held against plain transformers on a copy of the model in which the weights that
read its heads are zero, one text at a time: a pass that reads a text at once, and `generate`, which
reads single tokens from kept keys. `slow` runs all families, the default suite a dozen.

In all families but those of `DIFFER` `generate` gives the logits of a pass without a cache. There
it does not, intact or cut, and rows differ as it does: a text is that of `generate`, a
log-probability that of the pass.
"""

import random

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.given import proved
from caploc.models.proof import logits_of, step_logits
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import responses, word_tokenizer, words, zeroed_copy
from worlds.autoconfig import OTHERS, build_other
from worlds.tiny import FAMILIES, VOCABULARY, tiny

DEFAULT = (
    "llama",
    "mistral",
    "mixtral",
    "qwen3, wide heads",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "falcon, alibi",
    "opt",
    "deepseek_v3",
    "lfm2, attention in one layer of three",
    "qwen3_next, gated attention",
)
DIFFER = frozenset({"nemotron_h, attention beside state spaces"})
LENGTHS, NEW, PAD, END = (3, 9, 6), 5, 0, 1
TEXT, ODDS = 0, 1  # what is asked of a prompt: the last part of an ask's number


def model_of(name):
    return tiny(name) if name in FAMILIES else build_other(name)


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


def check_rows(name):
    loaded = proved(model_of(name), word_tokenizer())
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


@pytest.mark.parametrize("name", DEFAULT)
@torch.no_grad()
def test_rows_of_a_family_are_those_of_zeroed_weights(name):
    check_rows(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*FAMILIES, *OTHERS) if n not in DEFAULT])
@torch.no_grad()
def test_rows_of_all_other_families_are_those_of_zeroed_weights(name):
    check_rows(name)


def differs(name):
    """Tell whether the intact model's `generate` gives other logits than a pass without cache."""
    model = model_of(name)
    tokens = torch.randint(2, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(2))
    steps = step_logits(model, tokens)
    return not torch.allclose(logits_of(model, tokens)[:, -steps.shape[1] :], steps, atol=1e-3)


@pytest.mark.parametrize("name", DEFAULT)
@torch.no_grad()
def test_generate_agrees_with_a_pass_without_cache_but_where_it_is_written(name):
    assert differs(name) == (name in DIFFER)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*FAMILIES, *OTHERS) if n not in DEFAULT])
@torch.no_grad()
def test_generate_agrees_in_all_other_families(name):
    assert differs(name) == (name in DIFFER)
