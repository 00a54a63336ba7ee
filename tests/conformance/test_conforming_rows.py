"""A row's answer is its own, whatever stands beside it, was asked before, or comes from a cache."""

import random

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import around, responses, said, scored, under, word_tokenizer, words
from worlds.tiny import GROUPED, build, random_tokens, tiny

BACKENDS = pytest.mark.parametrize("backend", ["packed", "plain"])


def texts(limit):
    return options_json({"until": [], "max_gen_toks": limit, "do_sample": False})


def spoken(tokens):
    """Up to the end; padding is no word of any text."""
    tokens = tokens[: tokens.index(1) + 1] if 1 in tokens else tokens
    return words(token for token in tokens if token > 1)


@BACKENDS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "opt", "qwen2"])
@torch.no_grad()
def test_forty_tokens_after_prompts_of_unlike_lengths_are_those_of_each_prompt_alone(
    name, side, backend
):
    """Elsewhere a batch that writes text attends to its padding.

    https://github.com/TransformerLensOrg/TransformerLens/issues/1005
    """
    tokenizer = word_tokenizer()
    tokenizer.padding_side = side
    loaded = around(tiny(name), tokenizer)
    prompts = [tokens[: 1 + 2 * n] for n, tokens in enumerate(random_tokens(6, 11).tolist())]
    masks = np.zeros((2, loaded.grid.size), dtype=bool)
    masks[1, [1, 6]] = True
    pairs = [(mask, prompt) for prompt in prompts for mask in masks]
    asks = [Ask((n, 0), Generate(words(p), texts(40)), mask) for n, (mask, p) in enumerate(pairs)]
    got = responses(BatchEngine(loaded, backend=backend), asks)
    for n, (mask, prompt) in enumerate(pairs):
        assert spoken([int(w[1:]) for w in got[n, 0].text.split()]) == spoken(
            said(loaded, prompt, mask, 40)
        )


@BACKENDS
@torch.no_grad()
def test_of_64_requests_each_under_its_own_mask_every_answer_is_that_of_its_own(backend):
    """Elsewhere the values of one request come back under the label of another.

    https://github.com/ProjectDMX/DMI/issues/67
    """
    loaded = around(build("llama", GROUPED | {"num_hidden_layers": 16}))
    draw = random.Random(0)
    prompts = [tokens[: draw.randint(2, 12)] for tokens in random_tokens(64, 12).tolist()]
    asks = [
        Ask((n, 0), LogLikelihood(words(prompt), " w05 w07"), np.arange(64) == n)
        for n, prompt in enumerate(prompts)
    ]
    draw.shuffle(asks)
    got = responses(BatchEngine(loaded, backend=backend), asks)
    for ask in asks:
        n = ask.key[0]
        expected = scored(loaded, prompts[n], [5, 7], ask.knocked_out)[0]
        assert got[n, 0].logprob == pytest.approx(expected, abs=1e-4)


@BACKENDS
def test_a_prompt_asked_again_under_another_mask_is_answered_as_by_a_fresh_engine(backend):
    """Elsewhere tokens from a prefix cache are never shown to the hook that should edit them.

    https://github.com/ndif-team/nnsight/pull/662
    """
    loaded, prompt = around(tiny("llama")), words(random_tokens(1, 30)[0].tolist())
    masks = np.zeros((3, loaded.grid.size), dtype=bool)
    masks[0, [0, 5]] = masks[1, 2:4] = True
    kinds = (Generate(prompt, texts(6)), LogLikelihood(prompt, " w05 w07"))
    asks = [[Ask((n, part), kind, mask) for part, kind in enumerate(kinds)]
            for n, mask in enumerate(masks)]  # fmt: skip
    one = BatchEngine(loaded, backend=backend)
    kept = {key: each for part in asks for key, each in responses(one, part).items()}
    fresh = {
        key: each
        for part in asks
        for key, each in responses(BatchEngine(loaded, backend=backend), part).items()
    }
    for key, response in kept.items():
        if key[1]:
            assert response.logprob == pytest.approx(fresh[key].logprob, abs=1e-4)
        else:
            assert response.text == fresh[key].text
    assert len({round(kept[n, 1].logprob, 3) for n in range(3)}) == 3


