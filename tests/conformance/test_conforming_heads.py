"""A cut takes what was asked for: this head, not its layer, no bias, no keys beside it."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from caploc.components import Head
from caploc.declaration import ModelOptions
from caploc.export import Export
from caploc.models.hooks import temporary_hooks
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


def read_and_said(loaded, mask):
    """What the projections read and say on one text."""
    read, told = [], []

    def note(_, args, out):
        read.append(args[0][0])
        told.append(out[0])

    def listen():
        return (each.register_forward_hook(note) for each in loaded.projections)

    with torch.no_grad(), under(loaded, mask), temporary_hooks(listen()):
        loaded.model(random_tokens(1, 7))
    return read, told


@pytest.mark.parametrize("name", WITH_BIAS)
def test_of_one_layer_one_head_is_cut_and_all_others_hand_on_the_same_bits(name):
    """Elsewhere who asks for one head loses all of its layer.

    https://github.com/decoderesearch/SAELens/issues/163
    """
    loaded = around(biased(name))
    before, _ = read_and_said(loaded, np.zeros(8, dtype=bool))
    after, _ = read_and_said(loaded, np.arange(8) == 1)
    width = before[0].shape[-1] // 4
    kept = [column for column in range(4 * width) if column // width != 1]
    assert torch.equal(after[0][:, kept], before[0][:, kept])
    assert not after[0][:, width : 2 * width].any() and before[0][:, width : 2 * width].all()


@pytest.mark.parametrize("name", WITH_BIAS)
def test_a_layer_without_heads_says_its_bias_and_nothing_else(name):
    """Elsewhere zeroing heads wiped the biases as well.

    https://github.com/ArthurConmy/Automatic-Circuit-Discovery/pull/52
    """
    loaded = around(biased(name))
    _, told = read_and_said(loaded, np.arange(8) < 4)
    assert torch.allclose(told[0], loaded.projections[0].bias.expand_as(told[0]), atol=1e-6)


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


@pytest.mark.parametrize("kind", ["llama", "qwen2", "starcoder2"])
@pytest.mark.parametrize("ratio", RATIOS)
@torch.no_grad()
def test_a_group_of_heads_is_what_reads_one_key_value_head(kind, ratio):
    """Elsewhere queries are mapped to keys of another head, which some ratios hide.

    https://github.com/apple/ml-hypercloning/issues/1 and
    https://github.com/PSAL-POSTECH/ONNXim/issues/34
    """
    heads, pairs = RATIOS[ratio]
    sizes = {"hidden_size": 8 * heads, "num_attention_heads": heads, "num_key_value_heads": pairs}
    model = build(kind, GROUPED | sizes)
    loaded, tokens = around(model), random_tokens(1, 7)
    assert [loaded.grid.group(Head(1, n)) for n in range(heads)] == [
        n // ratio for n in range(heads)
    ]
    for group, columns in enumerate(loaded.grid.groups[:pairs]):
        zeroed = copy.deepcopy(model)
        values = zeroed.model.layers[0].self_attn.v_proj
        values.weight[8 * group : 8 * (group + 1)] = 0
        if values.bias is not None:
            values.bias[8 * group : 8 * (group + 1)] = 0
        mask = np.zeros(loaded.grid.size, dtype=bool)
        mask[columns] = True
        with under(loaded, mask):
            cut = model(tokens).logits
        assert torch.allclose(cut, zeroed(tokens).logits, atol=1e-5)
        assert not torch.allclose(cut, model(tokens).logits, atol=1e-3)


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
