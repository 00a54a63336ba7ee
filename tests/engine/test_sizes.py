"""What rows take on a large GPU, from configs alone."""

import numpy as np
from transformers import AutoConfig

from caploc.engine.planning import (
    CUDA_SHARE,
    INNER,
    QUERIES,
    RESIDUALS,
    SCORES_ELSEWHERE,
    MemorySizes,
    PlannedRow,
    PlannedWork,
    head_widths,
    plan_batches,
)


def test_latent_attention_keeps_whole_keys_and_values_for_every_head():
    config = AutoConfig.for_model(
        "deepseek_v3", qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=96
    )
    assert head_widths(config) == (128 + 64, 96)
    assert head_widths(AutoConfig.for_model("llama", hidden_size=64, num_attention_heads=4)) == (
        16,
        16,
    )


def test_250_long_rows_run_at_a_time_on_a_gpu_of_80_gigabytes():
    """Llama-3.1-8B in bfloat16, 300 prompts of 800 to 1,300 tokens that share nothing."""
    free, layers, hidden, inner, vocabulary = 68e9, 32, 4096, 14336, 128_256
    sizes = MemorySizes(
        layers=layers,
        heads=32,
        keys=2 * 8 * 128 * 2,
        residual=2 * hidden,
        working=2 * (RESIDUALS * hidden + QUERIES * hidden + INNER * inner),
        scores=32 * SCORES_ELSEWHERE,
        logits=6 * vocabulary,
        memory=int(CUDA_SHARE * free),
        most_rows=1024,
        most_tokens=16384,
    )
    drawn = np.random.default_rng(0)
    prompts = [
        tuple(drawn.integers(10**6, size=n).tolist()) for n in drawn.integers(800, 1300, 300)
    ]
    work = PlannedWork(
        [prompt[:-1] for prompt in prompts],
        [len(prompt) for prompt in prompts],
        256,
        drawn.integers(4, size=300).tolist(),
        [PlannedRow(n, n, n) for n in range(300)],
    )
    slots = plan_batches(work, sizes).slots
    assert slots >= 250 and slots * sizes.keys * layers * (1299 + 256) <= 0.85 * free