@BACKENDS
@pytest.mark.parametrize(
    ("name", "length"),
    [("llama", 9), ("gpt2", 9), ("qwen3, wide heads", 9),
     ("gemma4_text, layers of unlike heads", 20),
     ("gemma3_text", 4), ("mistral", 4), ("gpt_oss", 4)],
)  # fmt: skip
@torch.no_grad()
def test_text_with_kept_keys_is_that_without_under_twenty_masks(name, length, backend):
    """Elsewhere the cache was not handed on while decoding, or the cut acts on the prompt alone.

    https://github.com/CR400AF-A/SparseMM/issues/10 and https://github.com/princeton-pli/QRHead/issues/6

    The last four pass the end of a window while they write.
    """
    if name in ("gemma3_text", "mistral", "gpt_oss") and backend == "packed":
        pytest.skip("their windows are read by the plain engine")
    loaded, prompt = around(tiny(name)), random_tokens(1, length)[0].tolist()
    masks = np.random.default_rng(0).random((20, loaded.grid.size)) < 0.4
    asks = [Ask((n, 0), Generate(words(prompt), texts(8)), mask) for n, mask in enumerate(masks)]
    got = responses(BatchEngine(loaded, backend=backend), asks)
    for n, mask in enumerate(masks):
        tokens = list(prompt)
        with under(loaded, mask):
            for _ in range(8):
                logits = loaded.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
                tokens.append(int(logits.argmax()))
        assert spoken([int(w[1:]) for w in got[n, 0].text.split()]) == spoken(tokens[length:])


@BACKENDS
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_short_rows_beside_long_ones_are_numbers_in_half_precision(name, backend):
    """Elsewhere a row of which everything is masked turns into NaN in float16.

    https://github.com/unslothai/unsloth/issues/9708
    """
    loaded = around(tiny(name, torch.float16))
    none = np.zeros(loaded.grid.size, dtype=bool)
    texts = random_tokens(3, 40).tolist()
    prompts = [tokens[:n] for n, tokens in zip((1, 2, 40), texts, strict=True)]
    asks = [
        Ask((n, part), LogLikelihood(words(prompt), " w05"), mask)
        for n, prompt in enumerate(prompts)
        for part, mask in enumerate((none, ~none))
    ]
    got = responses(BatchEngine(loaded, backend=backend), asks)
    assert all(np.isfinite(each.logprob) for each in got.values())


WINDOW = 5


WIDE = {"head_dim": 12}
CHOSEN = {"use_sliding_window": True, "max_window_layers": 0}
WINDOWED = {
    "mistral": {},
    "mixtral": {"num_local_experts": 4},
    "starcoder2": {},
    "phi3": {},
    "qwen2": CHOSEN | {"layer_types": ["sliding_attention"]},
    "qwen3": CHOSEN | {"layer_types": ["sliding_attention"], "head_dim": 16},
    "gemma2": WIDE | {"layer_types": ["sliding_attention"]},
    "gemma3_text": WIDE | {"layer_types": ["sliding_attention"]},
    "gpt_oss": {
        "layer_types": ["sliding_attention"],
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "cohere2": {"layer_types": ["sliding_attention"], "logit_scale": 1.0},
    "olmo3": {"layer_types": ["sliding_attention"]},
    "exaone4": {"layer_types": ["sliding_attention"]},
}


@pytest.mark.parametrize("name", [n for n in WINDOWED if n in CONFIG_MAPPING])
def test_a_window_of_five_reads_five_tokens(name):
    """Elsewhere windows are one token too wide, or a batch of mixed lengths forgets them.

    https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/2656 and
    https://github.com/huggingface/transformers/issues/41184

    With one layer, the first of the `count` tokens read moves the answer if the window holds it.
    """
    sizes = GROUPED | {"num_hidden_layers": 1, "sliding_window": WINDOW} | WINDOWED[name]
    loaded = around(build(name, sizes))
    none = np.zeros(loaded.grid.size, dtype=bool)
    asks = [
        Ask(
            (count, first), LogLikelihood(words([10 + first, *range(20, 19 + count)]), " w05"), none
        )
        for count in range(2, 3 * WINDOW)
        for first in range(2)
    ]
    random.Random(0).shuffle(asks)
    got = responses(BatchEngine(loaded), asks)
    for count in range(2, 3 * WINDOW):
        moved = abs(got[count, 0].logprob - got[count, 1].logprob)
        assert (moved > 1e-4) == (count <= WINDOW), count
