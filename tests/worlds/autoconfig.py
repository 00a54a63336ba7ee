"""Tiny configs of model types that `tiny` has no row for, made from the fields each config has."""

from transformers import CONFIG_MAPPING

from worlds.tiny import EXPERTS, GROUPED, LATENT, build

SMALL = {
    **GROUPED,
    **EXPERTS,
    **LATENT,
    "head_dim": 8,
    # older names of the same sizes
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "d_model": 32,
    "num_layers": 2,
    "num_heads": 4,
    "ffn_dim": 48,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "init_std": 0.3,
    "rotary_dim": 4,
    "type_vocab_size": 1,
    "is_decoder": True,
    **{f"{side}_{what}": size for side in ("encoder", "decoder")
       for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))},
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_topk": 2,
    "shared_expert_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # attention that is none, or not to all
    "sliding_window": 24,
    **{f"mamba_{what}": size for what, size in
       (("d_ssm", 32), ("n_heads", 4), ("d_head", 8), ("d_state", 8), ("n_groups", 1))},
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip


HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
BESIDE = {  # what a type needs beside the sizes
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_moe_text": HYBRID,
    "qwen3_5_text": HYBRID,
    "zaya": {"num_experts_per_tok": 1},
}


def build_other(model_type):
    """A tiny random model of this type."""
    kind = CONFIG_MAPPING[model_type]
    fields = {*kind().to_dict(), *getattr(kind, "attribute_map", {})}
    config = {name: value for name, value in SMALL.items() if name in fields}
    if "kv_lora_rank" in fields:  # its heads' widths follow from the ranks
        config.pop("head_dim", None)
        config["num_key_value_heads"] = 4
    return build(model_type, config | BESIDE.get(model_type, {}))


OTHERS = """
    afmoe apertus arcee aria_text axk1 axk2 bart beam bigbird_pegasus biogpt bitnet blenderbot
    blenderbot-small codegen cohere2 cohere2_moe ctrl cwm deepseek_v2 deepseek_v32 doge dots1
    dots3_note_text ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1 flex_olmo flint gemma
    gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt-sw3 gpt_neo
    gpt_neox_japanese granite granite_swa granitemoe granitemoe_swa granitemoeshared helium
    hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling2_text inkling_text internlm3
    iquestcoder jais2 jamba kolibri1 laguna lfm2_moe llama4_text marian mbart mellum
    mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mpt mvp
    nanochat nemotron olmo olmo3 olmo_hybrid olmoe openai-gpt pegasus persimmon phimoe plbart
    qwen2_moe qwen3_5_moe_text qwen3_5_text seed_oss smollm3 solar_open starcoder2 trocr
    vaultgemma whisper xglm youtu zaya
""".split()
OTHERS = [name for name in OTHERS if name in CONFIG_MAPPING]  # that this transformers has
