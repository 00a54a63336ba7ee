"""One tiny random model of each family, made from a config: no files, no network."""

import copy
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

VOCABULARY = 61
LAYERS = 2
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # with the usual 0.02 all tokens nearly tie and no cut shows
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # every row runs to the end, so that all tokens can be compared
    "tie_word_embeddings": False,  # tied, an untrained model repeats its last token for ever
}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
OLD = {name: value for name, value in SHAPE.items() if name != "intermediate_size"}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}


@dataclass(frozen=True)
class Family:
    """A model type, its config, and the grid that is right for it."""

    model_type: str
    config: Mapping[str, Any]
    heads: tuple[int, ...] = (4, 4)
    groups: tuple[int, ...] = (1, 1)
    naming: str = "model.layers.{layer}.self_attn.o_proj"
    extra: Mapping[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama": Family("llama", GROUPED, groups=(2, 2)),
    "mistral": Family("mistral", {**GROUPED, "sliding_window": 5}, groups=(2, 2)),
    "mixtral": Family("mixtral", {**GROUPED, "num_local_experts": 4}, groups=(2, 2)),
    "qwen2": Family("qwen2", GROUPED, groups=(2, 2)),
    "qwen3, wide heads": Family("qwen3", {**GROUPED, "head_dim": 16}, groups=(2, 2)),
    "qwen3_moe": Family(
        "qwen3_moe", {**GROUPED, **EXPERTS, "head_dim": 16, "num_experts": 4}, groups=(2, 2)
    ),
    "gemma2": Family("gemma2", {**GROUPED, "head_dim": 12, "sliding_window": 5}, groups=(2, 2)),
    "gemma3_text": Family(
        "gemma3_text", {**GROUPED, "head_dim": 12, "sliding_window": 5}, groups=(2, 2)
    ),
    "phi3": Family("phi3", GROUPED, groups=(2, 2)),
    "olmo2": Family("olmo2", GROUPED, groups=(2, 2)),
    "gpt_neox": Family("gpt_neox", SHAPE, naming="gpt_neox.layers.{layer}.attention.dense"),
    "gpt2": Family("gpt2", OLD, naming="transformer.h.{layer}.attn.c_proj"),
    "falcon, one key-value head": Family(
        "falcon",
        {**OLD, "multi_query": True, "new_decoder_architecture": False},
        groups=(4, 4),
        naming="transformer.h.{layer}.self_attention.dense",
    ),
    "falcon, grouped": Family(
        "falcon",
        {**OLD, "new_decoder_architecture": True, "num_kv_heads": 2},
        groups=(2, 2),
        naming="transformer.h.{layer}.self_attention.dense",
    ),
    "falcon, alibi": Family(
        "falcon",
        {**OLD, "multi_query": False, "new_decoder_architecture": False, "alibi": True},
        naming="transformer.h.{layer}.self_attention.dense",
    ),
    "stablelm": Family("stablelm", GROUPED, groups=(2, 2)),
    "cohere": Family("cohere", {**GROUPED, "logit_scale": 1.0}, groups=(2, 2)),
    "deepseek_v3": Family(
        "deepseek_v3",
        {
            **SHAPE,
            **EXPERTS,
            **LATENT,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt_oss": Family(
        "gpt_oss",
        {
            **GROUPED,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
        },
        groups=(2, 2),
    ),
    "lfm2, attention in one layer of three": Family(
        "lfm2",
        {
            **GROUPED,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
        heads=(0, 4, 0),
        groups=(1, 2, 1),
        naming="model.layers.{layer}.self_attn.out_proj",
    ),
    "opt": Family(
        "opt",
        {**OLD, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3},
        naming="model.decoder.layers.{layer}.self_attn.out_proj",
    ),
    "bloom": Family("bloom", OLD, naming="transformer.h.{layer}.self_attention.dense"),
    "gptj": Family(
        "gptj",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": LAYERS,
            "n_head": 4,
            "rotary_dim": 4,
            "n_positions": 64,
            "initializer_range": 0.3,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
            "tie_word_embeddings": False,
        },
        naming="transformer.h.{layer}.attn.out_proj",
    ),
    "phi": Family("phi", GROUPED, groups=(2, 2), naming="model.layers.{layer}.self_attn.dense"),
    "gpt_bigcode": Family(
        "gpt_bigcode", OLD, groups=(4, 4), naming="transformer.h.{layer}.attn.c_proj"
    ),
    "qwen3_next, gated attention": Family(
        "qwen3_next",
        {
            **GROUPED,
            **EXPERTS,
            "head_dim": 16,
            "num_experts": 4,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        heads=(0, 4),
        groups=(1, 2),
    ),
    "nemotron_h, attention beside state spaces": Family(
        "nemotron_h",
        {
            **GROUPED,
            "head_dim": 16,
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 2,
        },
        heads=(0, 4),
        groups=(1, 2),
        naming="model.layers.{layer}.mixer.o_proj",
    ),
    "gemma4_text, layers of unlike heads": Family(
        "gemma4_text",
        {
            **GROUPED,
            "head_dim": 12,
            "global_head_dim": 20,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        groups=(2, 2),
    ),
    "recurrent_gemma": Family(
        "recurrent_gemma",
        {
            **GROUPED,
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 5,
            "w_init_variance_scale": 1.0,
        },
        heads=(0, 4),
        groups=(1, 2),
        naming="model.layers.{layer}.temporal_block.o_proj",
    ),
}


# those that this version of transformers has
FAMILIES = {name: each for name, each in FAMILIES.items() if each.model_type in CONFIG_MAPPING}

# Their layers route tokens to experts; and one has no feed-forward block in its two layers.
ROUTED = [name for name in FAMILIES if {"num_experts", "num_local_experts", "n_routed_experts"}
          & set(FAMILIES[name].config)]  # fmt: skip
WITH_NEURONS = [n for n in FAMILIES if n not in ROUTED and not n.startswith("nemotron_h")]


def build(model_type: str, config: Mapping[str, Any], *, seed: int = 0) -> PreTrainedModel:
    """A random model in evaluation mode."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=1.0)
    # a trained model's padding token has a vector like any other
    torch.nn.init.normal_(model.get_input_embeddings().weight[0], std=0.3)
    return model.eval().requires_grad_(False)


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The family's model; tests must leave it as they found it."""
    family = FAMILIES[name]
    return build(family.model_type, family.config).to(dtype)


def count_hooks(model: torch.nn.Module) -> list[int]:
    """Hooks on each module; an engine that still lives, perhaps another test's, has its own."""
    gc.collect()
    gc.freeze()  # what lives on until now need not be looked at again
    return [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model.modules()]


MAMBA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "state_size": 4,
    "pad_token_id": 0,
}


def zeroed(name: str, dtype: torch.dtype, knocked_out: torch.Tensor) -> PreTrainedModel:
    """A copy of the family's model in which the weights that read the heads are zero.

    Written from the family's row alone, so that it shares nothing with what it is to check.
    """
    family, model = FAMILIES[name], copy.deepcopy(tiny(name, dtype))
    column = 0
    for layer, heads in enumerate(family.heads):
        if not heads:
            continue
        module = model.get_submodule(family.naming.format(layer=layer))
        weight = module.weight.data if isinstance(module, Conv1D) else module.weight.data.T
        width = weight.shape[0] // heads
        for head in range(heads):
            if knocked_out[column]:
                weight[head * width : (head + 1) * width] = 0
            column += 1
    return model


def random_masks(name: str, rows: int, *, seed: int = 0) -> torch.Tensor:
    """A mask for each row: the first cuts nothing, each other one a third of the heads or more."""
    heads = sum(FAMILIES[name].heads)
    masks = torch.zeros(rows, heads, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for row in range(1, rows):
        masks[row, torch.randperm(heads, generator=generator)[: 1 + heads // 3]] = True
    return masks


def random_tokens(rows: int, length: int, *, seed: int = 1) -> torch.Tensor:
    """Token ids without the padding token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (rows, length), generator=generator)


def left_padded(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Random prompts of these lengths in one batch, as `generate` takes them."""
    tokens = random_tokens(len(lengths), max(lengths))
    places = torch.arange(max(lengths))
    mask = (places >= max(lengths) - torch.tensor(lengths)[:, None]).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def greedy(model: PreTrainedModel, batch: dict[str, torch.Tensor], new: int = 6) -> torch.Tensor:
    """The new tokens of a plain greedy `generate` with its key-value cache."""
    tokens = model.generate(**batch, max_new_tokens=new, do_sample=False, use_cache=True)
    return tokens[:, batch["input_ids"].shape[1] :]
