"""Checkpoints whose weights are put together by hand: a Llama of words, as files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, PreTrainedTokenizerFast

SPECIAL = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>"}  # words 0, 1 and 2


def config_of(
    words: int, *, places: int, inner: int, layers: int, heads: int, head_width: int
) -> LlamaConfig:
    """A float32 Llama with ReLU; the residual stream has `places` values or a few more."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=words,
        hidden_size=-(-places // heads) * heads,  # a multiple of the heads
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        head_dim=head_width,
        hidden_act="relu",
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        dtype="float32",
    )


def weights_of(
    config: LlamaConfig,
    constant: float,
    embeddings: np.ndarray,
    readout: np.ndarray,
    layers: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Every weight by its name in transformers, from those of each layer, the norms left out.

    With `constant` in one place of the residual stream, louder than all else, norms only rescale;
    their weights undo that.
    """
    # a norm divides by the root mean square: constant / sqrt(hidden)
    scale = np.full(config.hidden_size, constant / np.sqrt(config.hidden_size), np.float32)
    weights = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": scale,
        "lm_head.weight": readout,
    }
    for number, parts in enumerate(layers):
        named = {**parts, "input_layernorm": scale, "post_attention_layernorm": scale}
        weights |= {f"model.layers.{number}.{name}.weight": w for name, w in named.items()}
    return weights


def write_checkpoint(
    place: Path, config: LlamaConfig, weights: Mapping[str, np.ndarray], words: Mapping[str, int]
) -> None:
    """Write config, weights and a tokenizer of whole words.

    Raises:
        OSError: if the folder cannot be written.
    """
    config.save_pretrained(place)
    tensors = {name: torch.tensor(array).contiguous() for name, array in weights.items()}
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer(WordLevel(dict(words), SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(place)
