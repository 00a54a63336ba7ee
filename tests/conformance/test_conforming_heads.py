"""A cut takes what was asked for: this head, not its layer, no bias, no keys beside it."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.export import Export
from caploc.models.projections import find_projections
from worlds.alone import around, save, under
from worlds.tiny import GROUPED, OLD, SHAPE, build, random_tokens

WITH_BIAS = {
    "gpt2": OLD,
    "gpt_neox": SHAPE,
    "opt": {**OLD, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": GROUPED,
    "starcoder2": {**GROUPED, "use_bias": True},
    "bloom": OLD,
}
RATIOS = {2: (4, 2), 3: (6, 2), 7: (14, 2), 4: (4, 1)}  # heads and key-value heads


def biased(name):
    """A model whose output projections have a bias that shows."""
    model = build(name, WITH_BIAS[name])
    for each in find_projections(model)[0]:
        torch.nn.init.normal_(each.bias)
    return model


@pytest.mark.parametrize("name", [n for n in WITH_BIAS if n in ("gpt2", "gpt_neox", "starcoder2")])
def test_an_edited_checkpoint_keeps_every_bias(name, tmp_path):
    """The same of weights that are handed on.

    https://github.com/ArthurConmy/Automatic-Circuit-Discovery/pull/52
    """
    base = save(tmp_path / "base", biased(name))
    heads = tuple(Head(0, n) for n in range(4))
    Export(ModelOptions(str(base)), heads, "checkpoint", tmp_path / "cut").write()
    old, new = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "cut"))
    (changed,) = (key for key in old if not torch.equal(old[key], new[key]))
    assert changed.endswith("weight") and not new[changed].any()


@pytest.mark.parametrize("flag", [True, False])
def test_an_edited_checkpoint_reads_and_writes_with_the_matrices_of_the_model(flag, tmp_path):
    """Elsewhere a flag that ties two unlike matrices overwrites one of them on reload.

    https://github.com/huggingface/transformers/issues/45127 and
    https://github.com/hiyouga/LLaMA-Factory/issues/10832
    """
    model = build("qwen2", GROUPED | {"tie_word_embeddings": flag})
    base = save(tmp_path / "base", model)
    Export(ModelOptions(str(base)), (Head(0, 1),), "checkpoint", tmp_path / "cut").write()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "cut").eval()
    tokens = random_tokens(2, 9)
    loaded = around(model)
    with torch.no_grad(), under(loaded, np.arange(8) == 1):
        assert torch.equal(plain(tokens).logits, model(tokens).logits)
