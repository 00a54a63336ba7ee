"""A row's answer is its own, whatever stands beside it, was asked before, or comes from a cache."""

import random

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.tasks.task import LogLikelihood
from worlds.alone import around, responses, words
from worlds.tiny import GROUPED, build, random_tokens, tiny

BACKENDS = pytest.mark.parametrize("backend", ["packed", "plain"])


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
